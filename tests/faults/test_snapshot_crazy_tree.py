"""Fault 37: a source directory with every kind of file that a file system can have."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots import Limits, NodeSnapshots, Snapshot, blob_key, pack
from rayjobs.workspace.blobs import FolderBlobs

pytestmark = pytest.mark.timeout(600)  # some run several processes, each with its own limit


def packed(source: Path, blobs: FolderBlobs, **options: object) -> Snapshot:
    return pack(source, blobs_put=blobs.put_file, blobs_has=blobs.exists, **options)  # type: ignore[arg-type]


@pytest.fixture
def crazy(short_path: Path) -> Path:
    root = short_path / "src"
    root.mkdir()
    (root / "train.py").write_text("print('hello')")
    os.mkfifo(root / "pipe")
    os.mkfifo(root / "script.py")
    os.mkfifo(os.fsencode(root) + b"/pipe-\x1b[31m-\xff")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    (root / "loop").symlink_to(".")
    (root / "up").symlink_to("../src")
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "self").symlink_to("self")
    (root / "null").symlink_to("/dev/null")
    (root / "zero").symlink_to("/dev/zero")
    (root / "proc").symlink_to("/proc/self")
    (root / "to-pipe").symlink_to("pipe")
    (root / "gone").symlink_to("nothing/here")
    os.mkdir(os.fsencode(root) + b"/bytes-\xff\xfe")
    Path(os.fsdecode(os.fsencode(root) + b"/bytes-\xff\xfe/\x80.py")).write_text("1")
    for name in (
        "new\nline.py",
        "tab\t",
        " space ",
        "-rf",
        "\u202eright",
        "'quote\"",
        "back\\slash",
    ):
        (root / name).write_text(name)
    (root / ("n" * 255)).write_text("long")
    deep = root
    for _ in range(60):
        deep = deep / ("d" * 20)
        deep.mkdir()
    (deep / "bottom.py").write_text("1")
    (root / "only-me").write_text("1")
    (root / "only-me").chmod(0o200 if os.geteuid() == 0 else 0o600)
    if os.geteuid() == 0:
        try:
            os.mknod(root / "device", 0o20666, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pass  # a container without that right: the links to devices remain
    return root


def test_pathological_tree_is_packed_and_omissions_are_reported(
    crazy: Path, tmp_path: Path
) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    results: list[Snapshot] = []
    # In a thread: a packer that hangs on a FIFO fails here, not at the run's time limit.
    thread = threading.Thread(target=lambda: results.append(packed(crazy, blobs)), daemon=True)
    thread.start()
    thread.join(200)
    assert results, "still packing after 60 s"
    (snapshot,) = results
    names = {entry.path for entry in snapshot.manifest}
    text = "\n".join(snapshot.warnings)
    for special in ("pipe (FIFO)", "script.py (FIFO)", "socket (socket)"):
        assert special in text
    if (crazy / "device").exists():
        assert "device (device)" in text
    for gone in ("a", "b", "self", "null", "zero", "proc", "pipe", "socket", "script.py"):
        assert gone not in names
    assert {"loop", "up", "gone", "new\nline.py", "-rf", "n" * 255} <= names
    assert text.encode()  # can be printed, for any bytes in the names
    again = packed(crazy, blobs)
    assert again.digest == snapshot.digest
    node = NodeSnapshots(tmp_path / "node")
    node.ensure(snapshot.digest, lambda: blobs.open(blob_key(snapshot.digest)))
    node.copy_into(snapshot.digest, tmp_path / "work")
    found = {os.path.relpath(os.path.join(folder, name), tmp_path / "work")
             for folder, folders, files in os.walk(tmp_path / "work")
             for name in (*folders, *files)}  # fmt: skip
    assert found == names


def test_a_huge_file_is_refused_by_its_size_alone(crazy: Path, tmp_path: Path) -> None:
    with (crazy / "model.pt").open("wb") as file:
        file.truncate(1024**4)  # sparse: reading it would take an hour
    with pytest.raises(SnapshotError, match=r"(?s)1 TiB.*/model\.pt"):
        packed(crazy, FolderBlobs(tmp_path / "blobs"))


def test_tree_far_above_the_limit_is_not_walked_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(20):
        (tmp_path / "src" / f"d{folder}").mkdir(parents=True)
        for file in range(20):
            (tmp_path / "src" / f"d{folder}" / f"f{file}").touch()
    with pytest.raises(SnapshotError, match="more than"):
        packed(tmp_path / "src", FolderBlobs(tmp_path / "blobs"), limits=Limits(files=5))


@pytest.mark.parametrize("named", ["script.py", "socket", "null", "a"])
def test_entry_script_that_is_not_a_file_is_refused(
    crazy: Path, tmp_path: Path, named: str
) -> None:
    with pytest.raises(SnapshotError, match="plain file"):
        packed(crazy, FolderBlobs(tmp_path / "blobs"), entry=named)


PROGRAM = """
import sys
from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots import pack
try:
    pack(sys.argv[1], blobs_put=lambda path, key: sys.exit("stored"))
except SnapshotError as error:
    print(error)
"""


def _without_rights() -> None:
    """Give up the right to read what permissions forbid, which root has; takes effect at exec."""
    library = ctypes.CDLL(None, use_errno=True)
    for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if library.prctl(24, right, 0, 0, 0):  # PR_CAPBSET_DROP
            os._exit(77)


def test_all_unreadable_paths_are_named_at_once(tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "closed").mkdir(parents=True)
    (source / "train.py").touch()
    (source / "one.py").touch(mode=0o000)
    (source / "two.py").touch(mode=0o000)
    (source / "closed").chmod(0o000)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(source)],
            preexec_fn=_without_rights if os.geteuid() == 0 else None,
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        if done.returncode == 77:
            pytest.skip("root here may not give up its right to read everything")
        first = done.stdout
        assert "closed/ (Permission denied)" in first, done.stderr
        (source / "closed").chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(source)],
            preexec_fn=_without_rights if os.geteuid() == 0 else None,
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert "2 paths" in done.stdout, done.stderr
        assert "one.py (Permission denied)" in done.stdout
        assert "two.py (Permission denied)" in done.stdout
    finally:
        (source / "closed").chmod(0o755)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_file_that_turns_into_a_pipe_while_packing_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_bytes(bytes(size))
    import importlib

    module = importlib.import_module("rayjobs.snapshots.pack")
    real = module.scan

    def scan_then_change(*arguments: object) -> object:
        found = real(*arguments)
        if (source / "a.py").is_file():
            (source / "a.py").unlink()
            os.mkfifo(source / "a.py")
        return found

    monkeypatch.setattr(module, "scan", scan_then_change)
    snapshot = packed(source, FolderBlobs(tmp_path / "blobs"))
    assert "a.py (FIFO)" in snapshot.warnings[0]
