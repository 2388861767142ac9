"""Jobs as tables and as JSON: what `ls`, `show`, `wait` and `submit` print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rayjobs.cli.outlook import NOT_RESPONDING, Outlook
from rayjobs.core.text import duration_text
from rayjobs.jobs.outcomes import UNSEEN
from rayjobs.jobs.records import name_of
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.jobs.records import Attempt, Job, JobLine
    from rayjobs.store.base import Store

_MAY_BE_LOST = (JobState.FAILED, JobState.CANCELED)


def short_id(job: Job | JobLine) -> str:
    """Return the random tail of a job's id, which names it in every command."""
    tail = job.id.rpartition("_")[2]
    return tail if len(tail) == 8 else job.id


def earlier_runs(store: Store, jobs: Iterable[Job | JobLine]) -> dict[str, float]:
    """Return `Store.earlier_runs` of the jobs that may have earlier runs."""
    # A row with a start time covers its last attempt: most jobs have only that one.
    tried = [job.id for job in jobs if job.attempt > 1 or (job.attempt and not job.started_at)]
    return store.earlier_runs(tried) if tried else {}


def bounded_runs(
    store: Store, jobs: Iterable[Job | JobLine], seen: Mapping[str, Outlook] | None = None
) -> frozenset[str]:
    """Return the jobs for which `ran_s` is only an upper bound.

    One of their attempts ended, or may have ended, while the target was down. If the target of a
    live job does not answer, it is unknown whether the job still runs.
    """
    listed = list(jobs)
    # Any other job has had one attempt, and its end was seen.
    tried = [one.id for one in listed if one.attempt > 1 or one.state in _MAY_BE_LOST]
    found = store.unseen_ends(tried) if tried else frozenset()
    return found | {
        one.id
        for one in listed
        if one.kind == "job"
        and one.state.is_live
        and one.started_at is not None
        and seen is not None
        and seen[one.id].state in (NOT_RESPONDING, str(JobState.QUEUED))
    }


def ran_text(seconds: float | None, *, at_most: bool) -> str:
    """Return how long a job ran: ``3m 05s``, or ``≤3m 05s`` where only a bound is known."""
    text = duration_text(seconds)
    return f"≤{text}" if at_most and seconds is not None else text


def waited_s(
    job: Job | JobLine, *, earlier_s: float | None = None, now: datetime | None = None
) -> float:
    """Return how many seconds a job waited: until its latest start, else its end, else `now`.

    Args:
        earlier_s: Seconds that its earlier attempts ran, which do not count.
    """
    until = job.started_at or job.ended_at or now or datetime.now(UTC)
    return max(0.0, (until - job.submitted_at).total_seconds() - (earlier_s or 0.0))


def ran_s(
    job: Job | JobLine, *, earlier_s: float | None = None, now: datetime | None = None
) -> float | None:
    """Return seconds that the job ran (so far); None before its first start.

    Args:
        earlier_s: Seconds of the attempts that the job's own times do not cover; without it only
            the latest attempt counts.
    """
    if job.started_at is None:
        return earlier_s
    own_s = ((job.ended_at or now or datetime.now(UTC)) - job.started_at).total_seconds()
    return own_s + (earlier_s or 0.0)


def job_json(
    job: Job | JobLine,
    outlook: Outlook | None = None,
    *,
    earlier_s: float | None = None,
    at_most: bool | None = None,
) -> dict[str, Any]:
    """Return a job as JSON data; its keys are part of the command line's contract.

    Args:
        earlier_s: See `ran_s`.
        at_most: See `bounded_runs`; None: unknown.
    """
    ran = ran_s(job, earlier_s=earlier_s)
    return {
        "id": job.id,
        "short_id": short_id(job),
        "name": name_of(job),
        "experiment": job.experiment,
        "state": str(job.state),
        "shown_state": outlook.state if outlook else str(job.state),
        "reason": outlook.reason if outlook and outlook.reason else job.reason,
        "position": outlook.position if outlook else None,
        "attempt": job.attempt,
        "priority": job.priority,
        "target": job.target,
        "user": job.user,
        "kind": job.kind,
        "parent": job.parent,
        "array_index": job.array_index,
        "members": _members(outlook),
        "held": job.held,
        "snapshot": job.snapshot,
        "submitted_at": job.submitted_at,
        "placed_at": job.placed_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "waited_s": round(waited_s(job, earlier_s=earlier_s), 3),
        "ran_s": None if ran is None else round(ran, 3),
        "ran_at_most": at_most,
        "cancel_requested_at": job.cancel_requested_at,
        "failure": job.failure.to_dict() if job.failure else None,
        "tags": dict(job.tags),
        "properties": dict(job.properties),
    }


def _members(outlook: Outlook | None) -> dict[str, int] | None:
    if outlook is None or outlook.members is None:
        return None
    return {str(state): count for state, count in outlook.members.items()}


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as JSON data."""
    return {
        "number": attempt.number,
        "allocation": attempt.allocation,
        "created_at": attempt.created_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "hosts": [host.to_json() for host in attempt.hosts],
        "exits": [record.to_json() for record in attempt.exits],
        "cold_reason": attempt.cold_reason,
        "outcome": attempt.outcome,
        "failure": attempt.failure.to_dict() if attempt.failure else None,
    }


def attempt_times(attempt: Attempt) -> str:
    """Return how long an attempt took, or that it is still running."""
    if attempt.started_at is None:
        return "-"
    until = attempt.ended_at or datetime.now(UTC)
    text = duration_text((until - attempt.started_at).total_seconds())
    if attempt.ended_at and attempt.outcome in UNSEEN:
        return f"≤{text} (its end was not seen)"
    return text if attempt.ended_at else f"{text} so far"


def end_text(job: Job | JobLine) -> str:
    """Return how a finished job ended, in one line."""
    if job.failure is not None:
        return f"{job.state} ({job.failure.failure_class}): {job.failure.message}"
    # The reason of a completed sweep or array is its counts; that of a job, what is missing.
    shows_reason = job.state != "Completed" or job.kind == "job"
    return f"{job.state}: {job.reason}" if job.reason and shows_reason else job.state
