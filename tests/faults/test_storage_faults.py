"""Storage refuses, hangs, drops connections or returns wrong data; and the effect on mounts."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs import datastore
from rayjobs.core.files import locked
from rayjobs.datastore import DataInput, Datastore, MemoryCatalogue, mounts
from rayjobs.datastore.backends.s3 import DIGEST_FIELD, S3Backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.errors import (
    DataChanged,
    DataIntegrityError,
    DatastoreUnavailable,
    MountLost,
)
from rayjobs.datastore.inputs import resolve_input
from rayjobs.datastore.manifest import FileEntry
from rayjobs.datastore.materialise import materialise, mounts_root, release, start_node, trouble
from rayjobs.datastore.mountfiles import MountFolder, MountRecord, is_mounted
from rayjobs.injob.identity import identity_of, is_alive, own_identity
from tests.storage.node import node_folder, wait_for
from tests.storage.proxy import Proxy
from tests.storage.server import BUCKET, S3Server, s3_server

__all__ = ["s3_server"]

pytestmark = pytest.mark.storage
CONTENT = os.urandom(300_000)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def backend(s3_server: S3Server, proxy: Proxy, tmp_path: Path) -> S3Backend:
    """A storage behind the proxy, with one file in it."""
    backend = s3_server.backend(endpoint=proxy.endpoint, read_timeout_s="30", attempts="3")
    (tmp_path / "source").write_bytes(CONTENT)
    backend.put(tmp_path / "source", "file")
    return backend


def twice(backend: S3Backend, *, read_timeout_s: float = 30.0) -> S3Backend:
    """The same storage with two tries at most. A short wait is for a server that never responds."""
    return S3Backend(replace(backend.settings, read_timeout_s=read_timeout_s, attempts=2))


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache", spare_bytes=0)


def entry_of(backend: S3Backend, path: str = "file") -> FileEntry:
    file = next(file for file in backend.walk("") if file.path == path)
    return FileEntry(path, "store", path, file.size, file.etag)


# --- the server ---


def test_a_server_that_refuses_is_unavailable(backend: S3Backend, proxy: Proxy) -> None:
    proxy.stop()
    with pytest.raises(DatastoreUnavailable, match="refused, hung or broke off"):
        backend.check()


def test_hanging_server_is_unavailable_and_blocks_nothing(
    backend: S3Backend, proxy: Proxy, cache: NodeCache
) -> None:
    entry = entry_of(backend)
    proxy.mode = "hang"
    with pytest.raises(DatastoreUnavailable):
        cache.ensure(entry, twice(backend, read_timeout_s=0.5))
    assert not cache.has(entry, backend)


def test_busy_server_is_retried_and_then_unavailable(backend: S3Backend, proxy: Proxy) -> None:
    proxy.mode = "503"
    before = proxy.connections
    with pytest.raises(DatastoreUnavailable, match="503"):
        twice(backend).check()
    assert proxy.connections == before + 2


def test_an_answer_that_breaks_off_is_continued(
    backend: S3Backend, proxy: Proxy, cache: NodeCache
) -> None:
    entry = entry_of(backend)
    proxy.mode, proxy.cut_after, proxy.cuts_left = "cut", 100_000, 2
    fresh = S3Backend(backend.settings)
    assert cache.ensure(entry, fresh).path.read_bytes() == CONTENT
    assert proxy.cuts_left <= 0


@pytest.mark.parametrize("after", [0, 1, 300, 5_000, 299_999])
def test_an_answer_that_always_breaks_off_gives_no_file(
    backend: S3Backend, proxy: Proxy, cache: NodeCache, tmp_path: Path, after: int
) -> None:
    entry = entry_of(backend)
    # Every connection ends after this many bytes, so that no retry gets far.
    proxy.mode, proxy.cut_after = "cut", after
    fresh = twice(backend)
    if after == 299_999:  # two responses together contain the whole file
        assert cache.ensure(entry, fresh).path.read_bytes() == CONTENT
        return
    with pytest.raises(DatastoreUnavailable):
        cache.ensure(entry, fresh)
    assert not cache.has(entry, backend)
    assert cache.used_bytes() == 0
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


@pytest.mark.parametrize("after", [0, 1_000, 200_000])
def test_an_upload_that_breaks_off_leaves_nothing_or_the_old(
    backend: S3Backend, proxy: Proxy, tmp_path: Path, after: int
) -> None:
    (tmp_path / "new").write_bytes(CONTENT[::-1])
    proxy.mode, proxy.cut_after = "cut_request", after
    fresh = twice(backend)
    with pytest.raises(DatastoreUnavailable):
        fresh.put(tmp_path / "new", "new")
    with pytest.raises(DatastoreUnavailable):
        fresh.put(tmp_path / "new", "file")
    proxy.mode = "pass"
    again = S3Backend(backend.settings)
    assert [file.path for file in again.walk("")] == ["file"]
    found = again.stat("file")
    assert found is not None
    again.fetch(found, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == CONTENT


# --- the bytes ---


def test_bytes_with_a_wrong_digest_are_not_used(
    backend: S3Backend, cache: NodeCache, tmp_path: Path
) -> None:
    client, prefix = backend.settings.client(), backend.settings.prefix
    client.put_object(
        Bucket=BUCKET, Key=f"{prefix}/bad", Body=b"rotten", Metadata={DIGEST_FIELD: "0" * 64}
    )
    entry = entry_of(backend, "bad")
    with pytest.raises(DataIntegrityError, match="was not used"):
        cache.ensure(entry, backend)
    assert not cache.has(entry, backend)
    with pytest.raises(DataIntegrityError):
        Datastore.from_record(_record(backend)).download(tmp_path / "d", show_progress=False)
    assert not (tmp_path / "d" / "bad").exists()


def _record(backend: S3Backend) -> datastore.DatastoreRecord:
    settings = backend.settings
    names = ("bucket", "prefix", "endpoint", "access_key_env", "secret_key_env")
    return datastore.DatastoreRecord(
        "store", "s3", {name: str(getattr(settings, name)) for name in names}
    )


@pytest.mark.parametrize("ours", [True, False])
def test_bytes_damaged_in_transit_are_fetched_again(
    backend: S3Backend, proxy: Proxy, cache: NodeCache, ours: bool, tmp_path: Path
) -> None:
    content = b"MARKER-abcdefgh-MARKER"
    if ours:
        (tmp_path / "f").write_bytes(content)
        backend.put(tmp_path / "f", "marked")
    else:
        key = f"{backend.settings.prefix}/marked"
        backend.settings.client().put_object(Bucket=BUCKET, Key=key, Body=content)
    entry = entry_of(backend, "marked")
    proxy.flip = b"abcdefgh"
    cached = cache.ensure(entry, backend)
    assert proxy.flip == b""
    assert cached.path.read_bytes() == content


def test_an_object_that_was_replaced_is_not_taken_for_the_version(
    backend: S3Backend, cache: NodeCache, tmp_path: Path
) -> None:
    entry = entry_of(backend)
    (tmp_path / "other").write_bytes(CONTENT[::-1])
    backend.put(tmp_path / "other", "file")
    with pytest.raises(DataChanged):
        cache.ensure(entry, backend)
    assert not cache.has(entry, backend)


FETCHER = """
import sys
from pathlib import Path
from rayjobs.datastore import DatastoreRecord
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.manifest import FileEntry
import json
record, entry, root = json.loads(sys.argv[1])
NodeCache(Path(root), spare_bytes=0).ensure(
    FileEntry(*entry), open_backend(DatastoreRecord.from_json(record))
)
"""


def test_killed_fetch_leaves_no_usable_file(
    backend: S3Backend, proxy: Proxy, cache: NodeCache, tmp_path: Path
) -> None:
    import json

    entry = entry_of(backend)
    values = [entry.path, entry.datastore, entry.key, entry.size, entry.etag]
    argument = json.dumps([_record(backend).to_json(), values, str(tmp_path / "cache")])
    proxy.mode = "hang"
    before = proxy.connections
    fetcher = subprocess.Popen(
        [sys.executable, "-c", FETCHER, argument], cwd=Path(datastore.__file__).parents[2]
    )
    wait_for(lambda: proxy.connections > before, "the fetch")
    fetcher.kill()
    fetcher.communicate()
    proxy.mode = "pass"
    assert not cache.has(entry, backend)
    assert cache.ensure(entry, S3Backend(backend.settings)).path.read_bytes() == CONTENT


# --- mounts ---


@pytest.fixture
def node(short_path: Path) -> Iterator[Path]:
    yield from node_folder(short_path / "node")


@pytest.fixture
def source(backend: S3Backend) -> DataInput:
    catalogue = MemoryCatalogue()
    record = datastore.DatastoreRecord(
        "store",
        "s3",
        {**_record(backend).settings, "read_timeout_s": "30", "attempts": "2"},
    )
    catalogue.add_datastore(record)
    return resolve_input("data=store", catalogue)


def server_of(folder: str) -> int:
    record = MountFolder(Path(folder)).read()
    assert record is not None
    assert record.server is not None
    return record.server.pid


def test_server_lost_during_a_mount_read_is_the_reported_cause(
    source: DataInput, proxy: Proxy, node: Path, tmp_path: Path
) -> None:
    done = materialise(source, node, into=tmp_path / "in")
    assert done.how == "mounted"
    proxy.stop()
    with pytest.raises(OSError) as caught:
        (Path(done.path) / "file").read_bytes()
    assert caught.value.errno == errno.EIO
    cause = trouble(done)
    assert isinstance(cause, DatastoreUnavailable)
    assert "file" in str(cause)
    release(done)


def test_a_killed_mount_process_is_reported_unmounted_and_replaced(
    source: DataInput, node: Path, tmp_path: Path
) -> None:
    done = materialise(source, node, into=tmp_path / "one")
    os.kill(server_of(done.mount_folder), signal.SIGKILL)
    wait_for(lambda: trouble(done) is not None, "the notice of the mount's death")
    assert isinstance(trouble(done), MountLost)
    with pytest.raises(OSError) as caught:
        (Path(done.path) / "file").read_bytes()
    # "Not connected", or "aborted" while the kernel is still closing: never an empty folder.
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    other = materialise(source, node, into=tmp_path / "two")
    assert (Path(other.path) / "file").read_bytes() == CONTENT
    assert trouble(other) is None
    release(done)
    assert not is_mounted(Path(done.mount_folder) / "files")
    assert (Path(other.path) / "file").read_bytes() == CONTENT
    release(other)
    assert not is_mounted(Path(other.mount_folder) / "files")


def test_a_stopped_mount_process_is_reported_and_does_not_hang_the_release(
    source: DataInput, node: Path, tmp_path: Path
) -> None:
    done = materialise(source, node, into=tmp_path / "one")
    os.kill(server_of(done.mount_folder), signal.SIGSTOP)
    wait_for(lambda: isinstance(trouble(done), MountLost), "the notice of the stop")
    other = materialise(source, node, into=tmp_path / "two")
    assert (Path(other.path) / "file").read_bytes() == CONTENT
    release(done)
    release(other)
    assert not is_mounted(Path(done.mount_folder) / "files")


def test_killed_keeper_does_not_unmount(source: DataInput, node: Path, tmp_path: Path) -> None:
    done = materialise(source, node, into=tmp_path / "in")
    record = MountFolder(Path(done.mount_folder)).read()
    assert record is not None
    assert record.keeper is not None
    os.kill(record.keeper.pid, signal.SIGKILL)
    keeper = record.keeper
    wait_for(lambda: not is_alive(keeper), "the keeper's end")
    assert (Path(done.path) / "file").read_bytes() == CONTENT
    release(done)
    assert not is_mounted(Path(done.mount_folder) / "files")


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_a_mount_whose_user_cannot_be_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    folder = MountFolder(tmp_path / "mounts" / "key" / "g1")
    (folder.folder / "users").mkdir(parents=True)
    folder.add_user("token", own_identity())

    def refused(path: Path, *_arguments: object) -> str:
        raise OSError(error, os.strerror(error), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        assert folder.users() == ["token"]
        assert mounts.reap(tmp_path / "mounts") == []
    assert folder.users() == ["token"]


@pytest.mark.parametrize("server_too", [True, False])
def test_leftover_mount_is_removed_at_the_next_start(
    source: DataInput, node: Path, tmp_path: Path, server_too: bool
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    identity = identity_of(owner.pid)
    done = materialise(source, node, into=tmp_path / "in", owner=identity)
    folder = MountFolder(Path(done.mount_folder))
    record = folder.read()
    assert record is not None
    _kill_all(record, server_too)
    owner.kill()
    owner.communicate()
    assert is_mounted(folder.point)
    assert start_node(node) == [folder.point]
    assert not is_mounted(folder.point)
    assert list(mounts_root(node).glob("*/g*")) == []


def _kill_all(record: MountRecord, server_too: bool) -> None:
    processes = [record.keeper, record.server] if server_too else [record.keeper]
    for process in processes:
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda process=process: not is_alive(process), "the end")  # type: ignore[misc]


def test_failing_mount_downloads_and_reports_the_reason(
    source: DataInput, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\nexit 3\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(datastore.mounts, "UP_LIMIT_S", 1.0)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    done = materialise(source, node, into=tmp_path / "in")
    monkeypatch.undo()
    assert done.how == "downloaded"
    assert "did not start" in done.said[0]
    assert (Path(done.path) / "file").read_bytes() == CONTENT
    assert list(mounts_root(node).glob("*/g*")) == []
    release(done)


def test_removed_lock_file_is_recreated_and_guards(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", remove=True), socket.socket():
        assert (tmp_path / "lock").exists()
    with locked(tmp_path / "lock", remove=True):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
