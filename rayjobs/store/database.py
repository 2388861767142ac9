"""What the parts of the SQL store need of a database: SQLite's or PostgreSQL's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class StoreDatabase(Protocol):
    """A database that holds the tables of one store; safe for threads and forks.

    Connections take SQLite's statements and have the methods of `sqlite3.Connection`.
    """

    @property
    def is_shared(self) -> bool:
        """Whether several machines may use the store."""
        ...

    @property
    def path(self) -> Path | None:
        """The path of the file; None: it is in memory or on a server."""
        ...

    @property
    def where(self) -> str:
        """The name of the store for users."""
        ...

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that sees one state of the store throughout, without waiting."""
        ...

    def write(self, *, durable: bool = False) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction in which no other process writes.

        Args:
            durable: Survives a power failure once this returns.
        """
        ...

    def plain(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection without a transaction, for a copy of the whole store.

        Raises:
            UsageError: the database is copied by other tools.
        """
        ...

    def change(self) -> tuple[int, int]:
        """Return a value that changes with every commit of any connection and process."""
        ...

    def notify(self, payload: str) -> None:
        """Wake everything that watches for `payload`, on any machine."""
        ...

    def watch(self, name: str, *, key: str, epoch: str, wake: Callable[[], None]) -> None:
        """Call `wake` for each notification of `name`, and write signs of life under `key`."""
        ...

    def close(self) -> None:
        """Close all unused connections; the others are closed after their use."""
        ...
