"""When jobs end: at the latest, by their own limits, and probably."""

from __future__ import annotations

import math

from rayjobs.policy.records import OVERHEAD_S, Running, Waiting

# The basis of a time: the median of earlier runs (of the script in its experiment, or in any), a
# limit, the assumption that a job runs as long again as it has, or nothing. `OUTRUN`: a job has run
# longer than all earlier ones, and is assumed to exceed their median by as much again.
HISTORY, SCRIPT, LIMITS, ELAPSED, UNKNOWN = "history", "script", "limit", "elapsed", "unknown"
OUTRUN = "outrun"
# How long a job must have run before its running time is meaningful.
INFORMATIVE_ELAPSED_S = 10.0
# A running job without any history is assumed to run for at least this long from now.
LEAST_GUESS_S = 60.0
# A job that is ending is assumed to end within this time, however long its grace period is.
MOST_ENDING_S = 60.0
# A longer limit is only there to stop hanging jobs: it does not predict the running time.
INFORMATIVE_LIMIT_S = 2 * 86_400.0


def latest_end_s(job: Running, now_s: float) -> float:
    """Return the latest time at which the job releases its allocation; infinity without a limit."""
    margin_s = job.grace_s + OVERHEAD_S
    if job.is_ending:
        return now_s + margin_s
    if job.max_duration_s is None:
        return math.inf
    started_s = now_s if job.started_s is None else job.started_s
    return max(now_s, started_s + job.max_duration_s + margin_s)


def likely_end_s(job: Running, now_s: float) -> tuple[float, str]:
    """Return when a running job probably ends, and the basis.

    With history, this is the median; a job that has already exceeded it gets the excess once more,
    at least a tenth of the median; and if no earlier run took as long, that is a guess. Without
    history, a job is assumed to run as long again as it has, up to its limit: the longer something
    has run, the less likely it ends soon.
    """
    if job.is_ending:
        return now_s + min(job.grace_s, MOST_ENDING_S), LIMITS
    elapsed_s = 0.0 if job.started_s is None else max(0.0, now_s - job.started_s)
    left_s = math.inf
    if job.max_duration_s is not None:
        left_s = max(0.0, job.max_duration_s - elapsed_s) + job.grace_s
    if job.expected_s is not None:
        rest_s = job.expected_s - elapsed_s
        if rest_s <= 0:
            rest_s = max(0.1 * job.expected_s, -rest_s)
        if job.longest_s is not None and elapsed_s > job.longest_s:
            return (now_s + left_s, LIMITS) if left_s <= rest_s else (now_s + rest_s, OUTRUN)
        return now_s + min(rest_s, left_s), job.expected_basis
    guess_s = max(elapsed_s, LEAST_GUESS_S)
    return (now_s + left_s, LIMITS) if left_s <= guess_s else (now_s + guess_s, ELAPSED)


def predicted_end_s(job: Running, now_s: float) -> tuple[float | None, str]:
    """Return the end of a running job that users are shown, and the basis.

    Like `likely_end_s`, but without its least guess: for a job that has just started and has no
    history, this is its limit or None. The policy must assume something about such a job; for
    users, "unknown" is better.
    """
    at_s, basis = likely_end_s(job, now_s)
    if basis != ELAPSED:
        return at_s, basis
    elapsed_s = 0.0 if job.started_s is None else now_s - job.started_s
    limit_s = math.inf if job.max_duration_s is None else job.max_duration_s
    if elapsed_s >= INFORMATIVE_ELAPSED_S:
        return now_s + min(elapsed_s, max(0.0, limit_s - elapsed_s) + job.grace_s), ELAPSED
    if limit_s <= INFORMATIVE_LIMIT_S:  # as for waiting jobs
        return now_s + limit_s - elapsed_s, LIMITS
    return None, UNKNOWN


def likely_duration_s(job: Waiting) -> tuple[float | None, str]:
    """Return how long a waiting job will probably run, and the basis."""
    limit_s = math.inf if job.max_duration_s is None else job.max_duration_s
    if job.expected_s is not None:
        return min(job.expected_s, limit_s), job.expected_basis
    if limit_s <= INFORMATIVE_LIMIT_S:
        return limit_s, LIMITS
    return None, ""


def source_of(job: Waiting | Running, basis: str) -> str:
    """Return which runs a probable time is based on, or which runs the job has outrun, or ""."""
    if basis == OUTRUN and isinstance(job, Running):
        return job.outrun_text
    return job.expected_from if basis in (HISTORY, SCRIPT) else ""


def worst_duration_s(job: Waiting) -> float:
    """Return how long a job that starts now may keep its allocation; infinity without a limit."""
    if job.max_duration_s is None:
        return math.inf
    return job.max_duration_s + job.grace_s + OVERHEAD_S


def as_running(job: Waiting, nodes: tuple[str, ...]) -> Running:
    """Return the running form of a waiting job, started on these nodes."""
    return Running(
        key=job.key,
        priority=job.priority,
        order=job.order,
        shape=job.shape,
        nodes=nodes,
        submitted_s=job.submitted_s,
        user=job.user,
        group=job.group,
        preemptible=job.preemptible,
        max_duration_s=job.max_duration_s,
        grace_s=job.grace_s,
        expected_s=job.expected_s,
        expected_basis=job.expected_basis,
        expected_from=job.expected_from,
    )
