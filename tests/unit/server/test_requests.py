"""What clients send: files in pieces, logs, lists; and requests that are not valid."""

from __future__ import annotations

import hashlib
import http.client
import os
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, RayjobsError, SpecError, StoreError, UsageError
from rayjobs.server.running import Listening, serve
from rayjobs.snapshots import blob_key
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewJob
from tests.unit.server.conftest import Served


def test_a_file_goes_there_and_back(served: Served, tmp_path: Path) -> None:
    client = served.client()
    data = os.urandom(9 << 20)  # several pieces
    path = tmp_path / "data"
    path.write_bytes(data)
    blob = client.blobs.add_file(path)
    assert blob.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    client.blobs.get_to(blob.key, tmp_path / "back", digest=blob.digest)
    assert (tmp_path / "back").read_bytes() == data
    assert list((served.workspace.path / "uploads").iterdir()) == []


def test_an_upload_goes_on_where_it_stood(served: Served) -> None:
    connection, name = served.connection(), "a" * 32
    assert connection.json("PUT", f"/v1/uploads/{name}") == 0
    for offset in ("0", "0"):  # the answer to the first was lost
        connection.send("PATCH", f"/v1/uploads/{name}", query={"offset": offset}, data=b"abc")
        connection.close()
    assert connection.json("PUT", f"/v1/uploads/{name}") == 3
    with pytest.raises(UsageError, match="has 3 bytes"):
        connection.send("PATCH", f"/v1/uploads/{name}", query={"offset": "9"}, data=b"x")
    body = {"key": None, "digest": None, "size": 4}
    with pytest.raises(StoreError, match="3 bytes instead of 4"):
        connection.json("POST", f"/v1/uploads/{name}/keep", body=body)


def test_bytes_that_are_not_those_of_their_digest_are_refused(
    served: Served, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    digest = f"sha256:{'0' * 64}"
    with pytest.raises(StoreError, match="digest"):
        served.client().blobs.put_file(tmp_path / "data", blob_key(digest), digest=digest)
    assert not served.client().blobs.exists(blob_key(digest))


@pytest.mark.parametrize("key", ["../store.db", "files/sha256/x", "snapshots/../../workspace.json"])
def test_only_snapshots_are_stored_by_name(served: Served, tmp_path: Path, key: str) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with pytest.raises(UsageError, match="not a snapshot's key"):
        served.client().blobs.put_file(tmp_path / "data", key)


@pytest.mark.parametrize(
    "path", ["/v1/blobs/../store.db", "/v1/blobs/%2e%2e/store.db", "/v1/blobs//etc/passwd"]
)
def test_a_path_does_not_lead_out_of_the_blobs(served: Served, path: str) -> None:
    token = served.connection()._login.token
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Range": "bytes=0-100"}
    connection.request("GET", path, headers=headers)
    assert connection.getresponse().status in (404, 422)
    connection.close()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"which": {"$": "Job"}}',
        b'{"which": {"$": "os.system", "of": {}}}',
        b'{"which": 7}',
        b'{"unknown": 1}',
        b'{"which": {"$": "JobFilter", "of": {"limit": "x"}}}',
    ],
)
def test_a_malformed_body_is_refused(served: Served, body: bytes) -> None:
    with pytest.raises(RayjobsError) as refused:
        served.connection().send("POST", "/v1/jobs:list", data=body)
    assert refused.type is UsageError


def test_a_body_that_is_too_large_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.server.bodies.MOST_BODY", 1000)
    with pytest.raises(UsageError, match="at most"):
        served.connection().json("POST", "/v1/jobs:list", body={"which": "x" * 2000})


def test_a_spec_is_checked_again(served: Served) -> None:
    spec = JobSpec(command="true").model_copy(update={"target": "nowhere"})
    new = NewJob(spec=spec, experiment="e", snapshot=None, user="")
    with pytest.raises(SpecError, match="nowhere"):
        served.client().store.submit(new)
    absent = NewJob(
        spec=JobSpec(command="true"), experiment="e", snapshot=f"sha256:{'0' * 64}", user=""
    )
    with pytest.raises(NotFoundError, match="snapshot"):
        served.client().store.submit(absent)


def test_lists_and_names_are_those_of_the_store(served: Served) -> None:
    client = served.client()
    made = [
        client.store.submit(
            NewJob(
                spec=JobSpec(command="true", name=f"n{number}"),
                experiment="e",
                snapshot=None,
                user="",
            )
        )[0]
        for number in range(3)
    ]
    store = served.workspace.store
    which = JobFilter(limit=2)
    assert client.store.job_lines(which) == store.job_lines(which)
    assert client.store.jobs() == store.jobs()
    assert client.store.find("n1") == made[1]
    assert client.store.counts() == store.counts()
    assert client.store.events(made[0].id) == store.events(made[0].id)
    with pytest.raises(NotFoundError, match="no job"):
        client.store.find("absent")
    assert client.catalogue.datastores() == served.workspace.catalogue.datastores()


def test_a_certificate_that_cannot_be_read_is_named(served: Served) -> None:
    with pytest.raises(UsageError, match="--tls-cert /nothing cannot be read: name a PEM file"):
        serve(served.workspace, Listening(certificate="/nothing", key="/nothing"))
