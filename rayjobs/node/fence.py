"""Keeps an attempt that was ended for good from being started afterwards, however late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rayjobs.core.errors import PrepareError

# A late call of a target actor that was replaced comes within seconds.
REMEMBERED = 10_000


class Fence:
    """What was ended on this node, and what is being started, by the attempts' markers.

    Two target actors may look after one attempt for a moment: the new one ends it and queues the
    job again, while the old one, which does not know yet, starts its host.
    """

    def __init__(self) -> None:
        """Begin with nothing ended."""
        self._ended: dict[str, None] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._callers: Counter[str] = Counter()

    @asynccontextmanager
    async def starting(self, marker: str) -> AsyncIterator[None]:
        """Start an attempt's host within; `end` waits for that.

        Raises:
            PrepareError: class ``system``: the attempt was ended already.
        """
        async with self._locked(marker):
            if marker in self._ended:
                raise PrepareError(
                    "the attempt was ended before its host was started: another target actor "
                    "looks after the job now",
                    failure_class="system",
                )
            yield

    async def end(self, marker: str) -> None:
        """Refuse every later start of an attempt; return once one that had begun is through."""
        self._ended[marker] = None
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        async with self._locked(marker):
            return

    @asynccontextmanager
    async def _locked(self, marker: str) -> AsyncIterator[None]:
        """Hold an attempt's lock, which stays the same one as long as anybody waits for it."""
        self._callers[marker] += 1
        try:
            async with self._locks.setdefault(marker, asyncio.Lock()):
                yield
        finally:
            self._callers[marker] -= 1
            if not self._callers[marker]:
                del self._callers[marker], self._locks[marker]
