"""Cancels at every stage on real Ray: each job has one end, and leaves nothing."""

from __future__ import annotations

import pytest

from rayjobs.jobs.states import JobState
from tests.support.jobs import Jobs, until, wake

pytestmark = pytest.mark.ray

STAGES = (
    JobState.QUEUED,
    JobState.PROVISIONING,
    JobState.PREPARING,
    JobState.RUNNING,
    JobState.FINALIZING,
    JobState.COMPLETED,
)
ENDS = {JobState.COMPLETED, JobState.CANCELED, JobState.FAILED}


def test_cancel_at_each_visible_stage(jobs: Jobs) -> None:
    made = {stage: jobs.submit(f"print('for {stage}')", grace_s=1.0) for stage in STAGES}
    open_stages = dict(made)

    def all_canceled() -> bool:
        for stage, job in list(open_stages.items()):
            state = jobs.job(job).state
            # A short stage may end before it is observed: then the next one is used.
            if state.is_final or STAGES.index(state) >= STAGES.index(stage):
                jobs.store.request_cancel(job.id)
                jobs.store.request_cancel(job.id)
                wake(jobs.workspace)
                del open_stages[stage]
        return not open_stages

    until(all_canceled, "every job reaches its stage and is canceled")
    for stage, job in made.items():
        done = jobs.wait(job)
        assert done.state in (JobState.COMPLETED, JobState.CANCELED), (stage, done.reason)
        changes = [one.message for one in jobs.store.events(job.id) if one.kind == "state"]
        final = [text for text in changes if any(str(end) in text for end in ENDS)]
        assert len(final) == 1, changes
        jobs.nothing_left(job)
    assert jobs.job(made[JobState.COMPLETED]).state is JobState.COMPLETED
    until(
        lambda: all(row.job is None for row in jobs.store.allocations("local")),
        "every allocation is free",
    )
