"""Connections to PostgreSQL with a time limit on every wait.

A server that is suspended, or whose disk hangs, keeps its connections open without answering: there
is no network error, so the driver would wait forever.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg

from rayjobs.core.text import duration_text

ANSWER_S = (
    90.0  # longer than the longest wait for the writers' lock, and than any of our statements
)


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes too long."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer.

        Raises:
            OperationalError: there was none within `ANSWER_S`; the statement may have been
                executed.
        """
        try:
            return super().wait(_limited(gen), *args, **kwargs)
        except _LateError:
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server did not answer for {duration_text(ANSWER_S)}"
            ) from None


class _LateError(Exception):
    """The answer is late."""


def _limited(waits: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    end_s = time.monotonic() + ANSWER_S
    try:
        wanted = next(waits)
        while True:
            ready = yield wanted
            if time.monotonic() > end_s:
                raise _LateError
            wanted = waits.send(ready)
    except StopIteration as end:
        return end.value
