"""A source directory, and a packer that stores to a real blob folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.snapshots import Snapshot, pack
from rayjobs.workspace.blobs import FolderBlobs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return folder


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


Packer = Callable[..., Snapshot]


@pytest.fixture
def packed(source: Path, blobs: FolderBlobs) -> Packer:
    def run(folder: Path = source, **options: object) -> Snapshot:
        return pack(
            folder,
            blobs_put=blobs.put_file,
            blobs_has=blobs.exists,
            **options,  # type: ignore[arg-type]
        )

    return run
