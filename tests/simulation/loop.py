"""An event loop with virtual time: it never waits, and a seed determines the order of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
# The longest time of a store call; calls of two jobs may therefore end in either order.
STORE_CALL_S = 0.004


class StuckError(Exception):
    """No event can happen any more, although tasks are waiting."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Jumps from timer to timer. Calls for threads run in the loop itself, a moment later."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng
        self._virtual_s = 0.0
        self._clock_resolution = 1e-9
        self._selector = self  # the base class polls it for external events
        self.exceptions: list[str] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual_s

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the virtual time to the next timer."""
        if timeout is None:
            raise StuckError("every task waits for something that never comes")
        self._virtual_s += max(0.0, timeout)
        return []

    def _process_events(self, _events: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError):  # what a killed actor leaves
            self.exceptions.append(f"{context.get('message')}: {error!r}")

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Call the function a moment later; like a thread, it runs even if no task waits."""
        future = self.create_future()

        def call() -> None:
            try:
                result = function(*arguments)
            except BaseException as error:  # passed to the waiting task, like that of a thread
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.rng.random() * STORE_CALL_S, call)
        return future


class VirtualClock:
    """A clock of rayjobs that shows the virtual time of a loop.

    Attributes:
        moved: The sum of all changes of the wall clock.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.moved = timedelta()

    def now(self) -> datetime:
        """Return wall time."""
        return BEGAN + timedelta(seconds=self._loop.time()) + self.moved

    def monotonic_s(self) -> float:
        """Return seconds that never go backward."""
        return self._loop.time()
