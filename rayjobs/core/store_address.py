"""Sentences about a store, without its address or path, which not every reader may know."""

from __future__ import annotations

import re

STORE = "the workspace's store"
UNAVAILABLE = f"{STORE} is unavailable: its database cannot be reached"
_ADDRESS = re.compile(
    r"(?:the store )?postgresql://\S+?(?=[:;,.)]*(?:\s|$))|the store /.*?/store\.db"
)
_UNREACHABLE = re.compile(r"the store postgresql://\S+ cannot be reached: .*", re.DOTALL)


def without_address(text: str) -> str:
    """Return a message of rayjobs without the address or path of the store's database.

    For messages only: a user's own records may name the user's own databases.
    """
    if "postgresql://" not in text and "the store /" not in text:
        return text
    return _ADDRESS.sub(STORE, _UNREACHABLE.sub(UNAVAILABLE, text))
