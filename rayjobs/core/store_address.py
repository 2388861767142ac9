"""Sentences about a store, without its address or path: not every reader may know it."""

from __future__ import annotations

import re

STORE = "the workspace's store"
AWAY = f"{STORE} is away: its database cannot be reached"
_ADDRESS = re.compile(
    r"(?:the store )?postgresql://\S+?(?=[:;,.)]*(?:\s|$))|the store /.*?/store\.db"
)
_AWAY = re.compile(r"the store postgresql://\S+ cannot be reached: .*", re.DOTALL)


def without_address(text: str) -> str:
    """Return a sentence of rayjobs without the host, port, user and name, or path, of the database.

    For messages only: a user's own records may name databases of theirs.
    """
    if "postgresql://" not in text and "the store /" not in text:
        return text
    return _ADDRESS.sub(STORE, _AWAY.sub(AWAY, text))
