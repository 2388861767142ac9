"""Finds folders that do not answer, so that one hanging file system stops no other workspace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue

log = logging.getLogger(__name__)

# How long a folder may take to answer. Local ones take microseconds, one on a network a few ms.
PROBE_S = 2.0


class FolderProbe:
    """Reads folders in a thread, which a file system that hangs may keep as long as it wants."""

    def __init__(self, read: Callable[[str], object]) -> None:
        """Probe folders with `read`, whose results and errors are ignored."""
        self._read = read
        self._reader: _Reader | None = None
        self._unanswered: dict[str, _Walk] = {}

    @property
    def unanswered(self) -> frozenset[str]:
        """The folders that did not answer at the last probe."""
        return frozenset(self._unanswered)

    async def probe(self, paths: Sequence[str]) -> None:
        """Find out which folders answer; takes at most `PROBE_S` for each that newly does not."""
        for path, walk in [*self._unanswered.items()]:
            if walk.ended.is_set():
                log.warning("the folder %s answers again", path)
                del self._unanswered[path]
        left = [path for path in paths if path not in self._unanswered]
        while left:
            if self._reader is None:
                self._reader = _Reader()
                weakref.finalize(self, self._reader.walks.put, None)
            walk = _Walk(self._read, left)
            self._reader.walks.put(walk)
            stuck_at = await walk.until_stuck()
            if stuck_at is None:
                return
            path = left[stuck_at]
            log.warning("the folder %s does not answer: its workspace is left out", path)
            self._unanswered[path] = walk
            self._reader.walks.put(None)
            self._reader = None
            left = left[stuck_at + 1 :]


class _Reader:
    """A thread that reads folders, one walk after the other; it ends at the walk None."""

    def __init__(self) -> None:
        self.walks: SimpleQueue[_Walk | None] = SimpleQueue()
        # A daemon: it must not keep the process from ending.
        threading.Thread(target=self._run, name="folder-probe", daemon=True).start()

    def _run(self) -> None:
        while (walk := self.walks.get()) is not None:
            walk.run()


class _Walk:
    """One reading of several folders, in order.

    Attributes:
        ended: Set in the loop's thread once all folders up to the one that hung have answered.
    """

    def __init__(self, read: Callable[[str], object], paths: Sequence[str]) -> None:
        self.ended = asyncio.Event()
        self._read = read
        self._paths = paths
        self._at = 0
        self._is_left = False
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Read the folders; called in the reader's thread."""
        for number, path in enumerate(self._paths):
            if self._is_left:  # another walk reads the rest
                break
            self._at = number
            with contextlib.suppress(Exception):  # an error is an answer, too
                self._read(path)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.ended.set)

    async def until_stuck(self) -> int | None:
        """Return the number of the folder that does not answer; None if all have answered."""
        while True:
            before = self._at
            try:
                async with asyncio.timeout(PROBE_S):
                    await self.ended.wait()
                return None
            except TimeoutError:
                if self._at == before:
                    self._is_left = True
                    return before
