"""The contract of blob stores; each implementation's test class provides `blobs`."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, StoreError, UsageError
from rayjobs.workspace.blobs import BlobStore, blob_key


def digest_of(data: bytes) -> str:
    """Return the digest in the form of blobs and rows."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def content(blobs: BlobStore, key: str) -> bytes:
    """Return all bytes of a blob."""
    with blobs.open(key) as file:
        return file.read()


class BlobContract:
    """Inherited by `Test…` classes that define the fixture `blobs`."""

    @pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
    def test_bytes_come_back_as_they_were(
        self, blobs: BlobStore, tmp_path: Path, size: int
    ) -> None:
        data = bytes(n % 251 for n in range(size))
        (tmp_path / "source").write_bytes(data)
        blob = blobs.put_file(tmp_path / "source", "runs/a b/ü.bin")
        assert (blob.key, blob.size, blob.digest) == ("runs/a b/ü.bin", size, digest_of(data))
        assert blobs.exists(blob.key)
        assert blobs.size(blob.key) == size
        with blobs.open(blob.key) as file:
            assert file.read() == data
            file.seek(size // 2)
            assert file.read() == data[size // 2 :]
        assert blobs.read(blob.key, size // 2, 1000) == data[size // 2 :][:1000]
        assert blobs.read(blob.key, size, 10) == b""
        assert blobs.get_to(blob.key, tmp_path / "copy", digest=blob.digest) == blob
        assert (tmp_path / "copy").read_bytes() == data

    def test_a_put_replaces(self, blobs: BlobStore) -> None:
        blobs.put_bytes(b"one", "logs/a")
        assert blobs.put_bytes(b"other", "logs/a").size == 5
        assert content(blobs, "logs/a") == b"other"

    def test_equal_bytes_are_kept_once(self, blobs: BlobStore, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(b"same")
        first, second = blobs.add_file(tmp_path / "a"), blobs.add_file(tmp_path / "b")
        assert first == second
        assert first.key == blob_key(digest_of(b"same"))
        assert blobs.add_file(tmp_path / "b", digest=first.digest) == first
        assert list(blobs.list()) == [first.key]

    @pytest.mark.parametrize("damaged", [b"sam", b"SAME"])
    def test_damaged_bytes_are_written_again(
        self, blobs: BlobStore, tmp_path: Path, damaged: bytes
    ) -> None:
        (tmp_path / "a").write_bytes(b"same")
        key = blobs.add_file(tmp_path / "a").key
        for digest in (None, digest_of(b"same")):
            blobs.put_bytes(damaged, key)
            assert blobs.add_file(tmp_path / "a", digest=digest).key == key
            assert content(blobs, key) == b"same"

    def test_bytes_with_another_digest_are_refused(self, blobs: BlobStore, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"changed")
        blobs.put_bytes(b"before", "a")
        expected = digest_of(b"as announced")
        with pytest.raises(StoreError, match=expected):
            blobs.put_file(tmp_path / "source", "a", digest=expected)
        with pytest.raises(StoreError, match=expected):
            blobs.add_file(tmp_path / "source", digest=expected)
        (tmp_path / "target").write_bytes(b"mine")
        with pytest.raises(StoreError, match=expected):
            blobs.get_to("a", tmp_path / "target", digest=expected)
        assert content(blobs, "a") == b"before"
        assert (tmp_path / "target").read_bytes() == b"mine"
        assert list(blobs.list()) == ["a"]
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
            "source",
            "target",
        ]

    def test_keys_are_listed_by_prefix(self, blobs: BlobStore) -> None:
        for key in ("a/b/1", "a/b2", "a/c/2", "b"):
            blobs.put_bytes(b"x", key)
        assert list(blobs.list()) == ["a/b/1", "a/b2", "a/c/2", "b"]
        assert list(blobs.list("a/b")) == ["a/b/1", "a/b2"]
        assert list(blobs.list("a/b/")) == ["a/b/1"]
        assert list(blobs.list("none/")) == []

    def test_a_blob_is_deleted_once(self, blobs: BlobStore) -> None:
        blobs.put_bytes(b"x", "a/b")
        assert blobs.delete("a/b")
        assert not blobs.delete("a/b")
        assert not blobs.exists("a/b")
        blobs.put_bytes(b"y", "a/b")
        assert content(blobs, "a/b") == b"y"

    def test_missing_blob_is_named(self, blobs: BlobStore, tmp_path: Path) -> None:
        for call in (
            lambda: blobs.open("no/such"),
            lambda: blobs.size("no/such"),
            lambda: blobs.get_to("no/such", tmp_path / "target"),
        ):
            with pytest.raises(NotFoundError, match="no/such"):
                call()
        assert not blobs.exists("no/such")
        with pytest.raises(NotFoundError, match="absent"):
            blobs.put_file(tmp_path / "absent", "a")
        assert not (tmp_path / "target").exists()

    @pytest.mark.parametrize(
        "key", ["", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", ".", "a\0b", "x" * 256]
    )
    def test_keys_stay_inside(self, blobs: BlobStore, key: str) -> None:
        for call in (
            lambda: blobs.put_bytes(b"x", key),
            lambda: blobs.open(key),
            lambda: blobs.delete(key),
            lambda: blobs.exists(key),
        ):
            with pytest.raises(UsageError, match="not a blob key"):
                call()

    @pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "deadbeef", "a/b:00"])
    def test_only_digests_make_keys(self, digest: str) -> None:
        with pytest.raises(UsageError, match="not a digest"):
            blob_key(digest)

    def test_concurrent_writers_may_store_the_same_blob(
        self, blobs: BlobStore, tmp_path: Path
    ) -> None:
        data = b"0123456789" * 50_000
        (tmp_path / "source").write_bytes(data)
        problems: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    blob = blobs.add_file(tmp_path / "source")
                    blobs.put_file(tmp_path / "source", "shared/name")
                    for key in (blob.key, "shared/name"):
                        with blobs.open(key) as file:
                            assert digest_of(file.read()) == blob.digest
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert list(blobs.list()) == sorted([blob_key(digest_of(data)), "shared/name"])
