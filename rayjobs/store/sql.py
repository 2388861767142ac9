"""The store in a SQLite file or in PostgreSQL, composed of its parts."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import UsageError
from rayjobs.store.allocations import AllocationsPart
from rayjobs.store.arrays import ArraysPart
from rayjobs.store.attempts import AttemptsPart
from rayjobs.store.catalogue import StoreCatalogue
from rayjobs.store.connection import Database
from rayjobs.store.environments import EnvironmentsPart
from rayjobs.store.filesystem import warn_if_shared
from rayjobs.store.interactive import InteractivePart
from rayjobs.store.jobs import JobsPart
from rayjobs.store.models import ModelsPart
from rayjobs.store.pipelines import PipelinesPart
from rayjobs.store.pruning import PruningPart
from rayjobs.store.published import PublishedPart
from rayjobs.store.queue import QueuePart
from rayjobs.store.runs import RunsPart
from rayjobs.store.serving import ServingPart
from rayjobs.store.sweeps import SweepsPart
from rayjobs.store.waiting import WaitingPart

if TYPE_CHECKING:
    from rayjobs.store.database import StoreDatabase

BUSY_TIMEOUT_S = 10.0
OWN = """
INSERT INTO meta (key, value) VALUES ('workspace', :workspace) ON CONFLICT (key) DO NOTHING
"""
OWNER = "SELECT value FROM meta WHERE key = 'workspace'"


class SqlStore(
    JobsPart,
    ArraysPart,
    AttemptsPart,
    InteractivePart,
    AllocationsPart,
    QueuePart,
    WaitingPart,
    RunsPart,
    ServingPart,
    SweepsPart,
    PipelinesPart,
    PublishedPart,
    ModelsPart,
    EnvironmentsPart,
    PruningPart,
):
    """A `Store` in a SQLite file or a PostgreSQL schema, created or upgraded when it is opened.

    Safe for threads, processes and forks. Submits and final states are on the disk (fsync) when the
    call returns; other changes survive the death of any process.

    Args:
        url_or_path: A path, ``sqlite:///path``, ``postgresql://…`` (see
            `postgres_address.parsed`), or ``:memory:`` for a store that this object holds in
            memory.
        clock: The source of times.
        busy_timeout_s: How long to wait for another process's lock.
        create: If False, a PostgreSQL schema without a store is refused. Files are always created.

    Raises:
        StoreBusyError, StoreFullError, StoreVersionError: see `Store`.
        StoreError: the file is not a store, or cannot be written.
        UsageError: the kind of URL is unknown.
    """

    def __init__(
        self,
        url_or_path: str | Path,
        *,
        clock: Clock | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        create: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        self._database = _database(url_or_path, busy_timeout_s, create=create)
        self._catalogue = StoreCatalogue(self._database, self._clock)
        if self._database.path is not None:
            warn_if_shared(self._database.path)

    @property
    def path(self) -> Path | None:
        """The file; None in memory and in PostgreSQL."""
        return self._database.path

    @property
    def catalogue(self) -> StoreCatalogue:
        """See `Store.catalogue`."""
        return self._catalogue

    def owner(self, workspace: str) -> str:
        """Return the id of the workspace that owns the store: the first one that called this."""
        with self._database.write(durable=True) as connection:
            connection.execute(OWN, {"workspace": workspace})
            return str(connection.execute(OWNER).fetchone()[0])

    def backup(self, to: Path) -> None:
        """Write a complete copy to `to`, while others continue to read and write.

        A plain copy of the file lacks the contents of its -wal file, and may be torn.

        Raises:
            UsageError: `to` exists.
        """
        if to.exists():
            raise UsageError(f"{to} exists; name a new file for the backup")
        with self._database.plain() as connection:
            copy = sqlite3.connect(to)
            try:
                connection.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """See `Store.close`."""
        self._database.close()


def _database(url_or_path: str | Path, busy_timeout_s: float, *, create: bool) -> StoreDatabase:
    if isinstance(url_or_path, str) and "://" in url_or_path:
        from rayjobs.store import postgres_address

        if postgres_address.is_url(url_or_path):
            from rayjobs.store import postgres

            return postgres.PostgresDatabase(
                url_or_path, busy_timeout_s=busy_timeout_s, create=create
            )
    return Database(_path_of(url_or_path), busy_timeout_s=busy_timeout_s)


def _path_of(url_or_path: str | Path) -> Path | None:
    if isinstance(url_or_path, Path):
        return url_or_path.absolute()
    if url_or_path in (":memory:", "sqlite://", "sqlite:///:memory:"):
        return None
    scheme, separator, rest = url_or_path.partition("://")
    if not separator:
        return Path(url_or_path).expanduser().absolute()
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        # Source: SQLAlchemy's URLs, three slashes before a relative path, four before an
        # absolute one.
        return Path(rest[1:]).absolute()
    raise UsageError(
        f"the store {url_or_path!r} is of a kind that this version does not support; give a path, "
        f"or sqlite:///path"
    )
