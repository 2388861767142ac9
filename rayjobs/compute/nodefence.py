"""Keeps an attempt that was ended for good from being started afterwards, however late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rayjobs.errors import PrepareError

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
        self._starting: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def starting(self, marker: str) -> AsyncIterator[None]:
        """Start an attempt's host within; `end` waits for that.

        Raises:
            PrepareError: class ``system``: the attempt was ended already.
        """
        lock = self._starting.setdefault(marker, asyncio.Lock())
        try:
            async with lock:
                if marker in self._ended:
                    raise PrepareError(
                        "the attempt was ended before its host was started: another target actor "
                        "looks after the job now",
                        failure_class="system",
                    )
                yield
        finally:
            self._starting.pop(marker, None)

    async def end(self, marker: str) -> None:
        """Refuse every later start of an attempt; return once one that had begun is through."""
        self._ended[marker] = None
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        lock = self._starting.get(marker)
        if lock is not None:
            async with lock:
                return
