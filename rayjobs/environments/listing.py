"""Lists the environments on a node: their content, size and users."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.safe_delete import OwnFolder, Removed
from rayjobs.environments import prune
from rayjobs.environments.cache import KEY, RECORD, Cache
from rayjobs.injob.lazy_dataclass import dataclass

LEAST_KEY = 4  # minimum characters of a key that identify an environment


@dataclass(frozen=True)
class Built:
    """An environment of a node.

    Attributes:
        kind: "pip" or "conda".
        name: Its display name; "" if it has none.
        python: The version of its interpreter.
        packages: The number of its packages, without those of the target or the image.
        bytes: Size of its files, including those shared with a cache.
        used_at: When a job last started in it.
        used_by: Attempts that use it and whose folders are on the node.
    """

    key: str
    kind: str
    name: str
    python: str
    packages: int
    bytes: int
    took_s: float
    used_at: datetime
    used_by: tuple[str, ...]


def built(root: Path) -> list[Built]:
    """Return the complete environments of a node, most recently used first.

    Args:
        root: The node's folder of environments.
    """
    cache = Cache(root)
    used = cache.used_by()
    found = [
        one
        for folder in _folders(root)
        if (one := _built(folder, tuple(used.get(folder.name, ())))) is not None
    ]
    return sorted(found, key=lambda one: one.used_at, reverse=True)


def find(root: Path, key: str) -> Built:
    """Return the environment whose key begins with `key`.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    found = [one for one in built(root) if one.key.startswith(key)] if len(key) >= LEAST_KEY else []
    if not found:
        raise NotFoundError(f"no environment {key!r} is built here; `rayjobs env ls` lists them")
    if len(found) > 1:
        keys = ", ".join(one.key[:12] for one in found)
        raise UsageError(f"{key!r} matches several environments: {keys}")
    return found[0]


def prune_to_size(root: Path, most_bytes: int, *, dry_run: bool) -> tuple[list[Built], Removed]:
    """Remove the least recently used environments until the rest fits; never one in use.

    Args:
        root: The node's scratch folder, which contains the environments.

    Returns:
        The environments that were chosen, and what was removed: nothing in a dry run.
    """
    removed, gone = Removed(), []
    everything = built(root / prune.FOLDER)
    total = sum(one.bytes for one in everything)
    for one in reversed(everything):
        if total <= most_bytes:
            break
        if one.used_by:
            continue
        gone.append(one)
        total -= one.bytes
    if not dry_run and gone:
        with OwnFolder(root) as folder:
            for one in gone:
                # An environment that was used in the meantime has a later time.
                cutoff = one.used_at.timestamp() + 0.001
                removed.add(prune.remove(folder, f"{prune.FOLDER}/{one.key}", cutoff))
    return gone, removed


def prune_unused(root: Path, older_than_s: float, *, dry_run: bool) -> list[Built]:
    """Remove environments unused for this many seconds; return those that were chosen."""
    cutoff = time.time() - older_than_s
    gone = []
    for one in built(root / prune.FOLDER):
        if one.used_by or one.used_at.timestamp() >= cutoff:
            continue
        gone.append(one)
        if not dry_run:
            with OwnFolder(root) as folder:
                prune.remove(folder, f"{prune.FOLDER}/{one.key}", cutoff)
    return gone


def _folders(root: Path) -> Iterator[Path]:
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:
        return
    yield from (one for one in entries if KEY.fullmatch(one.name))


def _built(folder: Path, used_by: tuple[str, ...]) -> Built | None:
    record = folder / RECORD
    try:
        values = json.loads(record.read_text())
        used_at = datetime.fromtimestamp(record.stat().st_mtime, UTC)
    except (OSError, ValueError):
        return None  # it is being built, or removed
    return Built(
        key=folder.name,
        kind=str(values.get("kind", "pip")),
        name=str(values.get("name") or ""),
        python=str(values.get("python", "")),
        packages=int(values.get("packages") or 0),
        bytes=_size(folder),
        took_s=float(values.get("took_s") or 0),
        used_at=used_at,
        used_by=used_by,
    )


def _size(folder: Path) -> int:
    total = 0
    for root, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - many
            except OSError:
                continue
    return total
