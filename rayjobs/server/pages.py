"""Long lists in pages: part of the items, and a cursor for the item after which to continue.

The server keeps no state between two pages: any server of a workspace can answer the next one, and
items added or removed meanwhile do not shift the pages. Lists that can become long are read by
their keys. Lists of the catalogue are read as a whole for each page, and the item is looked up.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rayjobs.remote.operations import Operation
from rayjobs.server.access import Refusal
from rayjobs.store.requests import EVERY_JOB, JobFilter, Page
from rayjobs.workspace import plain

MOST_CURSOR = 8192
MOST_DIGITS = 9
# The keys by which the store orders these lists.
KEYS: Mapping[str, Sequence[str]] = {
    "metrics": ("attempt", "rank", "sequence"),
    "events": ("serial",),
    "files": ("name",),
    "trials": ("number",),
    "queue_history": ("serial",),
    "usage": ("serial", "attempt"),
}
# The fields that name an item of any other list: the first entry whose fields the item has. The
# first ones are of items of which several belong to one job or one endpoint.
OF_SEVERAL = (("id", "pipeline", "version"), ("job", "number"))
NAMES = (("id",), ("name", "version"), ("number",), ("pipeline", "number"), ("name",))
_Position = tuple[Any, ...]
_Part = tuple[Sequence[Any], _Position | None]


def size_of(text: str, most: int) -> int:
    """Return the requested number of items of a page.

    Raises:
        Refusal: it is not a number from 1 to `most`.
    """
    # Python refuses to convert thousands of digits.
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_number or not 1 <= int(text) <= most:
        raise Refusal(400, f"page_size is a whole number from 1 to {most}")
    return int(text)


def page_of(
    one: Operation, ask: Callable[..., Any], given: Mapping[str, Any], size: int, cursor: str
) -> tuple[Sequence[Any], str | None]:
    """Return a page of the list of an operation, and the cursor of the next one.

    Args:
        one: The operation.
        ask: Returns the list; with `page`, or for jobs with another filter, part of it.
        given: The arguments of the request.
        size: The maximum number of items.
        cursor: The cursor of the previous page; empty for the first page.

    Raises:
        Refusal: the cursor does not belong to this list.
    """
    # A cursor belongs to its list: another list has other keys, or the same keys for other items.
    belongs = f"{one.method} {sorted(given.items())!r}"
    mark = hashlib.sha256(belongs.encode(errors="replace")).hexdigest()[:16]
    is_of_jobs = one.name in ("jobs", "job_lines")
    if is_of_jobs:
        kinds: Sequence[Any] = (int, int | None)
    elif one.has_pages:
        kinds = [str if key == "name" else int for key in KEYS[one.name]]
    else:
        kinds = (int, str)
    after = _read(cursor, mark, kinds) if cursor else None
    if is_of_jobs:
        items, position = _jobs(ask, given.get("which", EVERY_JOB), size, after)
    elif one.has_pages:
        items, position = _by_key(ask, KEYS[one.name], size, after)
    else:
        items, position = _of_whole(ask(), size, after)
    return items, None if position is None else _text(mark, position)


def _jobs(ask: Callable[..., Any], which: JobFilter, size: int, after: _Position | None) -> _Part:
    """Return a page of jobs; a position has the last serial, and how many jobs may follow."""
    left = which.limit
    if left is not None and left < 0:
        raise Refusal(400, "limit must be a whole number from 0")
    if after is not None:
        serial, left = after
        which = replace(which, after=serial)
    size = size if left is None else min(size, left)
    found = ask(which=replace(which, limit=size + 1))
    items = found[:size]
    left = None if left is None else left - len(items)
    if len(found) <= size or left == 0:
        return items, None
    return items, (items[-1].serial, left)


def _by_key(
    ask: Callable[..., Any], keys: Sequence[str], size: int, after: _Position | None
) -> _Part:
    found = ask(page=Page(size + 1, after))
    if len(found) <= size:
        return found, None
    return found[:size], tuple(getattr(found[size - 1], key) for key in keys)


def _of_whole(found: Sequence[Any], size: int, after: _Position | None) -> _Part:
    at = 0
    if after is not None:
        number, name = after
        # The position in the list counts only if the item has been removed meanwhile.
        at = next((n for n, item in enumerate(found, 1) if _name_of(item) == name), number)
    items = found[at : at + size]
    if len(found) <= at + size:
        return items, None
    return items, (at + size, _name_of(items[-1]))


def _name_of(item: Any) -> str:
    """Return the name of an item in its list, which stays the same when the item changes."""
    item = item[0] if type(item) is tuple else item
    return _joined(item, OF_SEVERAL) or _joined(getattr(item, "job", item), NAMES) or str(item)


def _joined(item: Any, several: Sequence[Sequence[str]]) -> str:
    for names in several:
        if all(hasattr(item, name) for name in names):
            return " ".join(str(getattr(item, name)) for name in names)
    return ""


def _text(mark: str, position: _Position) -> str:
    return base64.urlsafe_b64encode(json.dumps([mark, *position]).encode()).decode("ascii")


def _read(cursor: str, mark: str, kinds: Sequence[Any]) -> _Position:
    try:
        if len(cursor) > MOST_CURSOR:
            raise ValueError("it is too long")
        found, *position = json.loads(base64.b64decode(cursor, b"-_", validate=True))
        if found == mark:
            for kind, value in zip(kinds, position, strict=True):
                plain.decoder(kind)(value)
    except (ValueError, TypeError, RecursionError):
        raise Refusal(400, f"{cursor!r:.60} is not a cursor") from None
    if found != mark:
        raise Refusal(400, f"{cursor!r:.60} is a cursor of another list or of other arguments")
    return tuple(position)
