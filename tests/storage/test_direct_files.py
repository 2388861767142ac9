"""Large files between a server's clients and the bucket: whole, resumed, during an outage."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvicorn
import zstandard

from rayjobs.core.errors import (
    NotFoundError,
    SnapshotError,
    StorageFullError,
    StoreError,
    StoreUnreachableError,
)
from rayjobs.remote import direct
from rayjobs.remote.workspace import HttpBlobs
from rayjobs.server import uploads
from rayjobs.server.running import Listening, config_of
from rayjobs.workspace import s3_blobs, s3_presigned, users
from rayjobs.workspace.blobs import Blob, blob_key
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.http_messages import KeepRequest
from rayjobs.workspace.logins import Login
from rayjobs.workspace.s3_blobs import S3Blobs
from rayjobs.workspace.s3_presigned import Presigned
from rayjobs.workspace.users import Role
from tests.storage.blobs import blobs_in, given_keys
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server

__all__ = ["given_keys"]

pytestmark = [
    pytest.mark.storage,
    pytest.mark.xdist_group("storage"),
    pytest.mark.usefixtures("given_keys"),
]

MIB = 1 << 20
SIZE = 21 * MIB + 5
STAGED = "uploads/00-ff.direct"


@dataclass
class Place:
    """A server whose workspace keeps its files in S3; clients reach S3 through `proxy`."""

    blobs: S3Blobs
    proxy: Proxy
    connection: Connection

    def client(self) -> HttpBlobs:
        return HttpBlobs(self.connection)

    @property
    def multiparts(self) -> list[str]:
        found = self.blobs.client().list_multipart_uploads(
            Bucket=self.blobs.address.bucket, Prefix=self.blobs.address.prefix
        )
        return [one["Key"] for one in found.get("Uploads", ())]

    def nothing_staged(self) -> bool:
        return not self.multiparts and not list(self.blobs.list("uploads/"))


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.port) as made:
        yield made


@pytest.fixture
def place(s3_server: S3Server, proxy: Proxy, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        folder = stack.enter_context(open_workspace(tmp_path / "workspace", create=True))
        blobs = blobs_in(s3_server, tmp_path / "scratch")
        listening = Listening(port=0, bucket=proxy.endpoint)
        made = config_of(
            replace(folder, blobs=blobs), listening, is_silent=True, log_level="warning"
        )
        server = uvicorn.Server(made)
        thread = threading.Thread(target=server.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        end_s = time.monotonic() + 60
        while not server.started and time.monotonic() < end_s:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        _, token = users.add(folder.store, "ada", Role.SUBMITTER, by="root")
        login = Login(f"http://127.0.0.1:{port}", token)
        connection = stack.enter_context(closing(Connection(login)))
        yield Place(blobs, proxy, connection)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


def digest_of(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def no_bytes(*_: object, **__: object) -> None:
    pytest.fail("bytes were sent through the server")


def test_large_file_is_transferred_through_the_bucket(
    place: Place, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.remote.workspace.upload", no_bytes)
    blob = place.client().add_file(file)
    assert (blob.size, blob.digest, blob.key) == (SIZE, digest_of(file), blob_key(blob.digest))
    assert place.blobs.get_to(blob.key, tmp_path / "there").digest == blob.digest
    assert place.nothing_staged()
    connections = place.proxy.connections
    assert place.client().add_file(file) == blob  # known by its digest: nothing is sent
    assert place.proxy.connections == connections
    monkeypatch.setattr(Connection, "whole", no_bytes)
    assert place.client().get_to(blob.key, tmp_path / "back", digest=blob.digest) == blob
    assert place.proxy.connections > connections


def test_upload_resumes_after_a_killed_client(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = place.client()
    sent: list[str] = []

    class Killed(BaseException): ...

    tried = direct.Requests.send

    def dies(self: direct.Requests, verb: str, *more: object) -> bytes:
        if sent:
            raise Killed
        sent.append(verb)
        return tried(self, verb, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(direct, "PARTS_AT_ONCE", 1)
        patch.setattr(direct.Requests, "send", dies)
        with pytest.raises(Killed):
            client.add_file(file)
    assert len(place.multiparts) == 1
    monkeypatch.setattr("rayjobs.remote.workspace.upload", no_bytes)
    again: list[str] = []

    def counted(self: direct.Requests, verb: str, *more: object) -> bytes:
        again.append(verb)
        return tried(self, verb, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(direct.Requests, "send", counted)
    assert place.client().add_file(file).digest == digest_of(file)
    assert again == ["PUT"]  # of two parts
    assert place.nothing_staged()


@pytest.mark.parametrize("mode", ["refused", "hang", "cut_request", "503"])
def test_bucket_unreachable_for_the_client_is_bypassed(
    place: Place, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(direct, "ANSWER_S", 0.5)
    monkeypatch.setattr(direct, "FIRST_PAUSE_S", 0.01)
    if mode == "refused":
        place.proxy.stop()
    place.proxy.mode, place.proxy.cut_after = mode, 5 * MIB
    client = place.client()
    blob = client.add_file(file)
    assert blob.digest == digest_of(file)
    assert client.get_to(blob.key, tmp_path / "same", digest=blob.digest) == blob
    assert place.client().get_to(blob.key, tmp_path / "new", digest=blob.digest) == blob


def test_a_download_that_breaks_off_is_finished_by_the_server(
    place: Place, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "FIRST_PAUSE_S", 0.01)
    blob = place.blobs.add_file(file)
    place.proxy.mode, place.proxy.cut_after = "cut", 3 * MIB
    assert place.client().get_to(blob.key, tmp_path / "back", digest=blob.digest) == blob


def test_bytes_with_another_digest_are_refused_and_removed(
    place: Place, file: Path, tmp_path: Path
) -> None:
    other = f"sha256:{'0' * 64}"
    with file.open("rb") as stream:
        assert place.client()._bucket.send(stream, SIZE, "0f" * 16)
    path = f"/v1/uploads/{'0f' * 16}/keep"
    body = {"key": None, "digest": other, "size": SIZE, "direct": True}
    with pytest.raises(StoreError, match="digest"):
        place.connection.json("POST", path, body=body)
    assert place.nothing_staged()
    assert not place.blobs.exists(blob_key(other))
    with pytest.raises(NotFoundError):  # the client sends it again
        place.connection.json("POST", path, body=body)


def test_bytes_changed_after_reading_are_not_stored(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presigned = Presigned(place.blobs)
    place.blobs.put_file(file, STAGED)
    read = presigned._digest_of

    def replaced(staged: str) -> tuple[str, str]:
        found = read(staged)
        place.blobs.put_bytes(b"x" * SIZE, staged)
        return found

    monkeypatch.setattr(presigned, "_digest_of", replaced)
    with pytest.raises(StoreError):
        presigned.keep(STAGED, SIZE, None, digest_of(file))
    assert not place.blobs.exists(blob_key(digest_of(file)))


def test_lost_response_is_repeated(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = place.client()
    whole = client._keep
    kept = []

    def twice(name: str, body: KeepRequest) -> object:
        kept.append(whole(name, body))
        return whole(name, body)

    monkeypatch.setattr(client, "_keep", twice)
    assert client.add_file(file) == kept[0]


def test_busy_server_is_asked_again(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "KEEP_WAITS_S", 0.01)
    answers = []
    json = Connection.json

    def noted(self: Connection, verb: str, path: str, **more: object) -> object:
        answer = json(self, verb, path, **more)  # type: ignore[arg-type]
        if path.endswith("/keep"):
            answers.append(answer)
        return answer

    monkeypatch.setattr(Connection, "json", noted)
    assert place.client().add_file(file).digest == digest_of(file)
    assert answers[0] is None and answers[-1] is not None


def test_failed_keep_is_tried_again_by_a_later_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "KEEP_WAITS_S", 0.0)
    monkeypatch.setattr(uploads, "FAILURE_KEPT_FOR_S", 0.01)
    outcomes: list[Blob | Exception] = [StorageFullError("full"), Blob("k", 1, "sha256:1")]

    def call() -> Blob:
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def scene() -> None:
        keeping = uploads._Keeping()
        assert await keeping.result("name", call) is None
        while keeping._running:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(uploads, "KEEP_WAITS_S", 30.0)
        assert await keeping.result("name", call) == Blob("k", 1, "sha256:1")

    asyncio.run(scene())


def archive_of(file: Path, *, has_checksum: bool = False) -> tuple[Path, str]:
    """Return an archive with these bytes and the key of a snapshot that has them."""
    archive = file.with_name(f"{has_checksum}.tar.zst")
    archive.write_bytes(
        zstandard.ZstdCompressor(level=1, write_checksum=has_checksum).compress(file.read_bytes())
    )
    value = digest_of(file).partition(":")[2]
    return archive, f"snapshots/sha256/{value[:2]}/{value}.tar.zst"


def test_existing_snapshot_is_not_replaced(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.remote.workspace.upload", no_bytes)
    (archive, key), (other, _) = archive_of(file), archive_of(file, has_checksum=True)
    assert place.client().put_file(archive, key).size == place.blobs.size(key)
    before = place.blobs.read(key, 0, SIZE * 2)
    assert before == archive.read_bytes() != other.read_bytes()
    place.client().put_file(other, key)
    assert place.blobs.read(key, 0, SIZE * 2) == before
    assert place.nothing_staged()


def test_snapshot_with_different_bytes_is_refused_and_replaced(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.remote.workspace.upload", no_bytes)
    archive, key = archive_of(file)
    with pytest.raises(SnapshotError, match=r"damaged|something else"):
        place.client().put_file(file, key)
    assert not place.blobs.exists(key) and place.nothing_staged()
    place.blobs.put_bytes(archive.read_bytes()[:-100], key)  # damaged for any reason
    place.client().put_file(archive, key)
    assert place.blobs.read(key, 0, SIZE * 2) == archive.read_bytes()
    assert place.nothing_staged()


def test_the_largest_files_are_copied_in_parts(
    place: Place, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_blobs, "COPIED_AT_ONCE", 6 * MIB)
    blob = place.client().add_file(file)
    assert place.blobs.get_to(blob.key, tmp_path / "back", digest=digest_of(file)).size == SIZE


def test_upload_addresses_are_paged(
    place: Place, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_presigned, "PARTS_TOGETHER", 1)
    monkeypatch.setattr("rayjobs.remote.workspace.upload", no_bytes)
    assert place.client().add_file(file).digest == digest_of(file)


def test_a_bucket_that_the_server_does_not_reach_is_an_error_of_the_store(
    place: Place, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
        unreachable = replace(place.blobs.address, endpoint=endpoint)
    with pytest.raises(StoreUnreachableError):
        Presigned(S3Blobs(unreachable, tmp_path / "s")).parts(STAGED, SIZE)
