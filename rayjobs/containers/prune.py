"""Which unpacked images of a machine may be removed, and their removal while they are unused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rayjobs.containers.cache import KEY, ImageCache, key_of_build
from rayjobs.containers.unpacking import RECORD
from rayjobs.core.files import locked_if_free
from rayjobs.core.safe_delete import OwnFolder, Removed
from rayjobs.environments.prune import Unused

FOLDER = "images"
_NAME = re.compile(r"[0-9a-f]{32}\.json")


def unused(root: Path, folder: OwnFolder, cutoff: float) -> Iterator[Unused]:
    """Yield what was not used since `cutoff`, and what stays though it is that old.

    Args:
        root: The node's scratch, open as `folder`.
        cutoff: Seconds since the epoch.
    """
    cache = ImageCache(root / FOLDER)
    used = cache.used_by()
    for name, info in folder.entries(FOLDER):
        if KEY.fullmatch(name) is None:
            continue
        inside = dict(folder.entries(f"{FOLDER}/{name}"))
        last_use = inside[RECORD].st_mtime if RECORD in inside else info.st_mtime
        if last_use >= cutoff:
            continue
        stays = f"{used[name][0]} uses it" if used.get(name) else ""
        yield Unused(f"{FOLDER}/{name}", "unused for long", stays)
    for name, info in folder.entries(f"{FOLDER}/building"):
        key = key_of_build(name)
        if key is not None and info.st_mtime < cutoff:
            with locked_if_free(cache.lock_of(key)) as alone:
                stays = "" if alone else "it is being fetched"
            yield Unused(f"{FOLDER}/building/{name}", "its fetch has died", stays)
    for name, info in folder.entries(f"{FOLDER}/names"):
        if _NAME.fullmatch(name) and info.st_mtime < cutoff:
            yield Unused(f"{FOLDER}/names/{name}", "unused for long")


def remove(folder: OwnFolder, name: str, cutoff: float) -> Removed:
    """Remove one thing that `unused` named, unless it is used by now."""
    removed = Removed()
    last = name.rpartition("/")[2]
    cache = ImageCache(folder.root / FOLDER)
    key = last if KEY.fullmatch(last) else key_of_build(last)
    if key is None:
        return folder.remove(name, only_if=lambda info: info.st_mtime < cutoff)
    with locked_if_free(cache.lock_of(key)) as alone:
        if not alone or (last == key and cache.used_by().get(key)):
            removed.spared += 1
            return removed
        if last == key:
            # Without its record the rest is not a whole image.
            record = f"{name}/{RECORD}"
            removed.add(folder.remove(record, only_if=lambda info: info.st_mtime < cutoff))
        if not removed.spared:
            removed.add(folder.remove(name))
    return removed
