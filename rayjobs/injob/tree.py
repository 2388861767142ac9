"""Contains the process tree of an attempt: no process escapes, and all can be ended reliably."""

from __future__ import annotations

import os
import signal
from typing import Iterable, Sequence, Tuple

from rayjobs.injob import cgroups, kernel
from rayjobs.injob.exit_record import Remaining
from rayjobs.injob.identity import Identity, ProcessStat, boot_id, send_signal, stat_of
from rayjobs.injob.namespace import Namespace, NamespaceRefused
from rayjobs.injob.processes import children, descendants, marked

CGROUP, NAMESPACE, SCAN = "cgroup", "namespace", "scan"
LEVELS = (CGROUP, NAMESPACE, SCAN)  # the best first
_KINDS = {CGROUP: "cgroup2", NAMESPACE: "namespace", SCAN: "subreaper"}


class NotContainedError(OSError):
    """None of the requested containment methods is available here."""


def cgroup_name(marker: str) -> str:
    """The name of an attempt's cgroups, in every hierarchy."""
    return "rayjobs-" + "".join(c if c.isalnum() or c in "-_." else "_" for c in marker)


# With these capabilities root could unmount the protection of its inputs, enter another mount
# namespace or reach it through /proc/PID/root, or open a file by inode number past any mount.
MOUNT_RIGHTS = (kernel.CAP_SYS_ADMIN, kernel.CAP_SYS_PTRACE, kernel.CAP_DAC_READ_SEARCH)


class Tree:
    """The processes of an attempt, contained by a cgroup v2, a PID namespace, or only their host.

    The host, a child subreaper, is always an ancestor of all of them. The proof of the end is
    always the same: no member of the cgroup, no descendant of the host, no process with the marker.
    Once the host is dead, only a cgroup or a namespace still contains a process that has cleared
    its environment.
    """

    def __init__(
        self,
        marker: str,
        cgroup: str | None,
        *,
        holder: int | None,
        namespace: Namespace | None = None,
    ) -> None:
        """Represent the tree of `marker`; `holder` is the subreaping host, None if it is dead."""
        self.marker = marker
        self.cgroup = cgroup
        self.namespace = namespace
        self.refused: list[str] = []
        self.root: str | None = None  # the mounted image that its processes enter
        self.has_mounts = False  # its processes must not remove their mounts
        self.helpers: set[int] = set()  # children of the holder that do not belong to the attempt
        self._holder = holder
        self._boot_id = boot_id()

    @staticmethod
    def make(
        marker: str, levels: Sequence[str] = (CGROUP, SCAN), *, use_cgroups: bool = True
    ) -> Tree:
        """Make a tree contained by the calling process, which must be a child subreaper.

        Args:
            levels: Those of `LEVELS` to try, in order; `refused` says why earlier ones were not
                available.

        Raises:
            NotContainedError: none of the levels is available here.
            OSError: the namespace's init cannot be started.
        """
        refused = []
        cgroup, namespace = None, None
        for level in levels:
            if level == CGROUP:
                cgroup, why = find_cgroup(marker) if use_cgroups else (None, "switched off")
                if cgroup is None:
                    refused.append(f"cgroup: {why}")
                    continue
            elif level == NAMESPACE:
                try:
                    namespace = Namespace.make(marker)
                except NamespaceRefused as error:
                    refused.append(f"namespace: {error}")
                    continue
            tree = Tree(marker, cgroup, holder=os.getpid(), namespace=namespace)
            tree.refused = refused
            return tree
        raise NotContainedError(
            f"the attempt's processes are to be contained by {' or '.join(levels)}, which this "
            f"machine does not allow: {'; '.join(refused)}"
        )

    @property
    def kind(self) -> str:
        """The containment method: "cgroup2", "namespace" or "subreaper"."""
        if self.namespace is not None:
            return _KINDS[NAMESPACE]
        return _KINDS[SCAN if self.cgroup is None else CGROUP]

    def enter(self) -> None:
        """Add a fresh child of the holder to the tree, before it runs anything.

        Raises:
            OSError: the kernel refused.
        """
        if self.namespace is not None:
            self.namespace.enter(self.root)
        if self.has_mounts:
            # fault 71: root unmounts its input, reaches around it, or opens its files by handle
            kernel.drop_for_good(MOUNT_RIGHTS)

    def close(self) -> None:
        """Release the containment of an empty tree; the holder must then reap init."""
        if self.namespace is not None:
            self.namespace.close()

    def _not_members(self) -> set[int]:
        init = () if self.namespace is None else (self.namespace.init.pid,)
        return {os.getpid(), *init, *self.helpers}

    def add(self, pid: int) -> None:
        """Put a process that has no children yet into the tree."""
        if self.cgroup is not None and not cgroups.write(self.cgroup, "cgroup.procs", str(pid)):
            # Happens if the common ancestor of both cgroups belongs to another user.
            cgroups.remove(self.cgroup, patience_s=0.0)
            self.cgroup = None

    def members(self) -> list[ProcessStat]:
        """Every live process of the tree, found by all methods, without its holder."""
        found = {stat.pid: stat for stat in self.contained()}
        found.update((stat.pid, stat) for stat in marked(self.marker, without=self._not_members()))
        return [stat for _, stat in sorted(found.items())]

    def contained(self) -> list[ProcessStat]:
        """The live processes in the cgroup or below the holder: cheaper than `members`."""
        found: dict[int, ProcessStat] = {}
        if self.cgroup is not None:
            for pid in cgroups.pids(self.cgroup):
                stat = stat_of(pid)
                if stat is not None and not stat.is_dead:
                    found[pid] = stat
        if self._holder is not None:
            found.update((stat.pid, stat) for stat in descendants(self._holder))
        others = self._not_members()
        return [stat for pid, stat in sorted(found.items()) if pid not in others]

    def is_empty_quickly(self) -> bool:
        """Whether cheap checks suggest that the tree is empty; `members` is the proof."""
        if self.cgroup is not None and cgroups.value(self.cgroup, "cgroup.events", "populated"):
            return False
        if self._holder is None:
            return True
        others = self._not_members()
        # Orphans become children of the holder or of init, so checking these two suffices, however
        # many processes the machine has.
        found = [children(pid) for pid in others]
        listed = [stat for one in found if one is not None for stat in one]
        if None in found:
            listed = descendants(self._holder)
        return all(stat.pid in others for stat in listed)

    def signal(self, members: Iterable[ProcessStat], number: int) -> int:
        """Send a signal to exactly these processes; return how many were still alive."""
        reached = 0
        for stat in members:
            try:
                reached += send_signal(self.identity(stat), number)
            except PermissionError:
                continue  # it now belongs to another user: it stays a member, and is reported
        return reached

    def kill(self) -> list[ProcessStat]:
        """Send SIGKILL to the whole tree once; return the members that were alive before."""
        members = self.members()
        if self.cgroup is not None:
            cgroups.write(self.cgroup, "cgroup.kill", "1")
        if self.namespace is not None:
            self.namespace.kill()
        self.signal(members, signal.SIGKILL)
        return members

    def identity(self, stat: ProcessStat) -> Identity:
        """The identity of a process seen in this boot."""
        return Identity(stat.pid, stat.start_time, self._boot_id)


def make_cgroup(marker: str) -> str | None:
    """Make a version 2 cgroup that can be killed as a whole; None if that is unavailable."""
    return find_cgroup(marker)[0]


def find_cgroup(marker: str) -> tuple[str | None, str]:
    """Make a cgroup as `make_cgroup` does; return its folder, or None and the reason."""
    why = "no cgroup v2 is mounted"
    for mount in cgroups.mounts():
        if mount.version != 2:
            continue
        folder = cgroups.make(mount.own, cgroup_name(marker))
        if folder is None:
            why = f"no cgroup can be created in {mount.own}"
            continue
        can_kill = os.access(os.path.join(folder, "cgroup.kill"), os.W_OK)
        # Moving a process also needs a permission on the common ancestor of both cgroups.
        can_join = all(
            os.access(os.path.join(parent, "cgroup.procs"), os.W_OK)
            for parent in (folder, mount.own)
        )
        if can_kill and can_join:
            return folder, ""
        why = (
            f"processes cannot be moved into a cgroup below {mount.own}"
            if can_kill
            else "this kernel has no cgroup.kill (Linux 5.14)"
        )
        cgroups.remove(folder, patience_s=0.0)
    return None, why


def as_remaining(members: Iterable[ProcessStat]) -> Tuple[Remaining, ...]:
    """Return processes in the form of an exit record."""
    return tuple(Remaining(stat.pid, stat.start_time, stat.comm) for stat in members)
