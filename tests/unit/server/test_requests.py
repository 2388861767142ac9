"""What clients send: files in pieces, logs, lists; and requests that are not valid."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
import zstandard

from rayjobs.core import paths
from rayjobs.core.errors import (
    NotFoundError,
    RayjobsError,
    SnapshotError,
    SpecError,
    StoreError,
    UsageError,
)
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job, MetricPoint, ModelDraft, ModelFile
from rayjobs.models import uploaded
from rayjobs.remote import operations
from rayjobs.remote import workspace as remote_workspace
from rayjobs.remote.operations import OPERATIONS
from rayjobs.server import app
from rayjobs.server.running import Listening, serve
from rayjobs.snapshots import blob_key
from rayjobs.spec.model import JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import DRIVER, JobChanges, JobFilter, NewJob, NewPipeline, NewStep
from rayjobs.submit import credentials, project, submitting
from rayjobs.target import elsewhere
from rayjobs.target.secrets import TargetSecrets
from rayjobs.workspace import server_choice
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.logins import Login
from tests.unit.server.conftest import Served


def test_file_round_trips(served: Served, tmp_path: Path) -> None:
    client = served.client()
    data = os.urandom(9 << 20)  # several pieces
    path = tmp_path / "data"
    path.write_bytes(data)
    blob = client.blobs.add_file(path)
    assert blob.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    client.blobs.get_to(blob.key, tmp_path / "back", digest=blob.digest)
    assert (tmp_path / "back").read_bytes() == data
    assert list(served.workspace.blobs.list("uploads/")) == []
    assert list((served.workspace.path / "uploads").iterdir()) == []


def test_upload_continues_at_its_offset(served: Served) -> None:
    connection, name = served.connection(), "a" * 32
    assert connection.json("PUT", f"/v1/uploads/{name}") == 0
    for offset in ("0", "0"):  # the answer to the first was lost
        connection.send("PATCH", f"/v1/uploads/{name}", query={"offset": offset}, data=b"abc")
        connection.close()
    assert connection.json("PUT", f"/v1/uploads/{name}") == 3
    connection.send("PATCH", f"/v1/uploads/{name}", query={"offset": "9"}, data=b"x")
    connection.close()
    assert connection.json("PUT", f"/v1/uploads/{name}") == 3  # a piece behind a gap is not counted
    body = {"key": None, "digest": None, "size": 10}
    with pytest.raises(NotFoundError, match="3 bytes instead of 10"):
        connection.json("POST", f"/v1/uploads/{name}/keep", body=body)


def test_a_command_that_is_repeated_continues_its_upload(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client()
    (tmp_path / "data").write_bytes(os.urandom(9 << 20))
    sent: list[str] = []
    ask = Connection.ask

    def interrupted(self: Connection, verb: str, path: str, kind: Any, **more: Any) -> Any:
        if verb == "PATCH":
            sent.append(more["query"]["offset"])
            if len(sent) == 2:
                raise KeyboardInterrupt
        return ask(self, verb, path, kind, **more)

    monkeypatch.setattr(Connection, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.blobs.add_file(tmp_path / "data")
    blob = served.client().blobs.add_file(tmp_path / "data")
    assert sent == ["0", str(4 << 20), str(4 << 20), str(8 << 20)]
    assert served.workspace.blobs.size(blob.key) == 9 << 20
    assert list(served.workspace.blobs.list("uploads/")) == []
    assert client.blobs.add_file(tmp_path / "data") == blob  # the server has it
    assert len(sent) == 4


def test_another_users_upload_is_another(served: Served) -> None:
    name, first, second = "b" * 32, served.connection("ada"), served.connection("eve")
    first.send("PATCH", f"/v1/uploads/{name}", query={"offset": "0"}, data=b"abc")
    assert second.json("PUT", f"/v1/uploads/{name}") == 0


def test_bytes_that_do_not_match_their_digest_are_refused(served: Served, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    digest = f"sha256:{'0' * 64}"
    with pytest.raises(StoreError, match="digest"):
        served.client().blobs.put_file(tmp_path / "data", blob_key(digest), digest=digest)
    assert not served.client().blobs.exists(blob_key(digest))


@pytest.mark.parametrize("key", ["../store.db", "files/sha256/x", "snapshots/../../workspace.json"])
def test_only_snapshots_are_stored_by_name(served: Served, tmp_path: Path, key: str) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    with pytest.raises(UsageError, match="not the key of a snapshot"):
        served.client().blobs.put_file(tmp_path / "data", key)


@pytest.mark.parametrize(
    "path", ["/v1/blobs/../store.db", "/v1/blobs/%2e%2e/store.db", "/v1/blobs//etc/passwd"]
)
def test_path_cannot_leave_the_blob_folder(served: Served, path: str) -> None:
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
        b'{"which": {"limit": "x"}}',
        b'{"which": {"limit": NaN}}',
        b'{"which": {"experiment": "a\\u0000b"}}',
        b'{"which": {"experiment": "\\ud800"}}',
        b'{"which": {"limit": 1%s}}' % (b"0" * 5000),
        b"[" * 100_000,
        b'{"cursor": "x"}',
        b'{"cursor": ""}',
        b'{"page_size": 0}',
        b'{"page_size": 501}',
    ],
)
def test_a_malformed_body_is_refused(served: Served, body: bytes) -> None:
    with pytest.raises(RayjobsError) as refused:
        served.connection().send("POST", "/v1/jobs:list", data=body)
    assert refused.type is UsageError


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


def test_lists_and_names_match_the_store(served: Served) -> None:
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


def test_files_that_are_not_certificate_and_key_are_named(served: Served, tmp_path: Path) -> None:
    (file := tmp_path / "server.pem").write_text("no certificate")
    with pytest.raises(UsageError, match=r"server\.pem are not a certificate and its key as PEM"):
        serve(served.workspace, Listening(certificate=str(file), key=str(file)))


def test_a_port_that_is_taken_is_named(served: Served) -> None:
    messages: list[str] = []
    with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{served.port}"):
        serve(served.workspace, Listening(port=served.port), note=messages.append)
    assert messages == []


def test_client_does_not_read_the_server_folder(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(*_: object, **__: object) -> None:
        pytest.fail("that path belongs to the server's machine")

    monkeypatch.setattr(elsewhere, "find_quietly", looks)
    submitting.check(served.client(), JobSpec(command="true"))


def test_server_chooses_the_default_target(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYJOBS_TARGET", raising=False)
    assert project.default_target().name == "local"
    monkeypatch.setattr("rayjobs.server.app.stored_choice", lambda: "cluster")
    monkeypatch.setattr(server_choice, "_is_allowed", True)
    monkeypatch.setattr(server_choice, "_active", served.connection())
    assert project.default_target() == project.TargetChoice("cluster", served.address)


def test_a_target_that_the_server_starts_reaches_the_workspace(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    monkeypatch.setattr(credentials, "own_needs", lambda _: {"PGPASSWORD"})
    monkeypatch.setattr("rayjobs.server.targets.wake_or_start", lambda *_: False)
    path = "/v1/targets/local/wake"
    served.connection().json("POST", path, query={"start": "1"})
    kept = TargetSecrets("local", home=paths.home()).all()
    assert kept["PGPASSWORD"].value == "s3cret"


def draft_of(name: str, blob: str = "files/sha256/ab/abcd") -> ModelDraft:
    file = ModelFile(name=name, size=3, digest="sha256:abcd", blob=blob)
    return ModelDraft(
        name="digits",
        path="m",
        digest="sha256:0",
        files=(file,),
        sources=(),
        lineage={},
        user="root",
    )


def test_model_of_own_files_belongs_to_its_user(served: Served, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"abc")
    client = served.client("ada")
    made = uploaded.put(client, name="digits", path=tmp_path / "weights.bin", user="root")
    assert made.created_by == "ada"
    assert served.workspace.store.model("digits") == made
    with served.workspace.blobs.open(made.files[0].blob) as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("draft", [draft_of("../x"), draft_of("/x"), draft_of("x", "../../x")])
def test_a_models_file_has_a_name_and_a_key(served: Served, draft: ModelDraft) -> None:
    with pytest.raises(UsageError):
        served.client().store.put_model(None, draft)


def test_a_client_asks_the_next_server(served: Served) -> None:
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # nothing listens there
        dead = f"http://127.0.0.1:{gone.getsockname()[1]}"
        token = served.connection()._login.token
        client = Connection(Login(f"{dead},{served.address}", token))
        assert client.json("GET", "/v1/user")["user"] == "ada"
        assert client.address == served.address
        client.close()


def submitted(store: Store, number: int) -> Job:
    spec = JobSpec(command="true", name=f"n{number}")
    return store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user=""))[0]


def test_lists_are_paged(served: Served) -> None:
    store = served.workspace.store
    ids = [submitted(store, number).id for number in range(5)]
    connection = served.connection()

    def page(**more: Any) -> dict[str, Any]:
        body = {"page_size": 2, "which": {"newest_first": False}} | more
        return dict(connection.json("POST", "/v1/jobs:list", body=body))

    first = page()
    assert [one["id"] for one in first["items"]] == ids[:2]
    second = page(cursor=first["next"])
    ids.append(submitted(store, 5).id)  # a new job does not move the pages
    last = page(cursor=second["next"])
    assert [one["id"] for one in (*second["items"], *last["items"])] == ids[2:]
    assert last["next"] is None
    newest = page(which={"limit": 3})
    assert [one["id"] for one in newest["items"]] == ids[:3:-1]
    rest = page(which={"limit": 3}, cursor=newest["next"])
    assert ([one["id"] for one in rest["items"]], rest["next"]) == ([ids[3]], None)
    assert page(which={"limit": 0}) == {"items": [], "next": None}
    with pytest.raises(UsageError, match="limit must be a whole number from 0"):
        page(which={"limit": -1})


def pages_of(
    connection: Connection, path: str, query: Mapping[str, str], between: Callable[[], object]
) -> list[Any]:
    """Return the items of a list, one by one; something happens between two pages."""
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = connection.json("GET", path, query={**query, "page_size": "1", **cursor})
        assert len(answer["items"]) <= 1
        found += answer["items"]
        if answer["next"] is None:
            return found
        cursor = {"cursor": answer["next"]}
        between()


def test_pages_continue_after_their_last_item_despite_additions(served: Served) -> None:
    store, connection = served.workspace.store, served.connection()
    job = submitted(store, 0)
    for number in range(3):
        store.publish_pipeline({}, name=f"p{number}")
        store.update(job.id, JobChanges(priority=number + 1))
    at = job.changed_at
    points = [
        MetricPoint(
            attempt=0,
            rank=rank,
            sequence=number,
            name="loss",
            value=1,
            step=None,
            at=at,
        )
        for number in range(3)
        for rank in range(2)
    ]
    store.add_metrics(job.id, points)
    numbers = count()

    def metric() -> None:  # before those that follow, and of another name
        point = replace(points[0], attempt=-1, sequence=next(numbers), name="late")
        store.add_metrics(job.id, [point])

    known = [(one.rank, one.sequence) for one in store.metrics(job.id, name="loss")]
    found = pages_of(connection, f"/v1/jobs/{job.id}/metrics", {"name": "loss"}, metric)
    assert [(one["rank"], one["sequence"]) for one in found] == known
    events = [one.serial for one in store.events(job.id)]
    found = pages_of(connection, f"/v1/jobs/{job.id}/events", {"after": str(events[0])}, int)
    assert [one["serial"] for one in found] == events[1:]
    names = [one.name for one in store.published_pipelines()]
    found = pages_of(
        connection,
        "/v1/published-pipelines",
        {},
        lambda: store.publish_pipeline({}, name="new"),  # comes before the others
    )
    assert [one["name"] for one in found] == names
    gone = iter(store.published_pipelines())

    def disable() -> None:
        store.set_published_active(next(gone).id, active=False)

    found = pages_of(connection, "/v1/published-pipelines", {}, disable)
    assert found[-1]["name"] == names[-1]


def test_pages_of_versions_and_attempts_end(served: Served) -> None:
    store, connection = served.workspace.store, served.connection()
    published = store.publish_pipeline({}, name="p")
    for _ in range(4):
        store.add_endpoint_version("daily", published.id)
    turns = count(1)

    def bounded() -> None:
        assert next(turns) < 20, "the pages repeat"

    found = pages_of(connection, "/v1/endpoints", {}, bounded)
    assert [one["version"] for one in found] == [0, 1, 2, 3]
    job = submitted(store, 0)
    for number in range(4):
        assert store.start(job.id, attempt=number, allocation="a") is not None
        assert store.requeue(job.id, attempt=number + 1, reason="again", outcome=Outcome.PREEMPTED)
    found = pages_of(connection, f"/v1/jobs/{job.id}/attempts", {}, bounded)
    assert [one["number"] for one in found] == [1, 2, 3, 4]


def test_a_cursor_is_refused_by_other_lists(served: Served) -> None:
    store, connection = served.workspace.store, served.connection()
    one, other = submitted(store, 0), submitted(store, 1)
    for job in (one, other):
        for number in range(3):
            store.update(job.id, JobChanges(priority=number + 1))
    query = {"page_size": "1"}
    cursor = connection.json("GET", f"/v1/jobs/{one.id}/events", query=query)["next"]
    again = {**query, "cursor": cursor}
    assert connection.json("GET", f"/v1/jobs/{one.id}/events", query=again)["items"]
    for path, more in (
        (f"/v1/jobs/{other.id}/events", {}),
        (f"/v1/jobs/{one.id}/events", {"after": "1"}),
        (f"/v1/jobs/{one.id}/metrics", {}),
        ("/v1/reports/queue", {}),
        ("/v1/published-pipelines", {}),
    ):
        with pytest.raises(UsageError, match="cursor of another list"):
            connection.json("GET", path, query={**again, **more})
    with pytest.raises(UsageError, match="cursor of another list"):
        connection.json("POST", "/v1/jobs:list", body={"page_size": 1, "cursor": cursor})
    mark, _ = json.loads(base64.urlsafe_b64decode(cursor))
    positions: list[list[Any]] = [[], ["x"], [None], [1.5], [2**70], [1, 2], [[]]]
    forged = [
        base64.urlsafe_b64encode(json.dumps([mark, *position]).encode()).decode()
        for position in positions
    ]
    for wrong in ("1:", "x", "W10=", "bnVsbA==", cursor[:-8], "4" * 9000, *forged):
        with pytest.raises(UsageError, match="is not a cursor"):
            connection.json("GET", f"/v1/jobs/{one.id}/events", query={**query, "cursor": wrong})


def test_a_client_reads_all_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    store, client = served.workspace.store, served.client()
    for number in range(7):
        submitted(store, number)
    whole, requests = Connection.json, []

    def small(self: Connection, verb: str, path: str, **more: Any) -> Any:
        if path.startswith("/v1/jobs:"):
            requests.append(path)
            more["body"]["page_size"] = 3
        return whole(self, verb, path, **more)

    monkeypatch.setattr(Connection, "json", small)
    assert client.store.job_lines() == store.job_lines()
    assert client.store.jobs(JobFilter(limit=5)) == store.jobs(JobFilter(limit=5))
    assert len(requests) == 5


def test_values_without_json_form_are_transferred(served: Served) -> None:
    store = served.workspace.store
    job = submitted(store, 0)
    at = job.submitted_at
    points = [
        MetricPoint(attempt=0, rank=0, sequence=number, name="loss", value=value, step=None, at=at)
        for number, value in enumerate((math.inf, -math.inf, 1.5, {"a": [math.inf]}))
    ]
    store.add_metrics(job.id, points)
    assert served.client().store.metrics(job.id) == store.metrics(job.id)
    assert store.metrics(job.id)[0].value == math.inf
    tree = served.connection().json("GET", f"/v1/jobs/{job.id}")
    assert tree["spec"]["command"] == "true" and tree["submitted_at"].endswith("Z")


@pytest.mark.parametrize(
    "writer", [{}, {"kind": "attempt"}, {"kind": "x", "job": "a", "attempt": 1}]
)
def test_a_run_has_a_writer_that_can_be_read(served: Served, writer: dict[str, Any]) -> None:
    new = {"experiment": "e", "name": "n", "writer": writer}
    with pytest.raises(UsageError, match="writer"):
        served.connection().json("POST", "/v1/runs", body={"new": new})


def test_reports_are_paged_by_the_store(served: Served) -> None:
    store = served.workspace.store
    ids = [submitted(store, number).id for number in range(5)]
    connection, query, found = served.connection(), {"page_size": "2"}, []
    while True:
        answer = connection.json("GET", "/v1/reports/queue", query=query)
        found += [one["job"] for one in answer["items"]]
        if answer["next"] is None:
            break
        query["cursor"] = answer["next"]
    assert found == ids
    assert served.client().store.queue_history() == store.queue_history()


def test_each_submission_is_checked() -> None:
    submitted = {operations.hints_of(one.method)["new"] for one in OPERATIONS if one.user == "new"}
    assert submitted == set(get_args(app.Submission))


def test_only_the_sweep_driver_is_accepted(served: Served) -> None:
    """The target's actor imports the module that a driver names."""
    store = served.client().store
    for number, driver in enumerate(("antigravity:geohash", "os:abort", "")):
        spec = JobSpec(script="a.py")
        job, sweep = f"j-{number}", {"name": "s"}
        step = NewStep(number=0, name="a", job=job, spec=spec, driver=driver, sweep=sweep)
        new = NewPipeline(
            name="p",
            base=JobSpec(command="pipeline"),
            definition={},
            parameters={},
            steps=[step],
            experiment="e",
            user="",
        )
        with pytest.raises(UsageError, match="is not a driver of sweeps"):
            store.put_pipeline(new)
    assert served.workspace.store.pipelines() == []
    good = replace(new, steps=[replace(step, driver=DRIVER)])
    assert store.put_pipeline(good)[1]


def archive_of(content: bytes) -> tuple[bytes, str]:
    """Return an archive with this content and its key."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return zstandard.ZstdCompressor().compress(content), blob_key(digest)


@pytest.mark.parametrize("is_large", [False, True])
def test_a_snapshots_key_has_that_snapshot_only(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(remote_workspace, "UPLOAD_BYTES", 16)
    data, key = archive_of(b"print(1)\n" * 1000)
    other, _ = archive_of(b"import os\n" * 1000)
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    right.write_bytes(data)
    client = served.client()
    for bad in (b"no archive", other, data[:-1], data[:20] + b"x" + data[21:]):
        wrong.write_bytes(bad)
        with pytest.raises(SnapshotError, match=r"damaged|something else"):
            client.blobs.put_file(wrong, key)
        assert not served.workspace.blobs.exists(key)
    client.blobs.put_file(right, key)
    again = tmp_path / "again"
    again.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(b"print(1)\n" * 1000))
    assert again.read_bytes() != data
    client.blobs.put_file(again, key)
    with served.workspace.blobs.open(key) as file:
        assert file.read() == data, "what others run is not replaced"


@pytest.mark.parametrize("is_large", [False, True])
def test_a_damaged_snapshot_is_replaced(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(remote_workspace, "UPLOAD_BYTES", 16)
    data, key = archive_of(b"print(1)\n" * 1000)
    served.workspace.blobs.put_bytes(b"stored by an earlier version", key)
    (tmp_path / "right").write_bytes(data)
    served.client().blobs.put_file(tmp_path / "right", key)
    with served.workspace.blobs.open(key) as file:
        assert file.read() == data
