"""Runs the collection of each attempt on its own thread, and detects when it is stuck.

A file system that does not answer, or a hostile script, may block a collection forever. Nothing can
end a thread that waits in the kernel. So no collection uses a thread that other attempts need, and
the attempt's supervisor learns what the collection waits for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rayjobs.core.text import duration_text
from rayjobs.protocol.collected import Collected

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# A collection that reads or stores the same file for longer is stuck, unless the file would take
# this long at the slowest rate that counts as progress. Until then, users see no reason for the
# wait, and a cancel has no effect.
STILL_S = 10.0
SLOWEST_BYTES_PER_S = 1_000_000.0
# How long the result of a stuck collection is kept for its supervisor, which asks every 2 s.
KEPT_S = 60.0


async def on_own_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Return the result of `function`, called on a new daemon thread.

    If canceled, this returns immediately; the thread continues until its function returns.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            result = function(*args)
        except BaseException as error:
            settle(done.set_exception, error)
        else:
            settle(done.set_result, result)

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        def set_it() -> None:
            if not done.done():
                setter(value)

        try:
            loop.call_soon_threadsafe(set_it)
        except RuntimeError:
            return  # the loop has ended: nothing waits for the result

    threading.Thread(target=run, name="rayjobs-collect", daemon=True).start()
    return await done


class Progress:
    """The current step of a collection, written by its thread and read by the agent's."""

    def __init__(self) -> None:
        """Start the first step now."""
        self._at = ("its beginning", 0, time.monotonic())

    def watch(self, name: str, size_bytes: int) -> None:
        """Note that the collection now reads or stores `name`, of that many bytes."""
        self._at = (name, size_bytes, time.monotonic())

    def still_in_s(self) -> float:
        """Return the seconds until the collection counts as stuck; 0 if it does already."""
        _, size_bytes, since_s = self._at
        allowed_s = STILL_S + size_bytes / SLOWEST_BYTES_PER_S
        return max(0.0, since_s + allowed_s - time.monotonic())

    def stuck(self) -> str:
        """Return where the collection is stuck, as a clause without a period."""
        name, _, since_s = self._at
        return (
            f"collecting {name} has made no progress for "
            f"{duration_text(time.monotonic() - since_s)}"
        )


class CollectionThreads:
    """The running collections of one node, by attempt and workspace. For one event loop."""

    def __init__(self) -> None:
        """Start without collections."""
        self._running: dict[str, tuple[asyncio.Future[Collected], Progress]] = {}

    async def collect(
        self, key: str, work: Callable[[], Collected], progress: Progress
    ) -> Collected:
        """Return the result of `work`; wait for one that already runs for the attempt.

        If it is stuck, this returns a result that says where, and the work continues. If no caller
        fetches the work's own result within `KEPT_S`, it is dropped, and the next call runs `work`
        again.
        """
        running = self._running.get(key)
        if running is None:
            progress.watch("its beginning", 0)
            running = asyncio.ensure_future(on_own_thread(work)), progress
            self._running[key] = running
            running[0].add_done_callback(partial(self._drop_later, key))
        doing, progress = running
        while not doing.done():
            wait_s = progress.still_in_s()
            if wait_s <= 0:
                return Collected(stuck=progress.stuck())
            await asyncio.wait({doing}, timeout=wait_s)
        self._drop(key, doing)
        return doing.result()

    def _drop(self, key: str, done: asyncio.Future[Collected]) -> bool:
        """Forget a collection that has ended; a newer one of the same attempt stays."""
        if (running := self._running.get(key)) is None or running[0] is not done:
            return False
        del self._running[key]
        return True

    def _drop_later(self, key: str, done: asyncio.Future[Collected]) -> None:
        def drop() -> None:
            if self._drop(key, done) and not done.cancelled() and (why := done.exception()):
                log.warning("a collection that was given up failed: %s", why)

        done.get_loop().call_later(KEPT_S, drop)
