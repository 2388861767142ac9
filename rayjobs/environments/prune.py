"""Finds and removes unused environments and caches of a machine.

Images follow the same rules (`Prunable`): both are folders with a key that attempts use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rayjobs.core.files import locked_if_free
from rayjobs.core.safe_delete import OwnFolder, Removed
from rayjobs.environments.cache import KEY, RECORD, Cache, key_of_build
from rayjobs.injob.lazy_dataclass import dataclass

FOLDER = "environments"
CACHE = "cache"
_LOCK_ENDING = ".lock"


@dataclass(frozen=True)
class Unused:
    """An item that may be removed, or stays for a reason.

    Attributes:
        name: Its path below the node's scratch folder.
        why: Why it counts as unused.
        stays: Why it stays; empty if it may be removed.
        kind: Its name in `Leftover`; empty: the name of its folder.
    """

    name: str
    why: str
    stays: str = ""
    kind: str = ""


class UsedByKey(Protocol):
    """A cache of folders by key."""

    def used_by(self) -> Mapping[str, Sequence[str]]:
        """Return the attempts that use a key's folder."""
        ...

    def lock_of(self, key: str, /) -> Path:
        """Return the lock that a process holds while it makes or removes a key's folder."""
        ...


@dataclass(frozen=True)
class Prunable:
    """Items of a node by key: built under a lock, complete with a record, used by attempts.

    Attributes:
        folder: Their folder, below the node's scratch folder.
        cache: Returns the cache of such a folder.
        record: The file that marks a complete item; its time is the last use.
        notes: The folder of notes that lead to them, and the pattern of the notes' names.
        making: The names of their creation, as a noun and as a participle.
    """

    folder: str
    cache: Callable[[Path], UsedByKey]
    record: str
    notes: tuple[str, re.Pattern[str]]
    making: tuple[str, str]

    def unused(self, root: Path, folder: OwnFolder, cutoff: float) -> Iterator[Unused]:
        """Yield entries unused since `cutoff`, and old entries that must stay.

        Args:
            root: The node's scratch folder, open as `folder`.
            cutoff: Seconds since the epoch.
        """
        cache = self.cache(root / self.folder)
        used = cache.used_by()
        for name, info in folder.entries(self.folder):
            if KEY.fullmatch(name) is None:
                continue
            inside = dict(folder.entries(f"{self.folder}/{name}"))
            last_use = inside[self.record].st_mtime if self.record in inside else info.st_mtime
            if last_use < cutoff:
                stays = f"{used[name][0]} uses it" if used.get(name) else ""
                yield Unused(f"{self.folder}/{name}", "unused for long", stays)
        what, doing = self.making
        for name, info in folder.entries(f"{self.folder}/building"):
            key = key_of_build(name)
            if key is not None and info.st_mtime < cutoff:
                with locked_if_free(cache.lock_of(key)) as alone:
                    stays = "" if alone else f"it is being {doing}"
                yield Unused(f"{self.folder}/building/{name}", f"its {what} has died", stays)
        part, pattern = self.notes
        for name, info in folder.entries(f"{self.folder}/{part}"):
            if pattern.fullmatch(name) and info.st_mtime < cutoff:
                yield Unused(f"{self.folder}/{part}/{name}", "unused for long")

    def remove(self, folder: OwnFolder, name: str, cutoff: float) -> Removed:
        """Remove an item that `unused` named, unless it is now in use."""
        removed = Removed()
        last = name.rpartition("/")[2]
        cache = self.cache(folder.root / self.folder)
        key = last if KEY.fullmatch(last) else key_of_build(last)
        if key is None:
            return folder.remove(name, only_if=lambda info: info.st_mtime < cutoff)
        with locked_if_free(cache.lock_of(key)) as alone:
            if not alone or (last == key and cache.used_by().get(key)):
                removed.spared += 1
                return removed
            if last == key:
                # Without its record, the rest does not count as complete.
                record = f"{name}/{self.record}"
                removed.add(folder.remove(record, only_if=lambda info: info.st_mtime < cutoff))
            if not removed.spared:
                removed.add(folder.remove(name))
        return removed


ENVIRONMENTS = Prunable(
    folder=FOLDER,
    cache=Cache,
    record=RECORD,
    notes=("requests", re.compile(r"[0-9a-f]{64}\.txt")),
    making=("build", "built"),
)


def unused(root: Path, folder: OwnFolder, cutoff: float) -> Iterator[Unused]:
    """See `Prunable.unused`; also yields build files: conda packages, projects of jobs."""
    yield from ENVIRONMENTS.unused(root, folder, cutoff)
    cache = Cache(root / FOLDER)
    old = [
        f"{FOLDER}/{part}/{name}"
        for part in cache.kept_for_builds
        for name, info in folder.entries(f"{FOLDER}/{part}")
        if not name.endswith(_LOCK_ENDING) and info.st_mtime < cutoff
    ]
    if old:
        with locked_if_free(cache.builds) as alone:
            stays = "" if alone else "an environment is being built"
        yield from (Unused(name, "unused for long", stays, CACHE) for name in old)


def remove(folder: OwnFolder, name: str, cutoff: float) -> Removed:
    """Remove an item that `unused` named, unless it is now in use."""
    return ENVIRONMENTS.remove(folder, name, cutoff)


def remove_kept(folder: OwnFolder, name: str, cutoff: float) -> Removed:
    """Remove build files that `unused` named, unless a build is running or has used them."""
    removed = Removed()
    with locked_if_free(Cache(folder.root / FOLDER).builds) as alone:
        if not alone:
            removed.spared += 1
            return removed
        removed.add(folder.remove(name, only_if=lambda info: info.st_mtime < cutoff))
        if not removed.spared:
            removed.add(folder.remove(f"{name}{_LOCK_ENDING}"))
    return removed
