"""Keeps a driver running for every unfinished sweep.

The sweep's record names its driver as ``module:function``: this package is below the one that
defines sweeps, and must not import it (docs/decisions/0010-sweep-drivers.md).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rayjobs.core.aliases import canonical
from rayjobs.core.clock import Clock
from rayjobs.core.errors import StoreError
from rayjobs.engine.board import Board, Change, Served

log = logging.getLogger(__name__)

# A driver that dies is replaced immediately; after repeated deaths, with growing pauses.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0
QUIET_S = 60.0

# (workspace, parent, home=, target=) → a future that is done when the driver has ended.
Start = Callable[..., "Future[Any]"]


def resolve(name: str) -> Start:
    """Return the function that a record names.

    Raises:
        ValueError, ImportError, AttributeError: it does not exist.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"{name!r} is not of the form module:function")
    found: Start = getattr(importlib.import_module(canonical(module)), attribute)
    return found


class Drivers:
    """The drivers of one target.

    Args:
        wake: Called when a lost driver may be replaced, so that `look` runs.
    """

    def __init__(
        self,
        target: str,
        home: Path,
        *,
        clock: Clock,
        wake: Callable[[], None] = lambda: None,
        resolve: Callable[[str], Start] = resolve,
    ) -> None:
        self.target = target
        self.home = home
        self._clock = clock
        self._wake = wake
        self._resolve = resolve
        self._running: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # key → (not before, last pause)
        # The sweeps read from each workspace, and the change token of its store at that time.
        self._parents: dict[Served, tuple[Change | None, list[tuple[str, str]]]] = {}

    @property
    def count(self) -> int:
        """How many drivers are running."""
        return len(self._running)

    def forget(self, served: Served) -> None:
        """Stop following the drivers of a workspace that was moved and gets new ones.

        The old ones end by themselves: a driver without the newest claim is refused.
        """
        for key, task in [*self._running.items()]:
            if key.startswith(served.key("")):
                task.cancel()

    async def look(self, board: Board) -> None:
        """Start a driver for every parent on the target that has none."""
        self._parents = {one: seen for one, seen in self._parents.items() if one in board.served}
        for served in board.served:
            change, (seen, parents) = board.change(served), self._parents.get(served, (None, []))
            if change is None or change != seen:
                try:
                    parents = await served.ask(served.store.sweeps_to_drive, self.target)
                except StoreError as error:
                    log.warning("sweeps of %s cannot be read: %s", served.path, error)
                    continue
                self._parents[served] = change, parents
            for parent, driver in parents:
                key = served.key(parent)
                not_before, _ = self._pauses.get(key, (0.0, 0.0))
                if key not in self._running and self._clock.monotonic_s() >= not_before:
                    self._running[key] = asyncio.ensure_future(
                        self._keep(key, served, parent, driver)
                    )

    async def _keep(self, key: str, served: Served, parent: str, driver: str) -> None:
        """Start a driver and wait for its end."""
        began_s = self._clock.monotonic_s()
        try:
            start = self._resolve(driver)
            ended = await asyncio.to_thread(
                start, served.path, parent, home=str(self.home), target=self.target
            )
            log.info("%s has a driver", parent)
            await asyncio.wrap_future(ended)
            log.info("the driver of %s has ended", parent)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("the driver of %s was lost: %s", parent, error)
            await self._report(served, parent, f"its driver was lost and will be replaced: {error}")
        finally:
            self._pause(key, lived_s=self._clock.monotonic_s() - began_s)
            self._running.pop(key, None)

    def _pause(self, key: str, *, lived_s: float) -> None:
        _, last_s = self._pauses.get(key, (0.0, 0.0))
        longer = 0.0 if lived_s > QUIET_S else last_s
        pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * longer))
        self._pauses[key] = (self._clock.monotonic_s() + pause_s, pause_s)
        asyncio.get_running_loop().call_later(pause_s, self._wake)

    async def _report(self, served: Served, parent: str, message: str) -> None:
        first_line = message.strip().splitlines()[0]
        try:
            await served.ask(served.store.add_event, parent, "driver_lost", first_line)
        except StoreError as error:
            log.warning("an event of %s was not written: %s", parent, error)
