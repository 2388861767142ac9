"""Remembers which warnings about a source directory were shown, so that each is shown once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rayjobs.core.files import write_atomic


def unseen(workspace: Path, source: str | Path, warnings: Sequence[str]) -> tuple[str, ...]:
    """Return the warnings that were not shown at the last submit, and remember all of them.

    A warning that disappeared and returns is shown again. If nothing can be stored, all are shown
    every time.

    Args:
        workspace: Its folder; each workspace has its own memory.
        source: The source directory that the warnings concern.
    """
    root = os.path.realpath(source)
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    path = workspace / "cache" / f"warned-{name}.json"
    digests = [hashlib.sha256(one.encode(errors="replace")).hexdigest() for one in warnings]
    known = _read(path)
    if set(digests) != known:
        _write(path, digests)
    return tuple(one for one, digest in zip(warnings, digests, strict=True) if digest not in known)


def _read(path: Path) -> set[str]:
    try:
        data = json.loads(path.read_bytes())
        return {str(digest) for digest in data["shown"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # a cache: without it, every warning is shown


def _write(path: Path, digests: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # then all warnings are shown again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"shown": list(digests)}))
