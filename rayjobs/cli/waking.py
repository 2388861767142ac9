"""Tells a target that something changed; without an answer its poll finds out within a second."""

from __future__ import annotations

from pathlib import Path

from rayjobs.compute.starting import wake
from rayjobs.paths import home


def wake_quietly(target: str, workspace: Path) -> bool:
    """Return whether the target listens; never waits long, never fails."""
    try:
        return wake(target, home=home(), workspace=workspace)
    except (TimeoutError, OSError):
        return False
