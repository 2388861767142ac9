"""Notices to a program's user: one line on stderr, each only once per process."""

from __future__ import annotations

import sys

_printed: set[str] = set()


def notice(text: str) -> None:
    """Print a notice, unless this process has already printed it."""
    if text not in _printed:
        _printed.add(text)
        print(f"rayjobs: {text}", file=sys.stderr, flush=True)  # noqa: T201 - that is its purpose
