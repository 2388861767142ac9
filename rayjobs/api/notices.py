"""Notices to a program: one line on stderr, each once per process."""

from __future__ import annotations

import sys

_said: set[str] = set()


def notice(text: str) -> None:
    """Print a notice, unless this process has printed it before."""
    if text not in _said:
        _said.add(text)
        print(f"rayjobs: {text}", file=sys.stderr, flush=True)  # noqa: T201 - that is its purpose
