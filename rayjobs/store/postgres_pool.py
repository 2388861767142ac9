"""The connections of one process to a store in PostgreSQL: a bounded pool that threads share.

It does not use psycopg_pool, whose threads do not survive a fork, and whose check for a cut
connection takes a round trip in each transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from rayjobs.core.errors import StoreBusyError
from rayjobs.core.text import duration_text

MOST_OPEN = 16  # a server has more threads than this


class Pooled(Protocol):
    """What the pool needs of a connection."""

    @property
    def plain(self) -> Any:
        """The driver's own connection."""


_Connection = TypeVar("_Connection", bound=Pooled)


class Pool(Generic[_Connection]):
    """Lends a connection for one transaction. Thread-safe; a forked process needs a new pool.

    Attributes:
        idle: The unused connections.
    """

    def __init__(self, connect: Callable[[], _Connection], *, where: str, wait_s: float) -> None:
        """Create an empty pool.

        Args:
            connect: A function that opens a connection.
            where: The store's address, for people.
            wait_s: How long a thread waits for a free connection.
        """
        self.idle: list[_Connection] = []
        self._connect = connect
        self._where = where
        self._wait_s = wait_s
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self) -> _Connection:
        """Return a connection for one transaction, waiting until one is free.

        Raises:
            StoreBusyError: none was free in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._used < MOST_OPEN, self._wait_s):
                raise StoreBusyError(
                    f"all {MOST_OPEN} connections of this process to the store {self._where} have "
                    f"been in use for {duration_text(self._wait_s)}, so nothing was done: there "
                    f"are too many requests at once, or the server is slow. Repeat it later",
                    path=self._where,
                )
            self._used += 1
            if self.idle:
                return self.idle.pop()
        try:
            return self._connect()
        except BaseException:
            self._free()
            raise

    def give(self, connection: _Connection) -> None:
        """Return a connection to the pool, unless it is closed."""
        with self._changed:
            is_kept = not self._closed and not connection.plain.closed
            if is_kept:
                self.idle.append(connection)
        self._free()
        if not is_kept:
            connection.plain.close()

    def close(self) -> None:
        """Close unused connections; the others are closed after their transactions."""
        with self._changed:
            self._closed = True
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.plain.close()

    def _free(self) -> None:
        with self._changed:
            self._used = max(
                0, self._used - 1
            )  # a fork in a transaction starts again without connections
            self._changed.notify()
