"""The audit record: pages of changes, newest first, and which changes are too old to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import to_text
from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.workspace.users import (
    AUDIT,
    HTTP_AUDIT,
    TOKENS_KEPT,
    Token,
    ended_tokens,
    forget_token,
)

if TYPE_CHECKING:
    from rayjobs.store.base import Store

DAYS = 400.0
PREFIXES = (AUDIT, HTTP_AUDIT)
END = "~"  # sorts after every time


@dataclass(frozen=True)
class Old:
    """The entries that a prune removes from the audit record.

    Attributes:
        end: Changes in lists that begin before this time are removed.
        changes: The number of these changes.
        tokens: Tokens that ended weeks ago, by their keys in the store.
    """

    end: str
    changes: int
    tokens: Mapping[str, Token]

    def __bool__(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.changes or self.tokens)


def old(store: Store, *, before: datetime, now: datetime) -> Old:
    """Return the changes before a time and the tokens that a prune removes."""
    end = to_text(before)
    lists = [
        json.loads(text)
        for prefix in PREFIXES
        for text in store.meta_between(prefix, prefix + end).values()
    ]
    changes = sum(len(one) if isinstance(one, list) else 1 for one in lists)
    return Old(end, changes, ended_tokens(store, before=now - TOKENS_KEPT))


def forget(store: Store, found: Old) -> None:
    """Remove the entries that `old` found."""
    for prefix in PREFIXES:
        store.drop_meta(prefix, prefix + found.end)
    for key, token in found.tokens.items():
        forget_token(store, key, token)


def page(store: Store, size: int, cursor: str) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """Return changes, newest first, and the cursor of the next page; None if this is the last.

    Raises:
        UsageError: the cursor is not one that this returned.
    """
    last, skipped = _position(cursor)
    # "!" sorts just after the list at which the last page ended: it may have more changes.
    lists: list[tuple[str, str]] = []
    for prefix in PREFIXES:
        found = store.meta_between(prefix, f"{prefix}{last}!", limit=size + 1, newest_first=True)
        lists += [(key.removeprefix(prefix), text) for key, text in found.items()]
    rows: list[Mapping[str, Any]] = []
    for name, text in sorted(lists, reverse=True):
        values = json.loads(text)
        changes = values[::-1] if isinstance(values, list) else [values]
        begin = skipped if name == last else 0
        for number, row in enumerate(changes[begin:], begin):
            if len(rows) == size:
                return rows, f"{name}/{number}"
            rows.append(row)
    return rows, None


def _position(cursor: str) -> tuple[str, int]:
    if not cursor:
        return END, 0
    name, _, number = cursor.rpartition("/")
    if not (name.isascii() and number.isascii() and number.isdecimal() and len(cursor) < 100):
        raise UsageError(f"{cursor!r:.60} is not a cursor")
    return name, int(number)
