"""Where the stores under test are: a file, memory, and a schema of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.postgres import Postgres

KINDS = (
    "file",
    "memory",
    pytest.param("postgres", marks=[pytest.mark.storage, pytest.mark.xdist_group("postgres")]),
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """An address for `SqlStore` at which there is no store yet."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.schema()
    return tmp_path / "store.db" if request.param == "file" else ":memory:"
