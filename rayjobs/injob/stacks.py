"""Dumps the stacks of ranks from outside, and finds the rank that differs from the others.

It uses the first method that works: py-spy (part of Ray; it can also read a stopped process), the
rank's own dump on a signal (`rank.arm`), or /proc.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from typing import Dict, List, Optional, Sequence, Tuple

from rayjobs.injob import record_files
from rayjobs.injob.identity import Identity, send_signal, stat_of
from rayjobs.injob.rank import DUMP_SIGNAL
from rayjobs.injob.rank_stack import RankStack

STOPPED = "T"

_PY_SPY_S = 10.0
_ARMED_S = 1.0
_MOST_BYTES = 16 * 1024**2
_FRAME = re.compile(r"^ {2,}(?:File \"(?P<file>.+)\", line (?P<n>\d+),? in (?P<f>\S+)"
                    r"|(?P<f2>\S+) \((?P<file2>.+):(?P<n2>\d+)\))\s*$")  # fmt: skip
# In these libraries a rank waits for the others, so they do not wait for it.
_WAITS = ("torch/distributed", "horovod", "mpi4py", "/gloo", "nccl")


class Dump:
    """The stacks of one rank.

    Attributes:
        how: "py-spy", "signal" or "proc".
        text: The whole dump, for a file.
        frames: Of the main thread, innermost first: (function, file, line).
    """

    def __init__(self, rank: int, state: str, how: str, text: str) -> None:
        """Store the output of one method."""
        self.rank = rank
        self.state = state
        self.how = how
        self.text = text
        self.frames = main_frames(text)

    @property
    def where(self) -> str:
        """The innermost frame outside libraries, as text; empty if unknown."""
        if not self.frames:
            return ""
        own = [
            one for one in self.frames if "site-packages" not in one[1] and "/lib/" not in one[1]
        ]
        function, file, line = (own or self.frames)[0]
        return f"{os.path.basename(file)}:{line} in {function}"

    @property
    def waits_for_others(self) -> bool:
        """Whether it is inside a library that waits for the other ranks."""
        return any(mark in file for _, file, _ in self.frames for mark in _WAITS)

    def as_record(self) -> RankStack:
        """Its entry in the exit record."""
        return RankStack(
            rank=self.rank,
            state=self.state,
            how=self.how,
            where=self.where,
            waits=self.waits_for_others,
        )


def main_frames(text: str) -> Tuple[Tuple[str, str, int], ...]:
    """Return the main thread's frames of a dump, innermost first.

    py-spy names each thread; the main one is ``MainThread``, or nameless if its name is unreadable.
    `faulthandler` prints the thread that got the signal, the main one, last.
    """
    blocks: List[Tuple[str, List[Tuple[str, str, int]]]] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match is None:
            if "hread" in line:
                blocks.append((line, []))
        elif blocks:
            name = match["f"] or match["f2"]
            number = int(match["n"] or match["n2"])
            blocks[-1][1].append((name, match["file"] or match["file2"], number))
    if not blocks:
        return ()
    for title, frames in blocks:
        if "MainThread" in title or title.startswith("Current thread"):
            return tuple(frames)
    if blocks[0][0].startswith("Thread 0x"):
        return tuple(blocks[-1][1])
    return tuple(blocks[0][1])


def dump(rank: int, identity: Identity, armed_file: Optional[str]) -> Optional[Dump]:
    """Return where a rank is; None if it has ended. Usually takes tens of milliseconds.

    Args:
        armed_file: The file that the rank passed to `rank.arm`, if any.
    """
    stat = stat_of(identity.pid)
    if stat is None or stat.start_time != identity.start_time or stat.is_dead:
        return None
    text = _by_py_spy(identity.pid)
    if text is not None:
        return Dump(rank, stat.state, "py-spy", text)
    if armed_file is not None and stat.state != STOPPED:
        text = _by_signal(identity, armed_file)
        if text is not None:
            return Dump(rank, stat.state, "signal", text)
    return Dump(rank, stat.state, "proc", _by_proc(identity.pid))


def _by_py_spy(pid: int) -> Optional[str]:
    sibling = os.path.join(os.path.dirname(sys.executable), "py-spy")
    program = sibling if os.access(sibling, os.X_OK) else shutil.which("py-spy")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.decode("utf-8", "replace")
    return text if done.returncode == 0 and main_frames(text) else None


def _by_signal(identity: Identity, path: str) -> Optional[str]:
    """Ask the rank itself, if its handler and its output file are still in place."""
    if not _is_armed(identity.pid, path):
        return None
    try:
        before = os.stat(path).st_size
        send_signal(identity, DUMP_SIGNAL)
        deadline = time.monotonic() + _ARMED_S
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            last, size = size, os.stat(path).st_size
            if size > before and size == last:
                break
        with record_files.open_file(*os.path.split(path)) as file:
            file.seek(before)
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return text or None


def _is_armed(pid: int, path: str) -> bool:
    """Whether the signal is handled and the file still open: a script may close any descriptor."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        if not int(caught, 16) >> (DUMP_SIGNAL - 1) & 1:
            return False
        folder = f"/proc/{pid}/fd"
        return any(_same(os.path.join(folder, name), path) for name in os.listdir(folder))
    except (OSError, StopIteration, ValueError):
        return False


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _by_proc(pid: int) -> str:
    lines = ["No Python stack could be read (py-spy is missing, or may not read processes)."]
    try:
        tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        tasks = []
    for task in tasks:
        folder = f"/proc/{pid}/task/{task}"
        stat = stat_of(int(task))
        state = "?" if stat is None else stat.state
        lines.append(f"thread {task} {_read(folder + '/comm')}: state {state}, "
                     f"waits in {_read(folder + '/wchan') or '?'}")  # fmt: skip
        lines += [f"    {line}" for line in _read(folder + "/stack").splitlines()]
    return "\n".join(lines) + "\n"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def odd_ones(ranks: Sequence[RankStack]) -> Tuple[List[int], str]:
    """Return the ranks that the others most likely wait for, and why.

    These are stopped ranks; else ranks that do not wait while others do; else ranks that are at
    another place than most. Empty if no rank differs.

    Args:
        ranks: Entries of `Dump.as_record`, of all nodes.
    """
    stopped = [one for one in ranks if one.state == STOPPED]
    if stopped:
        return _numbers(stopped), "stopped by a signal (SIGSTOP)"
    waiting = [one for one in ranks if one.waits]
    busy = [one for one in ranks if not one.waits]
    if waiting and busy:
        at = busy[0].where or "an unknown place"
        return _numbers(busy), f"at {at}, while the others wait for it"
    by_position: Dict[str, List[RankStack]] = {}
    for one in ranks:
        by_position.setdefault(one.where, []).append(one)
    if len(by_position) > 1:
        sizes = sorted(by_position.values(), key=len)
        if len(sizes[0]) < len(sizes[-1]):
            at = sizes[0][0].where or "an unknown place"
            rest = sizes[-1][0].where or "an unknown place"
            return _numbers(sizes[0]), f"at {at}, while most are at {rest}"
    return [], ""


def _numbers(ranks: Sequence[RankStack]) -> List[int]:
    return sorted(one.rank for one in ranks)


def named(odd: List[int], how: str) -> str:
    """Return the sentence that names the odd ranks."""
    ranks = ", ".join(str(rank) for rank in odd)
    return f"rank {ranks} is {how}" if len(odd) == 1 else f"ranks {ranks} are {how}"
