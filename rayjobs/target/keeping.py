"""Whether a local target's keeper lives: it holds a lock for life. Standard library only."""

from __future__ import annotations

from pathlib import Path

from rayjobs.core.files import is_locked
from rayjobs.core.paths import TargetPaths


def lock_path(paths: TargetPaths) -> Path:
    """Return the file whose lock says that a keeper lives."""
    return paths.root / "keeper.lock"


def is_kept(paths: TargetPaths) -> bool:
    """Whether a keeper lives."""
    try:
        return is_locked(lock_path(paths))
    except OSError:
        return False
