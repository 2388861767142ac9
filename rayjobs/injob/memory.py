"""Limits a process tree's memory and number of processes."""

from __future__ import annotations

import os
import signal

from rayjobs.injob import cgroups
from rayjobs.injob.exit_record import MemoryUse, PidsLimit
from rayjobs.injob.identity import ProcessStat
from rayjobs.injob.tree import Tree, cgroup_name

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryLimit:
    """Keeps a tree below `limit_bytes`, by the first of cgroup2, cgroup1, watch that works."""

    def __init__(self, limit_bytes: int | None, tree: Tree, *, use_cgroups: bool = True) -> None:
        self.limit_bytes = limit_bytes
        self.how = "none"
        self.folder: str | None = None
        self.killed_by_watch: int | None = None
        self._tree = tree
        self._peak = 0
        if limit_bytes is None:
            return
        self.how = "watch"
        if use_cgroups and not self._limit_in_version_2(limit_bytes):
            self._limit_in_version_1(limit_bytes)

    def _limit_in_version_2(self, limit_bytes: int) -> bool:
        folder = self._tree.cgroup
        if folder is None or not cgroups.write(folder, "memory.max", str(limit_bytes)):
            return False
        cgroups.write(folder, "memory.swap.max", "0")
        self.how = "cgroup2"
        return True

    def _limit_in_version_1(self, limit_bytes: int) -> None:
        folder = _make_version_1("memory", self._tree.marker)
        if folder is None:
            return
        if not cgroups.write(folder, "memory.limit_in_bytes", str(limit_bytes)):
            cgroups.remove(folder, patience_s=0.0)
            return
        cgroups.write(folder, "memory.memsw.limit_in_bytes", str(limit_bytes))
        self.folder = folder
        self.how = "cgroup1"

    def add(self, pid: int) -> None:
        """Apply the limit to a process that has no children yet."""
        if self.how == "cgroup2" and self._tree.cgroup is None:
            self.how = "watch"  # the tree could not use its cgroup after all
        if self.folder is not None and not cgroups.write(self.folder, "cgroup.procs", str(pid)):
            cgroups.remove(self.folder, patience_s=0.0)
            self.folder, self.how = None, "watch"

    def check(self) -> ProcessStat | None:
        """Watch only: kill the largest process of a tree that is over its limit, and return it."""
        if self.how != "watch" or self.limit_bytes is None:
            return None
        sizes = {stat: resident_bytes(stat.pid) for stat in self._tree.contained()}
        # The sum counts shared pages once per process; the exact but slower figure is needed only
        # if the sum is too large.
        if sum(sizes.values()) > self.limit_bytes:
            sizes = {stat: proportional_bytes(stat.pid) for stat in sizes}
        used = sum(sizes.values())
        self._peak = max(self._peak, used)
        if used <= self.limit_bytes:
            return None
        largest = max(sizes, key=lambda stat: sizes[stat])
        self._tree.signal([largest], signal.SIGKILL)
        self.killed_by_watch = largest.pid
        return largest

    def was_exceeded(self) -> bool:
        """Whether a process was killed because this limit, and no other, was reached."""
        if self.how == "watch":
            return self.killed_by_watch is not None
        if self.how == "cgroup2" and self._tree.cgroup is not None:
            return bool(cgroups.value(self._tree.cgroup, "memory.events", "oom_kill"))
        if self.folder is not None:
            return bool(cgroups.value(self.folder, "memory.oom_control", "oom_kill"))
        return False

    def as_record(self) -> MemoryUse:
        """The `memory` entry of an exit record; read it before `remove_cgroups_of`."""
        peak: int | None = self._peak or None
        if self.how == "cgroup2" and self._tree.cgroup is not None:
            peak = _number(cgroups.read(self._tree.cgroup, "memory.peak"))
        elif self.folder is not None:
            peak = _number(cgroups.read(self.folder, "memory.max_usage_in_bytes"))
        return MemoryUse(self.limit_bytes, self.how, peak)


class ProcessLimit:
    """Keeps the number of processes and threads of a tree below a limit, where a cgroup can."""

    def __init__(self, limit: int | None, tree: Tree, *, use_cgroups: bool = True) -> None:
        self.limit = limit
        self.how = "none"
        self.folder: str | None = None
        if limit is None or not use_cgroups:
            return
        if tree.cgroup is not None and cgroups.write(tree.cgroup, "pids.max", str(limit)):
            self.how = "cgroup2"
            return
        self.folder = _make_version_1("pids", tree.marker)
        if self.folder is not None and cgroups.write(self.folder, "pids.max", str(limit)):
            self.how = "cgroup1"

    def add(self, pid: int) -> None:
        """Apply the limit to a process that has no children yet."""
        if self.folder is not None and not cgroups.write(self.folder, "cgroup.procs", str(pid)):
            self.how = "none"

    def as_record(self) -> PidsLimit:
        """The `pids` entry of an exit record."""
        return PidsLimit(self.limit, self.how)


def _make_version_1(controller: str, marker: str) -> str | None:
    for mount in cgroups.mounts():
        if mount.version == 1 and controller in mount.controllers:
            return cgroups.make(mount.own, cgroup_name(marker))
    return None


def remove_cgroups_of(marker: str) -> None:
    """Remove whatever cgroups an attempt has left in any hierarchy; its tree must be dead."""
    for mount in cgroups.mounts():
        folder = os.path.join(mount.own, cgroup_name(marker))
        if os.path.isdir(folder):
            cgroups.remove(folder)


def resident_bytes(pid: int) -> int:
    """The memory of a process with every shared page counted in full; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """The memory of a process with shared pages divided among their users (PSS); 0: unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError):
        return 0
    return 0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
