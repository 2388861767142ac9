"""Formats durations, sizes, counts and names in the same way for all messages."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Defined in `injob`, since jobs' processes need them and cannot import this package.
from rayjobs.injob.text import duration_text as duration_text
from rayjobs.injob.text import size_text as size_text

MIB = 2**20
GIB = 2**30

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def counted(number: float, what: str) -> str:
    """Return a number of things: ``1 CPU``, ``0.5 CPUs``, ``1,200 files``."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def verb(number: float, one: str, many: str) -> str:
    """Return the form of a verb for a number of things: `stays` for 1, `stay` for others."""
    return one if number == 1 else many


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for a name that is not among the known ones; else empty."""
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def name_from(text: str, *, default: str) -> str:
    """Return `text` as a valid name of a job or sweep; `default` if no character of it is valid."""
    return _NOT_IN_NAMES.sub("-", text).lstrip("-._")[:128] or default
