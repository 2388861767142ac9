"""The nodes of one attempt as a group: they start together and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
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

    def __init__(self, canceled: asyncio.Event) -> None:
        self._canceled = canceled
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
        canceled = asyncio.ensure_future(self._canceled.wait())
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({canceled, failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            canceled.cancel()
            failed.cancel()
        return self._reason if self._failed.is_set() else "canceled"
