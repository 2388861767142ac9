"""Ends the records of jobs whose target is permanently gone, since no process can end them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target import reach
from rayjobs.target.record import load_target

if TYPE_CHECKING:
    from rayjobs.store.base import Store

_TRIES = 20  # an attempt may start or change state while its record is being ended


def why_gone(name: str, *, home: Path) -> str:
    """Return why a target cannot answer; empty if it may answer.

    A `local` target that died is not gone: any command restarts it.
    """
    try:
        record = load_target(name, home=home)
    except NotFoundError:
        return f"there is no target {name!r} any more"
    if record.address is None:
        return ""
    reason = reach.why_unreachable(record.address)
    return f"its cluster cannot be reached at {record.address}: {reason}" if reason else ""


def end(
    store: Store, job_id: str, *, by: str, why: str = "", reason: str | None = None
) -> list[str]:
    """End a job as Canceled without its target; return the ids of the jobs whose records ended.

    Members of an array and trials of a sweep end too. This does not end processes that may still
    run; their reports no longer count, since their attempt has ended.

    Args:
        by: The user or command that ends it.
        why: Why the target cannot do it.
        reason: The recorded reason of a job that nobody canceled; None: `by` cancels it.

    Raises:
        NotFoundError: no such job.
    """
    job = store.job(job_id)
    ended = []
    if job.kind != "job":
        unfinished = [state for state in JobState if state not in FINAL]
        for line in store.job_lines(JobFilter(states=unfinished, parent=job_id, members=True)):
            ended += end(store, line.id, by=by, why=why, reason=reason)
    is_cancel = reason is None
    reason = reason or f"{why}, so it is unknown whether its processes have ended"
    for _ in range(_TRIES):
        job = store.job(job_id)
        if job.state.is_final or (is_cancel and store.request_cancel(job_id, by=by).is_final):
            break
        if store.finish(
            job_id,
            attempt=job.attempt,
            state=JobState.CANCELED,
            reason=reason,
            also_requeued=True,
        ):
            break
    return [*ended, job_id] if store.job(job_id).state.is_final else ended
