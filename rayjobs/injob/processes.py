"""Finds processes: all, the descendants of one, or those that carry a marker."""

from __future__ import annotations

import os
import time
from typing import Iterable, Iterator

from rayjobs.injob import open_files
from rayjobs.injob.identity import ProcessStat, stat_of

MARKER_VARIABLE = "RAYJOBS_MARKER"
EXEC_S = 1.0  # the longest wait for the end of an exec: it takes milliseconds on a loaded machine


def all_pids() -> list[int]:
    """The pids that `/proc` shows now."""
    names = open_files.patiently(lambda: os.listdir("/proc"))
    return [int(name) for name in names if name.isdigit()]


def all_processes() -> Iterator[ProcessStat]:
    """Every process that `/proc` shows; skips those that end meanwhile."""
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is not None:
            yield stat


def descendants(root: int) -> list[ProcessStat]:
    """Living descendants of `root`, without `root` itself and without zombies.

    Complete if `root` is a child subreaper: then no descendant can leave its tree.
    """
    children: dict[int, list[ProcessStat]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat)
    found: list[ProcessStat] = []
    waiting = [root]
    seen = {root}
    while waiting:
        for stat in children.get(waiting.pop(), []):
            if stat.pid not in seen:
                seen.add(stat.pid)
                waiting.append(stat.pid)
                found.append(stat)
    return [stat for stat in found if not stat.is_dead]


def children(pid: int) -> list[ProcessStat] | None:
    """Living children of a process; None if this kernel does not list them.

    An empty list is accurate; a longer one may miss some while others end (proc(5)).
    """

    def listed() -> list[int]:
        pids: list[int] = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += [int(word) for word in file.read().split()]
        return pids

    try:
        found = [stat_of(child) for child in open_files.patiently(listed)]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return [stat for stat in found if stat is not None and not stat.is_dead]


def environment_of(pid: int, *, deadline: float | None = None) -> list[bytes]:
    """Return the entries ``NAME=value`` of a process's environment block, which it got at its exec.

    It is empty if the process has ended or belongs to another user. In the middle of an exec, the
    kernel shows neither a command line nor an environment; this waits for the end of the exec.

    Args:
        deadline: When to stop waiting, by the monotonic clock; None: after `EXEC_S`.

    Raises:
        OSError: The file limit is reached, so the block is unknown.
    """
    had_command = False
    while True:
        block = _read(pid, "environ")
        if block is None:
            return []
        if block or had_command:
            return block.split(b"\0")
        stat = stat_of(pid)
        if stat is None or stat.is_dead or stat.is_kernel_thread:
            return []  # newer kernels refuse to open the block of a process without memory
        # The command line appears first, so only the next reading shows whether there is a block.
        had_command = bool(_read(pid, "cmdline"))
        now = time.monotonic()
        deadline = now + EXEC_S if deadline is None else deadline
        if now >= deadline:
            return []
        time.sleep(0.001)


def _read(pid: int, name: str) -> bytes | None:
    """Return the content of a file of a process; None if it has ended or is another user's."""

    def read() -> bytes:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()

    try:
        return open_files.patiently(read)
    except OSError as error:
        if error.errno in open_files.ERRORS:
            raise
        return None


def marker_of(pid: int) -> str:
    """Return the marker in the environment block of a process; empty without one."""
    name = f"{MARKER_VARIABLE}=".encode()
    for entry in environment_of(pid):
        if entry.startswith(name):
            return entry[len(name) :].decode("utf-8", "replace").strip()
    return ""


def has_marker(pid: int, marker: str, *, deadline: float | None = None) -> bool:
    """Whether the environment block of `pid` names this marker; see `environment_of`."""
    return f"{MARKER_VARIABLE}={marker}".encode() in environment_of(pid, deadline=deadline)


def marked(marker: str, *, without: Iterable[int] = ()) -> list[ProcessStat]:
    """Living processes whose environment block carries `marker`, except the pids in `without`."""
    left_out = set(without)
    deadline = time.monotonic() + EXEC_S  # of the whole scan
    found = []
    for pid in all_pids():
        # Most processes lack the marker and need no further check.
        if pid in left_out or not has_marker(pid, marker, deadline=deadline):
            continue
        # The stat is read before and after: a pid reused in between must not be reported.
        before = stat_of(pid)
        if before is None or before.is_dead or not has_marker(pid, marker, deadline=deadline):
            continue
        after = stat_of(pid)
        if after is not None and after.start_time == before.start_time and not after.is_dead:
            found.append(after)
    return found
