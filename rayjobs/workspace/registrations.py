"""Registers a target's workspaces, one small file per workspace in the target's folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path

from rayjobs.core.files import write_atomic

log = logging.getLogger(__name__)


def register(folder: Path, workspace: Path | str) -> None:
    """Record in a target's `folder` of registrations that the target serves a workspace.

    Raises:
        OSError: it cannot be written.
    """
    path = _file(folder, workspace)
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"path": os.path.realpath(workspace)}) + "\n", mode=0o600)


def is_registered(folder: Path, workspace: Path | str) -> bool:
    """Whether a workspace is registered with the target."""
    return _file(folder, workspace).exists()


def follow(folder: Path, old: str, new: str) -> None:
    """Register a workspace that was moved from `old` to `new`.

    This removes the old registration, unless there is a new workspace at the old path.
    """
    try:
        register(folder, new)
        if not (Path(old) / "workspace.json").exists():
            _file(folder, old).unlink(missing_ok=True)
    except OSError as error:
        log.warning("the move of workspace %s to %s cannot be registered: %s", old, new, error)


def as_registered(folder: Path) -> list[str]:
    """Return the paths that clients have registered with the target, without reading the folders.

    Several paths may name one folder.
    """
    paths = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            path = str(json.loads(file.read_text())["path"])
            if "\0" in path:  # no call of the system accepts it
                raise ValueError(path)
            paths.append(path)
        except (OSError, ValueError, KeyError):
            log.warning("%s is not the registration of a workspace", file)
    return paths


def registered(folder: Path) -> list[str]:
    """Return the workspace folders that clients have registered with the target."""
    return [*dict.fromkeys(os.path.realpath(path) for path in as_registered(folder))]


def everywhere(home: Path) -> list[str]:
    """Return the workspace folders that are registered with any target of a home."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for target in sorted((home / "targets").iterdir()):
            found += registered(target / "workspaces")
    return [*dict.fromkeys(found)]


def _file(folder: Path, workspace: Path | str) -> Path:
    real = os.path.realpath(workspace)  # one registration per folder, however the path is written
    return folder / (hashlib.sha256(os.fsencode(real)).hexdigest()[:16] + ".json")
