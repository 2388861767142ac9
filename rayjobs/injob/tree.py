"""Holding the process tree of an attempt: nothing leaves it, and it can be ended for certain."""

from __future__ import annotations

import os
import signal
from typing import Any, Iterable

from rayjobs.injob import cgroups
from rayjobs.injob.identity import Identity, ProcessStat, boot_id, send_signal, stat_of
from rayjobs.injob.processes import descendants, marked


def cgroup_name(marker: str) -> str:
    """The name of an attempt's cgroups, in every hierarchy."""
    return "rayjobs-" + "".join(c if c.isalnum() or c in "-_." else "_" for c in marker)


class Tree:
    """The processes of an attempt, held by a cgroup v2 where one can be made.

    Without one, the host being a child subreaper holds them: an orphan becomes the host's child.
    Both ways end with the same proof: no member of the cgroup, no descendant of the host, no
    process with the marker.
    """

    def __init__(self, marker: str, cgroup: str | None, *, holder: int | None) -> None:
        """Hold the tree of `marker`; `holder` is the subreaping host, None when it is dead."""
        self.marker = marker
        self.cgroup = cgroup
        self._holder = holder
        self._boot_id = boot_id()

    @staticmethod
    def make(marker: str, *, use_cgroups: bool = True) -> Tree:
        """A tree held by the calling process, which must be a child subreaper."""
        cgroup = make_cgroup(marker) if use_cgroups else None
        return Tree(marker, cgroup, holder=os.getpid())

    @property
    def kind(self) -> str:
        """What holds the tree: "cgroup2" or "subreaper"."""
        return "subreaper" if self.cgroup is None else "cgroup2"

    def add(self, pid: int) -> None:
        """Put a process that has no children yet into the tree."""
        if self.cgroup is not None and not cgroups.write(self.cgroup, "cgroup.procs", str(pid)):
            # Seen where the common ancestor of both cgroups belongs to somebody else.
            cgroups.remove(self.cgroup, patience_s=0.0)
            self.cgroup = None

    def members(self) -> list[ProcessStat]:
        """Every living process of the tree, found in every way, without its holder."""
        found = {stat.pid: stat for stat in self.held()}
        found.update((stat.pid, stat) for stat in marked(self.marker, without=[os.getpid()]))
        return [stat for _, stat in sorted(found.items())]

    def held(self) -> list[ProcessStat]:
        """The living processes that the cgroup or the holder has: cheaper than `members`."""
        found: dict[int, ProcessStat] = {}
        if self.cgroup is not None:
            for pid in cgroups.pids(self.cgroup):
                stat = stat_of(pid)
                if stat is not None and not stat.is_dead:
                    found[pid] = stat
        if self._holder is not None:
            found.update((stat.pid, stat) for stat in descendants(self._holder))
        return [stat for pid, stat in sorted(found.items()) if pid != os.getpid()]

    def is_empty_quickly(self) -> bool:
        """Whether the cheap signs say that nothing is left; `members` is the proof."""
        if self.cgroup is not None and cgroups.value(self.cgroup, "cgroup.events", "populated"):
            return False
        return self._holder is None or not descendants(self._holder)

    def signal(self, members: Iterable[ProcessStat], number: int) -> int:
        """Send a signal to exactly these processes; the count of those that were still there."""
        reached = 0
        for stat in members:
            try:
                reached += send_signal(self.identity(stat), number)
            except PermissionError:
                continue  # another user's by now: it stays among the members, and is reported
        return reached

    def kill(self) -> list[ProcessStat]:
        """Send SIGKILL to the whole tree once; the members that were seen alive before it."""
        members = self.members()
        if self.cgroup is not None:
            cgroups.write(self.cgroup, "cgroup.kill", "1")
        self.signal(members, signal.SIGKILL)
        return members

    def identity(self, stat: ProcessStat) -> Identity:
        """The identity of a process seen in this boot."""
        return Identity(stat.pid, stat.start_time, self._boot_id)


def make_cgroup(marker: str) -> str | None:
    """Make a version 2 cgroup that can be killed as a whole; None where that cannot be had."""
    for mount in cgroups.mounts():
        if mount.version != 2:
            continue
        folder = cgroups.make(mount.own, cgroup_name(marker))
        if folder is None:
            continue
        can_kill = os.access(os.path.join(folder, "cgroup.kill"), os.W_OK)
        can_join = os.access(os.path.join(folder, "cgroup.procs"), os.W_OK)
        if can_kill and can_join:
            return folder
        cgroups.remove(folder, patience_s=0.0)
    return None


def as_remaining(members: Iterable[ProcessStat]) -> list[dict[str, Any]]:
    """Processes as they stand in an exit record."""
    return [{"pid": stat.pid, "start_time": stat.start_time, "comm": stat.comm} for stat in members]
