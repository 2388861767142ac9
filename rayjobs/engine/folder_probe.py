"""Finds folders that do not answer, so that one hanging file system stops no other workspace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

# How long a folder may take to answer. Local ones take microseconds, one on a network a few ms.
PROBE_S = 2.0


class FolderProbe:
    """Reads folders in a thread, which a file system that hangs may keep as long as it wants.

    Attributes:
        read: Reads what the caller needs of a folder; its result is ignored.
    """

    def __init__(self, read: Callable[[str], object]) -> None:
        """Probe folders with `read`."""
        self.read = read
        self._unanswered: dict[str, _Walk] = {}

    @property
    def unanswered(self) -> frozenset[str]:
        """The folders that did not answer at the last probe."""
        return frozenset(self._unanswered)

    async def probe(self, paths: Sequence[str]) -> None:
        """Find out which folders answer; takes at most `PROBE_S` for each that does not."""
        for path, walk in [*self._unanswered.items()]:
            if walk.has_answered or path not in paths:
                log.warning("the folder %s answers again", path)
                del self._unanswered[path]
        left = [path for path in paths if path not in self._unanswered]
        while left:
            walk = _Walk(self.read, left)
            stuck_at = await walk.until_stuck()
            if stuck_at is None:
                return
            path = left[stuck_at]
            log.warning("the folder %s does not answer: its workspace is left out", path)
            self._unanswered[path] = walk
            left = left[stuck_at + 1 :]


class _Walk:
    """Reads folders one after the other in a thread of its own."""

    def __init__(self, read: Callable[[str], object], paths: Sequence[str]) -> None:
        self._read = read
        self._paths = paths
        self._at = 0
        self._is_left = False
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # A daemon: it must not keep the process from ending.
        threading.Thread(target=self._run, name="folder-probe", daemon=True).start()

    @property
    def has_answered(self) -> bool:
        """Whether the folder at which the walk was stuck has answered since."""
        return self._ended.is_set()

    def _run(self) -> None:
        for number, path in enumerate(self._paths):
            if self._is_left:  # another walk reads the rest
                break
            self._at = number
            with contextlib.suppress(Exception):  # an error is an answer, too
                self._read(path)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ended.set)

    async def until_stuck(self) -> int | None:
        """Return the number of the folder that does not answer; None if all have answered."""
        while True:
            before = self._at
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._ended.wait()
                return None
            except TimeoutError:
                if self._at == before:
                    self._is_left = True
                    return before
