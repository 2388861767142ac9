"""A workspace with a little data in its default datastore, and no target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs import Workspace
from rayjobs.datastore import Datastore


@pytest.fixture
def workspace(own_home: Path) -> Iterator[Workspace]:
    made = Workspace.create("test", path=own_home / "w")
    yield made
    made.close()


@pytest.fixture
def store(workspace: Workspace, tmp_path: Path) -> Datastore:
    for path, content in {
        "digits/train/a.txt": "a",
        "digits/train/b.txt": "bb",
        "digits/test/c.txt": "ccc",
        "table.csv": "id,label\n1,cat\n",
    }.items():
        (tmp_path / "fill" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fill" / path).write_text(content)
    made = workspace.get_default_datastore()
    made.upload(tmp_path / "fill", show_progress=False)
    return made
