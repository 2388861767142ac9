"""Decides whether an ended job still has outputs on its nodes that can be stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayjobs.core.failures import FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Attempt, Event, Job
from rayjobs.jobs.states import JobState

# Noted in a job's history once everything is stored after its end.
STORED_EVENT = "stored_later"


def why_not(job: Job, attempts: Sequence[Attempt], events: Iterable[Event]) -> str:
    """Return a sentence that says why a job has nothing left to store; empty: it may have."""
    if not job.spec.outputs:
        return (
            f"job {job.id} has no outputs in datastores, and only those can be stored later. "
            f"`rayjobs show {job.id}` says where its other files are if they were not stored."
        )
    if not job.state.is_final:
        return f"job {job.id} is {job.state}: its outputs are stored at its end."
    if job.state is JobState.COMPLETED:
        return f"job {job.id} is Completed: its outputs are stored."
    if any(one.kind == STORED_EVENT and one.attempt == job.attempt for one in events):
        return f"the outputs of job {job.id} were stored after its end."
    if job.failure is not None and job.failure.failure_class is FailureClass.DATA:
        return (
            f"the outputs of job {job.id} were refused because their destination has other files: "
            f"{job.failure.message}"
        )
    exits = attempts[-1].exits if attempts else ()
    if not exits or any(one.outcome is not Outcome.COMPLETED for one in exits):
        return (
            f"the script of job {job.id} did not succeed: only the outputs of a successful script "
            f"are stored."
        )
    return ""
