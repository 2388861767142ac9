"""Blobs in a folder and in S3 fulfill the contract of a blob store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rayjobs.core.errors import StoreError
from rayjobs.workspace import blobs as module
from rayjobs.workspace.blobs import BlobStore, FolderBlobs
from tests.contract.blob_contract import BlobContract, content
from tests.storage.blobs import blobs_in, given_keys
from tests.storage.server import S3Server, s3_server

__all__ = ["given_keys", "s3_server"]


class TestBlobsInAFolder(BlobContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return FolderBlobs(tmp_path / "blobs")

    def test_blobs_are_readable_by_their_owner_only(self, tmp_path: Path) -> None:
        mask = os.umask(0)
        try:
            FolderBlobs(tmp_path / "blobs").put_bytes(b"x", "a/b")
        finally:
            os.umask(mask)
        assert stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "blobs" / "a" / "b").stat().st_mode) == 0o600

    def test_partially_written_blob_is_never_visible(self, tmp_path: Path) -> None:
        class Broken(Exception):
            pass

        class Source:
            def __init__(self) -> None:
                self.left = [b"first half"]

            def read(self, _: int) -> bytes:
                if self.left:
                    return self.left.pop()
                raise Broken

        blobs = FolderBlobs(tmp_path / "blobs")
        blobs.put_bytes(b"before", "a")
        with pytest.raises(Broken):
            blobs._put(Source(), None, lambda _: ("a", blobs.root / "a"), "a")  # type: ignore[arg-type]
        assert content(blobs, "a") == b"before"
        assert list((blobs.root / module.TEMPORARY).iterdir()) == []

    def test_leftovers_of_dead_processes_are_dropped_after_a_day(self, tmp_path: Path) -> None:
        blobs = FolderBlobs(tmp_path / "blobs")
        old, new = (blobs.root / module.TEMPORARY / name for name in ("old", "new"))
        for path in (old, new):
            path.write_bytes(b"half")
        long_ago = new.stat().st_mtime - module.ABANDONED_S - 60
        os.utime(old, (long_ago, long_ago))
        FolderBlobs(tmp_path / "blobs")
        assert (old.exists(), new.exists()) == (False, True)
        assert list(blobs.list()) == []

    def test_a_key_below_another_blob_is_refused(self, tmp_path: Path) -> None:
        blobs = FolderBlobs(tmp_path / "blobs")
        blobs.put_bytes(b"x", "a")
        with pytest.raises(StoreError):
            blobs.put_bytes(b"y", "a/b")
        with pytest.raises(StoreError):
            blobs.put_bytes(b"y", "a/b/c")
        assert list(blobs.list()) == ["a"]


@pytest.mark.storage
class TestBlobsInS3(BlobContract):
    @pytest.fixture
    def blobs(self, s3_server: S3Server, given_keys: None, tmp_path: Path) -> BlobStore:
        return blobs_in(s3_server, tmp_path / "scratch")
