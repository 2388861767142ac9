"""Sentences about a store in PostgreSQL, without its address: not every reader may know it."""

from __future__ import annotations

import re

STORE = "the workspace's store"
AWAY = f"{STORE} is away: its database cannot be reached"
_ADDRESS = re.compile(r"(?:the store )?postgresql://\S+?(?=[:;,.)]*(?:\s|$))")
_AWAY = re.compile(r"the store postgresql://\S+ cannot be reached: .*", re.DOTALL)


def without_address(text: str) -> str:
    """Return a sentence of rayjobs without the host, port, user and name of the database.

    For messages only: a user's own records may name databases of theirs.
    """
    if "postgresql://" not in text:
        return text
    return _ADDRESS.sub(STORE, _AWAY.sub(AWAY, text))
