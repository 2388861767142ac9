"""Long lists in pages: a part of the items, and a cursor for the next part."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rayjobs.core.ids import token
from rayjobs.server.access import Refusal
from rayjobs.store.requests import JobFilter

KEPT_LISTS = 16
KEPT_S = 60.0


def page_of_jobs(
    list_jobs: Callable[[JobFilter], Sequence[Any]], which: JobFilter, size: int, cursor: str
) -> tuple[Sequence[Any], str | None]:
    """Return jobs after the one that the cursor names. New jobs do not move the pages."""
    left = which.limit
    if left is not None and left < 0:
        raise Refusal(400, "limit is a whole number from 0")
    if cursor:
        serial, rest = _numbers(cursor)
        which, left = replace(which, after=serial), rest
    size = size if left is None else min(size, max(0, left))
    found = list_jobs(replace(which, limit=size + 1))
    items = found[:size]
    left = None if left is None else left - len(items)
    if len(found) <= size or left == 0:
        return items, None
    return items, f"{items[-1].serial}:{'' if left is None else left}"


def page_at(
    ask: Callable[[int, int], Sequence[Any]], size: int, cursor: str
) -> tuple[Sequence[Any], str | None]:
    """Return a page of a list of which `ask` returns a part: so many, after so many."""
    at = _numbers(cursor)[0] if cursor else 0
    found = ask(size + 1, at)
    return found[:size], f"{at + size}" if len(found) > size else None


class Lists:
    """The rest of lists that a store returns as a whole, kept for a minute for the next page.

    Where it is not kept any more, or by another server, the store is asked again. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Sequence[Any]]] = OrderedDict()

    def page(
        self, ask: Callable[[], Sequence[Any]], size: int, cursor: str
    ) -> tuple[Sequence[Any], str | None]:
        """Return a page of the list that `ask` returns."""
        at, key = 0, ""
        found: Sequence[Any] | None = None
        if cursor:
            number, _, key = cursor.partition(":")
            at = _numbers(number)[0]
            found = self._take(key)
        found = ask() if found is None else found
        if len(found) <= at + size:
            return found[at:], None
        return found[at : at + size], f"{at + size}:{self._keep(key, found)}"

    def _take(self, key: str) -> Sequence[Any] | None:
        with self._lock:
            kept = self._kept.pop(key, None)
        return None if kept is None or kept[0] < time.monotonic() else kept[1]

    def _keep(self, key: str, found: Sequence[Any]) -> str:
        now_s = time.monotonic()
        key = key or token(16)
        with self._lock:
            self._kept[key] = (now_s + KEPT_S, found)
            oldest = list(self._kept.items())
            for number, (name, (until_s, _)) in enumerate(oldest, 1):
                if until_s < now_s or number <= len(oldest) - KEPT_LISTS:
                    del self._kept[name]
        return key


def _numbers(cursor: str) -> tuple[int, int | None]:
    first, _, rest = cursor.partition(":")
    for text in (first, rest):
        if text and not (text.isascii() and text.isdecimal() and len(text) <= 15):
            raise Refusal(400, f"{cursor!r:.60} is not a cursor")
    if not first:
        raise Refusal(400, f"{cursor!r:.60} is not a cursor")
    return int(first), int(rest) if rest else None
