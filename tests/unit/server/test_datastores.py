"""A client reads and writes the files of datastores through the server alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rayjobs.core.errors import RayjobsError, UsageError
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.backends import Backend, StoredFile, open_backend
from rayjobs.datastore.backends.fsspec import FsspecBackend
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import DataChanged, DatastoreUnavailable, InvalidReference
from rayjobs.remote import datastores as remote
from rayjobs.remote.datastores import Pool, ServedBackend
from rayjobs.server import datastores as serving
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.users import Role
from tests.contract.test_datastore_backends import BackendContract
from tests.unit.server.conftest import Served

STORE = "workspaceblobstore"


def backend_of(served: Served, role: Role = Role.SUBMITTER, store: str = STORE) -> ServedBackend:
    record = served.workspace.catalogue.datastore(store)
    connection = served.connection(role.name.lower(), role)
    pool = Pool(connection)
    served.opened.append(pool)
    return ServedBackend(pool, record)


@pytest.mark.long
class TestServedBackend(BackendContract):
    @pytest.fixture
    def backend(self, served: Served) -> Backend:
        return backend_of(served)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_PIECE", 10)
    monkeypatch.setattr(remote, "PIECE_BYTES", 7)


def test_a_file_of_many_pieces_comes_back_from_any_storage(
    served: Served, small: None, tmp_path: Path
) -> None:
    """Off switch: let `_piece` read from the beginning."""
    fsspec.filesystem("memory").mkdirs(tmp_path.name)
    Datastore.register_fsspec(served.workspace, "lake", f"memory://{tmp_path.name}")
    source = tmp_path / "source"
    source.write_bytes(os.urandom(95))
    for store in (STORE, "lake"):
        backend = backend_of(served, store=store)
        backend.put(source, "a/file")
        (found,) = backend.walk("a")
        backend.fetch(found, tmp_path / store)
        assert (tmp_path / store).read_bytes() == source.read_bytes()
    assert not list((served.workspace.path / "uploads").iterdir())


def test_a_file_that_changes_between_two_pieces_is_not_mixed(
    served: Served, small: None, tmp_path: Path
) -> None:
    """Off switch: let `LocalBackend.read` not compare."""
    backend = backend_of(served)
    source = tmp_path / "source"
    source.write_bytes(b"1" * 30)
    backend.put(source, "file")
    (listed,) = backend.walk("")
    stored = open_backend(served.workspace.catalogue.datastore(STORE)).local_path("file")
    assert stored is not None

    def change(_count: int) -> None:
        stored.write_bytes(b"2" * 30)

    with pytest.raises(DataChanged, match="has changed"):
        backend.fetch(listed, tmp_path / "back", change)
    assert not (tmp_path / "back").exists()


def lake(served: Served, tmp_path: Path, content: bytes) -> tuple[ServedBackend, StoredFile]:
    """Return a datastore that is not on the server's disk, and its only file."""
    fsspec.filesystem("memory").mkdirs(tmp_path.name)
    Datastore.register_fsspec(served.workspace, "lake", f"memory://{tmp_path.name}")
    (tmp_path / "source").write_bytes(content)
    backend = backend_of(served, store="lake")
    backend.put(tmp_path / "source", "file")
    (found,) = backend.walk("")
    return backend, found


def test_piece_of_a_large_file_needs_no_other_piece(
    served: Served, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole large file takes longer than a client waits, and each repeat would start over."""
    content = os.urandom(95)
    first, found = lake(served, tmp_path, content)
    second, read = backend_of(served, store="lake"), []
    whole = FsspecBackend.read

    def noted(self: FsspecBackend, file: StoredFile, start: int, length: int) -> bytes:
        read.append((start, length))
        return whole(self, file, start, length)

    def never(*_given: object) -> str:
        raise DatastoreUnavailable("the whole file is fetched")

    monkeypatch.setattr(FsspecBackend, "read", noted)
    monkeypatch.setattr(FsspecBackend, "fetch", never)

    def other(_count: int) -> None:  # one piece behind the first client, to the end
        start = len(read) // 2 * 10 - 10
        if start >= 0:
            assert second.read(found, start, 10) == content[start : start + 10]

    first.fetch(found, tmp_path / "back", other)
    assert (tmp_path / "back").read_bytes() == content
    assert {length for _, length in read} == {10} and len(read) > 12


def test_joined_pieces_are_compared_with_the_digest_of_the_storage(
    served: Served, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, found = lake(served, tmp_path, b"1" * 95)
    known = replace(found, digest=digest_of(b"1" * 95))
    monkeypatch.setattr(FsspecBackend, "stat", lambda *_given: known)
    backend.fetch(found, tmp_path / "back")
    read = FsspecBackend.read

    def damaged(self: FsspecBackend, file: StoredFile, start: int, length: int) -> bytes:
        return read(self, file, start, length).replace(b"1", b"2", start == 30)

    monkeypatch.setattr(FsspecBackend, "read", damaged)
    with pytest.raises(DataChanged):
        backend.fetch(found, tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists()


def test_a_viewer_reads_and_changes_nothing(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    backend_of(served).put(source, "file")
    viewer = backend_of(served, Role.VIEWER)
    (found,) = viewer.walk("")
    viewer.fetch(found, tmp_path / "back")
    for change in (lambda: viewer.put(source, "other"), lambda: viewer.remove("file")):
        with pytest.raises(RayjobsError, match="needs the role submitter"):
            change()
    assert [one.path for one in viewer.walk("")] == ["file"]


@pytest.mark.parametrize("path", ["../up", "a/../../up", "a\0b"])
def test_server_refuses_a_path_outside_the_datastore(served: Served, path: str) -> None:
    connection = served.connection()
    for what in ("stat", "children", "walk"):
        with pytest.raises((InvalidReference, UsageError)):
            connection.whole("GET", f"/v1/datastores/{STORE}/{what}", query={"path": path})
    body = {"upload": "0" * 32, "path": path, "size": 1}
    with pytest.raises((InvalidReference, UsageError)):
        connection.json("POST", f"/v1/datastores/{STORE}/files", body=body)


def test_bad_requests_are_refused_with_the_missing_fields(served: Served) -> None:
    connection = served.connection()
    top = f"/v1/datastores/{STORE}"
    bad: list[Callable[[], Any]] = [
        lambda: connection.json("POST", f"{top}/files", body={"upload": 1}),
        lambda: connection.json("POST", f"{top}/files", body=_put(path="")),
        lambda: connection.json("POST", f"{top}/files", body=_put(upload="../../etc")),
        lambda: connection.json("DELETE", f"{top}/files"),
        lambda: connection.whole("GET", f"{top}/content", query={"path": "a", "size": "-1"}),
    ]
    for request in bad:
        with pytest.raises(UsageError):
            request()


def _put(**changes: Any) -> dict[str, Any]:
    return {"upload": "0" * 32, "path": "a", "size": 1, **changes}


def test_a_client_without_the_disk_uploads_registers_and_downloads(
    served: Served, tmp_path: Path
) -> None:
    workspace = served.client()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("1")
    store = Datastore(workspace)
    store.upload(str(tmp_path / "data"), target_path="d", show_progress=False)
    made = Dataset.File.from_files((store, "d/*")).register(workspace, "d")
    assert made.download(str(tmp_path / "back")) == [str(tmp_path / "back" / "a.txt")]
    assert not hasattr(workspace.catalogue, "catalogue")  # it is not taken for a workspace


def test_put_with_a_lost_response_is_stored_once(served: Served, tmp_path: Path) -> None:
    """Off switch: let `_stored` refuse an upload that is gone."""
    lost = LosesAnswers(served.connection()._login)
    source = tmp_path / "source"
    source.write_bytes(b"content")
    backend = backend_of(served)
    backend._pool._free = [lost]
    stored = backend.put(source, "file")
    assert lost.left == 0
    (listed,) = backend_of(served).walk("")
    assert (stored.size, stored.etag) == (7, listed.etag)


class LosesAnswers(Connection):
    """Loses the first answer of a request that stores a file."""

    left = 1

    def _exchange(self, *given: Any) -> Any:
        answer = super()._exchange(*given)
        if self.left and str(given[2]).endswith("/files"):
            self.left -= 1
            answer.read()
            raise ConnectionResetError("the answer is lost")
        return answer
