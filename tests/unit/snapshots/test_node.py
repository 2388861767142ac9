"""A node's snapshots: unpacked once by the first caller, copied for each attempt."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from rayjobs.core.errors import PrepareError, SnapshotError
from rayjobs.core.text import size_text
from rayjobs.snapshots import NodeSnapshots, Snapshot, blob_key, unpack
from rayjobs.workspace.blobs import FolderBlobs
from tests.unit.snapshots.conftest import Packer


@pytest.fixture
def snapshot(packed: Packer, source: Path) -> Snapshot:
    (source / "lib").mkdir()
    (source / "lib" / "big.bin").write_bytes(os.urandom(300_000))
    (source / "lib" / "run.sh").write_text("true")
    (source / "lib" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("lib/run.sh")
    (source / "empty").mkdir()
    return packed()


def listing(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): path.readlink()
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o777)
        if path.is_file()
        else "folder"
        for path in root.rglob("*")
    }


PROGRAM = """
import sys
from pathlib import Path
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.snapshots import NodeSnapshots, blob_key
node, blobs, opened, digest = sys.argv[1:]
def open_blob():
    with open(opened, "a") as file:
        file.write("opened\\n")
    return FolderBlobs(blobs).open(blob_key(digest))
sys.stdin.readline()
assert (NodeSnapshots(Path(node)).ensure(digest, open_blob) / "train.py").is_file()
"""


@pytest.mark.long
def test_concurrent_processes_unpack_once(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    places = [str(tmp_path / name) for name in ("node", "blobs", "opened")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *places, snapshot.digest],
            stdin=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=180)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert (tmp_path / "opened").read_text() == "opened\n"


def test_concurrent_threads_unpack_once(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    node = NodeSnapshots(tmp_path / "node")
    opened: list[int] = []

    def open_blob() -> BinaryIO:
        opened.append(1)
        return blobs.open(blob_key(snapshot.digest))

    threads = [
        threading.Thread(target=node.ensure, args=(snapshot.digest, open_blob)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert opened == [1]


@pytest.mark.parametrize("has_clones", [True, False])
@pytest.mark.long
def test_copy_of_an_attempt_is_complete_and_private(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs, source: Path, has_clones: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not has_clones:

        def refuse(*_arguments: object) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse)
    node = NodeSnapshots(tmp_path / "node")
    shared = node.ensure(snapshot.digest, lambda: blobs.open(blob_key(snapshot.digest)))
    before = listing(shared)
    work = tmp_path / "attempt" / "work"
    node.copy_into(snapshot.digest, work)
    assert listing(work) == before
    assert {name: value for name, value in before.items() if name != "train.py"} == {
        name: value for name, value in listing(source).items() if name != "train.py"
    }
    (work / "train.py").write_text("changed")
    (work / "lib" / "run.sh").unlink()
    (work / "lib" / "new").touch()
    assert listing(shared) == before


@pytest.mark.long
def test_a_copy_needs_the_snapshot_and_an_empty_folder(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    node = NodeSnapshots(tmp_path / "node")
    with pytest.raises(SnapshotError, match="not unpacked"):
        node.copy_into(snapshot.digest, tmp_path / "work")
    node.ensure(snapshot.digest, lambda: blobs.open(blob_key(snapshot.digest)))
    (tmp_path / "work" / "old").mkdir()
    with pytest.raises(SnapshotError, match="not empty"):
        node.copy_into(snapshot.digest, tmp_path / "work")


def test_nearly_full_disk_error_states_the_reserve(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once said "needs 6.5 KiB …, which has 39.4 MiB free", without mentioning the reserve."""
    node = NodeSnapshots(tmp_path / "node")
    monkeypatch.setattr(unpack, "RESERVE", 1 << 60)
    with pytest.raises(PrepareError) as refused:
        node.ensure(snapshot.digest, lambda: blobs.open(blob_key(snapshot.digest)))
    assert refused.value.failure_class == "storage"
    assert f"has to leave {size_text(1 << 60)} of its disk free" in str(refused.value)
    assert "set RAYJOBS_HOME" in str(refused.value)


def test_snapshot_left_by_a_crashed_machine_is_unpacked_again(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    node = NodeSnapshots(tmp_path / "node")

    def open_blob() -> BinaryIO:
        return blobs.open(blob_key(snapshot.digest))

    folder = node.ensure(snapshot.digest, open_blob)
    note = folder.with_name(folder.name + ".json")
    (folder / "train.py").write_bytes(b"")  # what a crash may leave of an unsynced file
    note.write_text(json.dumps({"boot_id": "an earlier boot"}))
    (node.root / f"tmp-{folder.name}-1-dead").mkdir()
    assert (node.ensure(snapshot.digest, open_blob) / "train.py").read_bytes()
    note.unlink()  # the process died before it wrote the note
    (folder / "train.py").write_bytes(b"")
    assert (node.ensure(snapshot.digest, open_blob) / "train.py").read_bytes()
    assert not list(node.root.glob("tmp-*"))


def test_a_download_that_cannot_be_rewound_is_accepted(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    class Download(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_arguments: int) -> int:
            raise io.UnsupportedOperation

    with blobs.open(blob_key(snapshot.digest)) as file:
        download = Download(file.read())
    folder = NodeSnapshots(tmp_path / "node").ensure(snapshot.digest, lambda: download)
    assert (folder / "train.py").is_file()
    assert download.closed


def test_a_failed_download_does_not_block_the_next(
    snapshot: Snapshot, tmp_path: Path, blobs: FolderBlobs
) -> None:
    node = NodeSnapshots(tmp_path / "node")

    def fail() -> BinaryIO:
        raise ConnectionResetError("reset by peer")

    with pytest.raises(ConnectionResetError):
        node.ensure(snapshot.digest, fail)
    node.ensure(snapshot.digest, lambda: blobs.open(blob_key(snapshot.digest)))


@pytest.mark.parametrize("digest", ["", "sha256:../../etc", "md5:aa", "sha256:" + "A" * 64])
def test_invalid_digest_reaches_no_file(tmp_path: Path, digest: str) -> None:
    with pytest.raises(SnapshotError, match="digest"):
        NodeSnapshots(tmp_path / "node").ensure(digest, lambda: tmp_path / "x")
    assert not (tmp_path / "node").exists()
