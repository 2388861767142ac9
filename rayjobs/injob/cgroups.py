"""Finding, making, filling and removing cgroups of either version."""

from __future__ import annotations

import os
import time

from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Mount:
    """One mounted cgroup hierarchy and the folder in it that holds this process."""

    version: int
    controllers: frozenset[str]
    own: str


def mounts() -> list[Mount]:
    """The cgroup hierarchies this process can see, with its own path in each."""
    own_paths = _own_paths()
    found = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 5 or not rest or rest[0] not in ("cgroup", "cgroup2"):
            continue
        if rest[0] == "cgroup2":
            controllers: frozenset[str] = frozenset()
            path = own_paths.get("")
        else:
            options = set(rest[2].split(",")) if len(rest) > 2 else set()
            controllers = frozenset(options)
            path = next((own_paths[name] for name in own_paths if name in options), None)
        if path is not None:
            own = _within(fields[4], fields[3], path)
            found.append(Mount(2 if rest[0] == "cgroup2" else 1, controllers, own))
    return found


def _own_paths() -> dict[str, str]:
    """Controller name ("" for version 2) → path, from /proc/self/cgroup."""
    paths: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    paths[name] = path
    except OSError:
        pass  # no cgroups at all: the caller then finds no mount
    return paths


def _within(mount_point: str, mount_root: str, path: str) -> str:
    relative = os.path.relpath(path, mount_root)
    folder = os.path.normpath(os.path.join(mount_point, relative))
    inside = folder == mount_point or folder.startswith(mount_point + "/")
    # A container may see the host's path; its own root is then the mount point.
    return folder if inside and os.path.isdir(folder) else mount_point


def make(parent: str, name: str) -> str | None:
    """Make the cgroup `name` below `parent`; return its folder, or None if that is not allowed."""
    folder = os.path.join(parent, name)
    try:
        os.mkdir(folder)
    except FileExistsError:
        return folder
    except OSError:
        return None
    return folder


def write(folder: str, file: str, text: str) -> bool:
    """Write one control file; False if the kernel or the permissions refuse."""
    try:
        with open(os.path.join(folder, file), "w", encoding="ascii") as stream:
            stream.write(text)
    except OSError:
        return False
    return True


def read(folder: str, file: str) -> str | None:
    """One control file's text; None if it cannot be read."""
    try:
        with open(os.path.join(folder, file), encoding="ascii") as stream:
            return stream.read()
    except OSError:
        return None


def value(folder: str, file: str, key: str) -> int | None:
    """The number of one key in a control file of `key number` lines; None if it is missing."""
    for line in (read(folder, file) or "").splitlines():
        name, _, number = line.partition(" ")
        if name == key and number.strip().isdigit():
            return int(number)
    return None


def pids(folder: str) -> list[int]:
    """The processes in a cgroup and in those below it."""
    found: list[int] = []
    for path, _, _ in os.walk(folder):
        found.extend(int(line) for line in (read(path, "cgroup.procs") or "").split())
    return found


def remove(folder: str, *, patience_s: float = 2.0) -> bool:
    """Remove a cgroup and those below it; True when it is gone.

    A cgroup stays busy for a moment after its last process has ended, hence the retries.
    """
    deadline = time.monotonic() + patience_s
    while True:
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                continue  # still busy or already gone; the next round shows which
        if not os.path.isdir(folder):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
