"""Ends the processes of an attempt whose host is dead, and proves that none is left."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from rayjobs.injob import cgroups
from rayjobs.injob.exit_record import Remaining
from rayjobs.injob.identity import Identity, ProcessStat, boot_id, is_alive, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.memory import remove_cgroups_of
from rayjobs.injob.processes import children, descendants
from rayjobs.injob.tree import Tree, as_remaining, cgroup_name

_TICK_S = 0.02
_KILL_S = 15.0
_KILL_ROUNDS = 5


@dataclass(frozen=True)
class Proof:
    """The result of ending an attempt's processes.

    Attributes:
        proven_dead: No process of the attempt runs on this machine any more.
        killed: How many processes this ended.
        remaining: Processes that did not end, such as one in uninterruptible sleep: the
            allocation on the node must stay draining.
        how: The evidence, in words.
    """

    proven_dead: bool
    killed: int
    remaining: tuple[Remaining, ...]
    how: str


def find_leftovers(marker: str, cgroup: str | None = None) -> list[ProcessStat]:
    """Return the living processes of an attempt, its host included."""
    return Tree(marker, _cgroup_of(marker, cgroup), holder=None).members()


def end_leftovers(
    marker: str, cgroup: str | None = None, grace_s: float = 2.0, *, boot: str | None = None
) -> Proof:
    """End every process of an attempt and prove it. Blocks for at most `grace_s` plus 15 s.

    This includes the attempt's host: ask a living host to cancel instead. It signals only processes
    that are in the cgroup or have the marker at this moment, each by its identity, and so never a
    process that reuses a pid. Idempotent.

    Args:
        marker: The attempt's marker, unique for all time.
        cgroup: The cgroup from host.json; if None, it is found by its name.
        grace_s: Time between SIGTERM and SIGKILL.
        boot: The boot id of the attempt's host: no process survives a reboot.
    """
    if boot is not None and boot != boot_id():
        return Proof(True, 0, (), "the machine has been restarted since then")
    folder = _cgroup_of(marker, cgroup)
    tree = Tree(marker, folder, holder=None)
    ended: set[tuple[int, int]] = set()
    members = tree.members()
    if members and grace_s > 0:
        tree.signal(members, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while members and time.monotonic() < deadline:
            ended.update((stat.pid, stat.start_time) for stat in members)
            time.sleep(_TICK_S)
            members = tree.members()
    deadline = time.monotonic() + _KILL_S
    while members and time.monotonic() < deadline:
        ended.update((stat.pid, stat.start_time) for stat in tree.kill())
        time.sleep(_TICK_S)
        members = tree.members()
    if not members:
        remove_cgroups_of(marker)
    return Proof(
        not members,
        len(ended) - len(members),
        as_remaining(members),
        "cgroup and marker scan" if folder is not None else "marker scan",
    )


def signal_ranks(host: Identity, number: int) -> None:
    """Send a signal to the children of an attempt's host: its ranks and their helpers."""
    found = children(host.pid)
    listed = descendants(host.pid) if found is None else found
    for stat in listed if is_alive(host) else ():
        with contextlib.suppress(PermissionError):
            send_signal(Identity(stat.pid, stat.start_time, host.boot_id), number)


def kill_with_host(marker: str, host: Identity) -> None:
    """Send SIGKILL to an attempt whose host does not answer: to its processes, then to the host.

    A stopped host still holds its tree: every process in it is a descendant of the host, whatever
    its environment is. A PID namespace ends with its host. `end_leftovers` proves the end.
    """
    if not is_alive(host):
        return
    tree = Tree(marker, _cgroup_of(marker, None), holder=host.pid)
    for _ in range(_KILL_ROUNDS):
        # The host last: without it, an orphan with a cleared environment cannot be found.
        held = [stat for stat in tree.members() if stat.pid != host.pid]
        if not held:
            break
        tree.signal(held, signal.SIGKILL)
        time.sleep(_TICK_S)
    tree.kill()
    with contextlib.suppress(PermissionError):
        send_signal(host, signal.SIGKILL)


def _cgroup_of(marker: str, cgroup: str | None) -> str | None:
    """Return the attempt's cgroup folder if it still exists and belongs to the attempt."""
    name = cgroup_name(marker)
    # A wrong path in a record must never kill another cgroup.
    if cgroup is not None and Path(cgroup).name == name and Path(cgroup).is_dir():
        return cgroup
    for mount in cgroups.mounts():
        folder = Path(mount.own) / name
        if mount.version == 2 and folder.is_dir():
            return str(folder)
    return None
