"""What Ray gives its workers, and jobs that are started from one must not have."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from rayjobs.injob.identity import stat_of

log = logging.getLogger(__name__)

# Ray's own workers are to yield, and to be ended first when memory runs out; ranks are not Ray's.
# Read by the raylet and handed on, so it counts in every process that the head is started with.
HEAD_ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_worker_oom_score_adjustment": "0"}


def take_over(parent: int | None = None) -> None:
    """Give this process, and so all that it starts, the standing of the raylet that started it.

    For a cluster whose head was started without `HEAD_ENVIRONMENT`: there a worker has a niceness
    of 15 and an oom_score_adj of 1000. A niceness can only be lowered by root, or within
    RLIMIT_NICE; where it cannot, it stays, which is logged.

    Args:
        parent: The raylet; by default the parent of this process, if that is one.
    """
    if parent is None:
        parent = os.getppid()
        stat = stat_of(parent)
        if stat is None or stat.comm != "raylet":
            return
    try:
        wanted = os.getpriority(os.PRIO_PROCESS, parent)
        # Linux keeps it for each thread: a new process has that of the one that forked it.
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
