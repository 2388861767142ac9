"""Credentials by the names of their variables: what this process was given, then its environment.

A process that outlives the shell that started it, such as a node's agent, is given the values that
are valid now; it keeps them in memory. Elsewhere the environment alone counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

# What the usual AWS search looks for, and what a client is given instead where it is known here.
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_lock = threading.Lock()
_given: dict[str, str] = {}


def give(values: Mapping[str, str]) -> None:
    """Let this process use these values from now on, and forget those that it was given before."""
    global _given
    with _lock:
        _given = dict(values)


def given() -> dict[str, str]:
    """Return what this process was given."""
    with _lock:
        return dict(_given)


def variable(name: str) -> str:
    """Return the value of a variable; empty where there is none."""
    with _lock:
        return _given.get(name) or os.environ.get(name, "")


def environment() -> dict[str, str]:
    """Return the environment of this process with what it was given."""
    with _lock:
        return {**os.environ, **_given}
