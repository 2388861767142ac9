"""A workspace whose pipelines are simulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pipelines.played import Played


@pytest.fixture
def played(tmp_path: Path, own_home: Path) -> Iterator[Played]:
    world = Played(tmp_path)
    yield world
    world.workspace.close()
