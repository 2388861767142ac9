"""Many small files are stored together: each has its own result, and few calls are needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import RayjobsError
from rayjobs.engine.workspace_server import WorkspaceServer
from rayjobs.jobs.records import StoredFile
from rayjobs.node.remote_workspace import RemoteBlobs
from rayjobs.results.collect import SMALL_BYTES, Publisher
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import open_workspace
from tests.support.attempts import on_node


@pytest.mark.long
def test_small_files_are_stored_together_and_large_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "attempt"
    outputs = root / "work" / "outputs"
    outputs.mkdir(parents=True)
    for number in range(1200):
        (outputs / f"{number}").write_bytes(b"%d" % (number % 7))
    (outputs / "large").write_bytes(b"x" * (SMALL_BYTES + 1))
    blobs = FolderBlobs(tmp_path / "blobs")
    alone: list[str] = []
    add_file = blobs.add_file

    def count(path: Path, **more: Any) -> Any:
        alone.append(path.name)
        return add_file(path, **more)

    monkeypatch.setattr(blobs, "add_file", count)
    rows: list[StoredFile] = []

    def publish(files: Sequence[StoredFile]) -> bool:
        rows.extend(files)
        return True

    assert Publisher(on_node(root, ranks=()), blobs=blobs, publish=publish).finish() == []
    assert alone == ["large"]
    assert len(rows) == 1201
    for row in rows:
        with blobs.open(row.blob) as file:
            assert file.read() == (outputs / Path(row.name).name).read_bytes()
    assert not list((tmp_path / "blobs" / ".tmp").iterdir())


def made(folder: Path) -> list[Path]:
    """Return the paths of files: one is a FIFO, one is missing, and two have the same content."""
    folder.mkdir()
    for name, data in (("a", b"same"), ("b", b"same"), ("c", b""), ("d", b"other")):
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "fifo")
    return [folder / name for name in ("a", "fifo", "b", "none", "c", "d")]


def check(found: Sequence[Any], blobs: Any) -> None:
    """Check that each file has its own result, in order."""
    assert [isinstance(one, RayjobsError) for one in found] == [0, 1, 0, 1, 0, 0]
    texts = []
    for one in found:
        if not isinstance(one, RayjobsError):
            with blobs.open(one.key) as file:
                texts.append(file.read())
            assert one.size == len(texts[-1])
    assert texts == [b"same", b"same", b"", b"other"]


def test_each_file_has_its_own_answer(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    paths = made(tmp_path / "files")
    check(blobs.add_files(paths), blobs)
    check(blobs.add_files(paths), blobs)  # all of it is there already


def test_remote_node_sends_small_files_as_one_upload(short_path: Path) -> None:
    with open_workspace(short_path / "w"):
        pass
    server = WorkspaceServer()
    calls: list[str] = []

    def ask(method: str, *given: Any) -> Any:
        calls.append(method)
        return getattr(server, method)(*given)

    blobs = RemoteBlobs(ask, str(short_path / "w"))
    found = blobs.add_files(made(short_path / "files"))
    assert calls == ["append", "keep_parts"]
    check(found, blobs)
    assert not list((short_path / "w" / "blobs" / ".tmp").iterdir())
