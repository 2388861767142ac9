"""Tells whether this process belongs to an attempt; small, since everyday commands import it."""

from __future__ import annotations

import os

TOKEN_VARIABLE = "RAYJOBS_RUN_TOKEN"


def has_token() -> bool:
    """Whether this process has the token of its attempt."""
    return bool(os.environ.get(TOKEN_VARIABLE))
