"""Finds folders that do not answer, so that one hanging file system stops no other workspace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# How long a folder may take to answer. Local ones take microseconds, one on a network a few ms.
PROBE_S = 2.0


class FolderProbe:
    """Reads folders in a thread, which a file system that hangs may keep as long as it wants."""

    def __init__(self, read: Callable[[str], object]) -> None:
        """Probe folders with `read`, whose results and errors are ignored."""
        self._read = read
        self._reader: _Reader | None = None
        self._unanswered: dict[str, asyncio.Future[None]] = {}

    @property
    def unanswered(self) -> frozenset[str]:
        """The folders that did not answer at the last probe."""
        return frozenset(self._unanswered)

    async def probe(self, paths: Sequence[str]) -> None:
        """Find out which folders answer; takes at most `PROBE_S` for each that newly does not."""
        for path, reading in [*self._unanswered.items()]:
            if reading.done():
                log.warning("the folder %s answers again", path)
                del self._unanswered[path]
        left = [path for path in paths if path not in self._unanswered]
        while left:
            if self._reader is None:
                self._reader = _Reader()
                weakref.finalize(self, self._reader.shutdown)
            walk = _Walk(self._read, left)
            reading = asyncio.get_running_loop().run_in_executor(self._reader, walk.run)
            stuck_at = await walk.until_stuck(reading)
            if stuck_at is None:
                return
            path = left[stuck_at]
            log.warning("the folder %s does not answer: its workspace is left out", path)
            self._unanswered[path] = reading
            self._reader.shutdown()
            self._reader = None
            left = left[stuck_at + 1 :]


class _Walk:
    """One reading of several folders, in order."""

    def __init__(self, read: Callable[[str], object], paths: Sequence[str]) -> None:
        self._read = read
        self._paths = paths
        self._at = 0
        self._is_left = False

    def run(self) -> None:
        """Read the folders; called in the reader's thread."""
        for number, path in enumerate(self._paths):
            if self._is_left:  # another walk reads the rest
                return
            self._at = number
            with contextlib.suppress(Exception):  # an error is an answer, too
                self._read(path)

    async def until_stuck(self, reading: asyncio.Future[None]) -> int | None:
        """Return the number of the folder that does not answer; None if all have answered."""
        while True:
            before = self._at
            await asyncio.wait({reading}, timeout=PROBE_S)
            if reading.done():
                return None
            if self._at == before:
                self._is_left = True
                return before


class _Reader(Executor):
    """One daemon thread: unlike those of a thread pool, it does not keep the process from ending.

    It ends after `shutdown`, once it has done what was submitted before.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="folder-probe", daemon=True).start()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Call a function in the thread."""
        future: Future[Result] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the thread; waits for nothing."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
