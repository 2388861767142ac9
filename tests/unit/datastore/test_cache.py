"""The node cache: files are verified, fetched once, kept while in use, and limited in size."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayjobs.datastore.backends import Backend, StoredFile
from rayjobs.datastore.backends.base import CountBytes, Folder, ignore_bytes
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import CacheFull, DataIntegrityError, DatastoreUnavailable
from rayjobs.datastore.manifest import FileEntry


class Server(Backend):
    """A storage that records its reads and returns the bytes that a test sets."""

    def __init__(self) -> None:
        self.where = "test"
        self.files: dict[str, bytes] = {}
        self.given: list[str] = []
        self.down = False
        self.hold: threading.Event | None = None

    def entry(self, key: str, content: bytes, *, known: bool = True) -> FileEntry:
        self.files[key] = content
        digest = digest_of(content) if known else ""
        return FileEntry(key, "test", key, len(content), f"etag-{hash(content)}", digest)

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        if self.hold is not None:
            assert self.hold.wait(150)
        if self.down:
            to.write_bytes(self.files[file.path][:2])
            raise DatastoreUnavailable("down")
        self.given.append(file.path)
        to.write_bytes(self.files[file.path])
        count(file.size)
        return digest_of(self.files[file.path])

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        raise AssertionError("the cache only fetches")

    def local_path(self, path: str) -> None:
        return None

    def stat(self, path: str) -> StoredFile | None:
        raise AssertionError("the cache only fetches")

    def walk(self, path: str) -> Iterator[StoredFile]:
        raise AssertionError("the cache only fetches")

    def children(self, path: str) -> list[StoredFile | Folder]:
        raise AssertionError("the cache only fetches")

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        raise AssertionError("the cache only fetches")

    def remove(self, path: str) -> None:
        raise AssertionError("the cache only fetches")

    def check(self) -> None:
        raise AssertionError("the cache only fetches")


@pytest.fixture
def server() -> Server:
    return Server()


def cache_at(path: Path, max_bytes: int | None = None) -> NodeCache:
    return NodeCache(path / "cache", max_bytes=max_bytes, spare_bytes=0)


@pytest.mark.parametrize("known", [True, False])
def test_a_file_is_fetched_once(server: Server, tmp_path: Path, known: bool) -> None:
    entry = server.entry("a", b"content", known=known)
    first = cache_at(tmp_path).ensure(entry, server)
    again = cache_at(tmp_path).ensure(entry, server)
    assert (first.fetched, again.fetched) == (True, False)
    assert again.path.read_bytes() == b"content"
    assert again.digest == digest_of(b"content")
    assert server.given == ["a"]


def test_the_same_bytes_are_kept_once(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    first = cache.ensure(server.entry("a", b"same", known=False), server)
    second = cache.ensure(server.entry("b", b"same", known=False), server)
    assert first.path == second.path
    assert cache.used_bytes() == 4


def test_a_repeated_fetch_that_fails_at_its_index_frees_its_space_once(
    server: Server, tmp_path: Path
) -> None:
    cache = NodeCache(tmp_path)
    cache.ensure(server.entry("a", b"same"), server)
    (tmp_path / "index").rmdir()
    with pytest.raises(CacheFull, match="cannot write to the cache"):
        cache.ensure(server.entry("b", b"same", known=False), server)
    assert int((tmp_path / "usage").read_text()) == cache.used_bytes() == 4


def test_a_new_version_is_another_file(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    old = server.entry("a", b"old", known=False)
    assert cache.ensure(old, server).path.read_bytes() == b"old"
    new = server.entry("a", b"new", known=False)
    assert cache.ensure(new, server).path.read_bytes() == b"new"
    assert cache.ensure(old, server).path.read_bytes() == b"old"


def test_concurrent_requests_fetch_once(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    server.hold = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(lambda: cache_at(tmp_path).ensure(entry, server)) for _ in range(8)]
        server.hold.set()
        found = [future.result(150) for future in requests]
    assert server.given == ["a"]
    assert sum(cached.fetched for cached in found) == 1


def test_wrong_bytes_are_never_visible(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    server.files["a"] = b"tnetnoc"
    cache = cache_at(tmp_path)
    with pytest.raises(DataIntegrityError):
        cache.ensure(entry, server)
    assert not cache.has(entry, server)
    assert cache.used_bytes() == 0
    assert list((tmp_path / "cache" / "partial").iterdir()) == []
    server.files["a"] = b"content"
    assert cache.ensure(entry, server).fetched


def test_a_broken_fetch_leaves_nothing(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    cache = cache_at(tmp_path, max_bytes=10)
    server.down = True
    for _ in range(5):  # over the limit together, unless each releases its reservation
        with pytest.raises(DatastoreUnavailable):
            cache.ensure(entry, server)
    assert list((tmp_path / "cache" / "partial").iterdir()) == []
    server.down = False
    assert cache.ensure(entry, server).fetched


def test_links_share_the_bytes(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    cache = cache_at(tmp_path)
    cache.link(entry, server, tmp_path / "x" / "one")
    cache.link(entry, server, tmp_path / "two")
    assert (tmp_path / "x" / "one").samefile(tmp_path / "two")
    assert os.access(tmp_path / "two", os.R_OK)


def test_a_copy_is_private(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    cache = cache_at(tmp_path)
    cache.copy(entry, server, tmp_path / "x" / "mine")
    cache.copy(entry, server, tmp_path / "shut", mode=0o444)
    assert server.given == ["a"]
    assert (tmp_path / "x" / "mine").stat().st_nlink == 1
    assert (tmp_path / "shut").stat().st_mode & 0o777 == 0o444
    (tmp_path / "x" / "mine").write_bytes(b"CONTENT")
    again = cache.ensure(entry, server)
    assert (again.fetched, again.path.read_bytes()) == (False, b"content")
    assert (tmp_path / "shut").read_bytes() == b"content"


def test_eviction_removes_copied_files_only(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path, max_bytes=10)
    cache.copy(server.entry("a", b"1234567890"), server, tmp_path / "mine")
    cache.copy(server.entry("b", b"0987654321"), server, tmp_path / "yours")
    assert cache.used_bytes() == 10
    assert (tmp_path / "mine").read_bytes() == b"1234567890"


def test_a_file_its_user_wrote_to_is_fetched_again(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    cache = cache_at(tmp_path)
    cache.link(entry, server, tmp_path / "mine")
    (tmp_path / "mine").chmod(0o644)
    (tmp_path / "mine").write_bytes(b"CONTENT")
    os.utime(tmp_path / "mine", ns=(1, 1))
    again = cache.ensure(entry, server)
    assert again.fetched
    assert again.path.read_bytes() == b"content"
    assert (tmp_path / "mine").read_bytes() == b"CONTENT"


def test_a_lost_seal_is_made_again_from_the_bytes(server: Server, tmp_path: Path) -> None:
    entry = server.entry("a", b"content")
    cache = cache_at(tmp_path)
    cached = cache.ensure(entry, server)
    cached.path.with_name(cached.path.name + ".seal").write_text('{"half')
    assert not cache.ensure(entry, server).fetched


def test_least_recently_used_file_is_evicted_first(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path, max_bytes=10)
    old, used, new = (server.entry(key, key.encode() * 4) for key in "abc")
    for entry in (old, used):
        cache.ensure(entry, server)
    for age, entry in ((2000, old), (1000, used)):
        path = cache.ensure(entry, server).path
        os.utime(path.with_name(path.name + ".seal"), (1e9 - age, 1e9 - age))
    cache.ensure(new, server)
    assert [cache.has(entry, server) for entry in (old, used, new)] == [False, True, True]
    assert cache.used_bytes() == 8


def test_files_in_use_stay_and_the_cache_limit_holds(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path, max_bytes=10)
    held, new = server.entry("a", b"a" * 8), server.entry("b", b"b" * 8)
    cache.link(held, server, tmp_path / "mine")
    with pytest.raises(CacheFull, match="in use"):
        cache.ensure(new, server)
    assert cache.has(held, server)
    (tmp_path / "mine").unlink()
    assert cache.ensure(new, server).fetched
    assert not cache.has(held, server)


def test_an_open_file_outlives_its_removal(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path, max_bytes=10)
    handle = cache.open(server.entry("a", b"a" * 8), server)
    try:
        cache.ensure(server.entry("b", b"b" * 8), server)
        assert os.pread(handle, 8, 0) == b"a" * 8
    finally:
        os.close(handle)


def test_partial_fetch_of_a_dead_process_is_removed(server: Server, tmp_path: Path) -> None:
    cache = cache_at(tmp_path, max_bytes=10)
    dead = tmp_path / "cache" / "partial" / "abc"
    dead.write_bytes(b"x" * 9)
    dead.with_suffix(".need").write_text("9")
    cache.ensure(server.entry("a", b"a" * 8), server)
    cache.ensure(server.entry("b", b"b" * 8), server)
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


def test_running_fetch_is_never_removed(server: Server, tmp_path: Path) -> None:
    """Off switch: `_is_locked` returns False.

    The pid of a fetch in another PID namespace is unknown here.
    """
    cache = cache_at(tmp_path, max_bytes=20)
    claim = cache._reserve(9, tmp_path / "cache" / "partial" / "abc.need")
    try:
        (tmp_path / "cache" / "partial" / "abc").write_bytes(b"x" * 9)
        cache.ensure(server.entry("a", b"a" * 8), server)
        cache.ensure(server.entry("b", b"b" * 8), server)  # evicts a
        left = sorted(path.name for path in (tmp_path / "cache" / "partial").iterdir())
        assert left == ["abc", "abc.need"]
    finally:
        os.close(claim)


def test_locks_leave_no_files(server: Server, tmp_path: Path) -> None:
    cache_at(tmp_path).ensure(server.entry("a", b"a"), server)
    assert list((tmp_path / "cache" / "locks").iterdir()) == []
