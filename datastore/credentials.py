"""Credentials by variable name: from what this process was given, then from its environment.

A process that outlives the shell that started it, such as a node's agent, is given the currently
valid values and keeps them in memory. Elsewhere only the environment counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

# The variables of the usual AWS search; values given to this process replace that search.
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_lock = threading.Lock()
_given: dict[str, str] = {}


def give(values: Mapping[str, str]) -> None:
    """Make this process use these values from now on, instead of those given before."""
    global _given
    with _lock:
        _given = dict(values)


def given() -> dict[str, str]:
    """Return the values that this process was given."""
    with _lock:
        return dict(_given)


def variable(name: str) -> str:
    """Return the value of a variable; empty if it is not set."""
    with _lock:
        return _given.get(name) or os.environ.get(name, "")


def environment() -> dict[str, str]:
    """Return the environment of this process, updated with the given values."""
    with _lock:
        return {**os.environ, **_given}
