"""The trial table in the store: converts records to rows and back."""

from __future__ import annotations

from datetime import datetime

from rayjobs.jobs.records import Job, TrialRow
from rayjobs.store.base import Store
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState


def row_of(trial: TrialRecord) -> TrialRow:
    """Return a trial as a row."""
    return TrialRow(
        number=trial.number,
        parameters=dict(trial.parameters),
        state=str(trial.state),
        job=trial.job_id,
        reports=trial.values,
        reason=trial.reason,
        cause=None if trial.cause is None else str(trial.cause),
        detail=trial.detail,
        judged=trial.judged,
        stop_requested=trial.stop_requested,
        metric_names=trial.metric_names,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
    )


def trial_of(row: TrialRow) -> TrialRecord:
    """Return a row as a trial."""
    return TrialRecord(
        number=row.number,
        parameters=row.parameters,
        state=TrialState(row.state),
        values=row.reports,
        job_id=row.job,
        reason=row.reason,
        cause=None if row.cause is None else TrialCause(row.cause),
        detail=row.detail,
        judged=row.judged,
        stop_requested=row.stop_requested,
        metric_names=row.metric_names,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def load_trials(store: Store, sweep_id: str) -> tuple[TrialRecord, ...]:
    """Return a sweep's trials, in order of number."""
    return tuple(trial_of(row) for row in store.trials(sweep_id))


def load_state(store: Store, job: Job, *, now: datetime) -> SweepState:
    """Return the state of the sweep of job `job`, from its table.

    Args:
        now: The wall time, timezone-aware.
    """
    return SweepState(
        trials=load_trials(store, job.id),
        elapsed_s=elapsed_s(job, now=job.ended_at or now),
        cancel_requested=job.cancel_requested_at is not None,
    )


def elapsed_s(job: Job, *, now: datetime) -> float:
    """Return the seconds since the start of a sweep, without its wait for other steps."""
    # A step of a pipeline is submitted with the pipeline, and starts after the steps before it.
    return max(0.0, (now - (job.placed_at or job.submitted_at)).total_seconds())
