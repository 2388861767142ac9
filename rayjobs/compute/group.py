"""The nodes of one attempt as a group: they start together and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return all results once all have ended; only then raise the first error there was.

    What one node still does must not meet what is done because of another node's error.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return [one for one in results if not isinstance(one, BaseException)]


class GroupEnd:
    """When, and why, what still runs of an attempt is to end."""

    def __init__(self, asked: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Wait for `asked` too, which returns the reason once the whole attempt is to end."""
        self._asked = asked
        self._failed = asyncio.Event()
        self._reason = ""

    def note(self, record: Mapping[str, Any]) -> None:
        """Take in a node's exit record: the first that is no success ends the other nodes."""
        if record["outcome"] != "completed" and not self._failed.is_set():
            why = str(record.get("reason") or record["outcome"])
            self._reason = f"node {record['node']} of the job ended: {why}"
            self._failed.set()

    async def asked(self) -> str:
        """Return the reason once the end of all nodes is asked for."""
        asked = asyncio.ensure_future(self._asked())
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            failed.cancel()
        return self._reason if self._failed.is_set() else asked.result()
