"""Whether a local target's keeper lives: it holds a lock for life. Standard library only."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rayjobs.core.paths import TargetPaths


def lock_path(paths: TargetPaths) -> Path:
    """Return the file whose lock says that a keeper lives."""
    return paths.root / "keeper.lock"


def is_kept(paths: TargetPaths) -> bool:
    """Whether a keeper lives."""
    try:
        descriptor = os.open(lock_path(paths), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def lock(descriptor: int, kind: int) -> bool:
    """Take a lock on an open file; False when another process has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
