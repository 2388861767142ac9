"""Resets the niceness and OOM score that Ray workers inherit, for the jobs they start."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from rayjobs.injob.identity import stat_of

log = logging.getLogger(__name__)

# Ray gives its workers a low priority, and they are killed first when memory runs out; ranks must
# not inherit that. The raylet reads these variables and passes them on, so every process that
# starts the head must have them.
HEAD_ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_worker_oom_score_adjustment": "0"}


def take_over(parent: int | None = None) -> None:
    """Give this process and its children the niceness and OOM score of their raylet.

    For a cluster whose head was started without `HEAD_ENVIRONMENT`: its workers have a niceness of
    15 and an oom_score_adj of 1000. Only root, or a process within RLIMIT_NICE, can lower a
    niceness; if this process cannot, it logs a warning.

    Args:
        parent: The raylet; by default, this process's parent if it is a raylet.
    """
    if parent is None:
        parent = os.getppid()
        stat = stat_of(parent)
        if stat is None or stat.comm != "raylet":
            return
    try:
        wanted = os.getpriority(os.PRIO_PROCESS, parent)
        # Linux keeps it per thread: a new process inherits it from the forking thread.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                if os.getpriority(os.PRIO_PROCESS, int(thread)) != wanted:
                    os.setpriority(os.PRIO_PROCESS, int(thread), wanted)
    except OSError as error:
        log.warning("jobs of this node run at niceness %d: %s", os.nice(0), error)
    try:
        adjustment = Path(f"/proc/{parent}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(adjustment)
    except OSError as error:
        log.warning("jobs of this node keep the oom_score_adj of Ray's workers: %s", error)
