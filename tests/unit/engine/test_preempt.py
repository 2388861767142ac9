"""A preempted attempt: its end, its queue position, its budget, and the lost work."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.injob.outcomes import EndCause, EndReason
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.rootcause import diagnose
from rayjobs.jobs.states import JobState
from rayjobs.protocol.attempts import LaunchRequest
from rayjobs.protocol.nodes import Prepared
from rayjobs.protocol.settled import Found, Settled
from rayjobs.results.checkpoints import Lost
from tests.fakes.cluster import exit_record
from tests.fakes.world import World, play


def supervisor_of(here: World, job: Job) -> AttemptSupervisor:
    supervisor = here.engine.attempts.get(f"{here.folder}::{job.id}")
    assert supervisor is not None
    return supervisor


def test_preempted_job_keeps_its_queue_position_and_is_retried(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        supervisor_of(here, job).preempt("job b has priority 10")
        await here.launched(job, attempt=2)
        first, second = here.store.attempts(job.id)
        assert (first.outcome, second.number) == ("preempted", 2)
        assert first.failure is not None
        assert first.failure.failure_class is FailureClass.PREEMPTED
        assert [one.sentence for one in here.agent.stop_causes] == [
            "preempted: job b has priority 10"
        ]
        assert here.store.job(job.id).serial == job.serial
        here.agent.end(job.id, 2, exit_code=0)
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path)


@pytest.mark.parametrize(("budget", "state"), [(0, JobState.FAILED), (1, JobState.RUNNING)])
def test_preemption_has_its_own_budget(tmp_path: Path, budget: int, state: JobState) -> None:
    async def scene(here: World) -> None:
        job = here.submit(retries={"preempted": budget, "user": 0})
        await here.launched(job)
        supervisor_of(here, job).preempt("its place is needed")
        done = await here.state(job, state)
        if state is JobState.FAILED:
            assert done.failure is not None
            assert done.failure.failure_class is FailureClass.PREEMPTED

    play(scene, tmp_path)


def test_cancel_after_a_preemption_wins(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.store.request_cancel(job.id)
        supervisor_of(here, job).preempt("its place is needed")
        await here.state(job, JobState.CANCELED)
        assert here.store.job(job.id).attempt == 1

    play(scene, tmp_path)


def test_unstarted_job_is_preempted_without_spending_budget(
    tmp_path: Path,
) -> None:
    async def scene(here: World) -> None:
        here.cluster.hold_placement.clear()
        job = here.submit(retries={"preempted": 0})
        await here.state(job, JobState.PROVISIONING)
        supervisor_of(here, job).preempt("its place is needed")
        await here.until(lambda: here.store.job(job.id).attempt == 2, "queued and started again")
        here.cluster.hold_placement.set()
        await here.launched(job, attempt=2)
        assert here.store.attempts(job.id)[0].failure is None

    play(scene, tmp_path)


def test_job_preempted_while_its_node_prepares_spends_no_budget(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        usual, preparing = here.agent.prepare, asyncio.Event()

        async def prepare(request: LaunchRequest) -> Prepared:
            preparing.set()
            while request.on.attempt == 1:
                if here.agent.stop_causes:
                    raise PrepareError("stopped", failure_class=FailureClass.DATA)
                await asyncio.sleep(0.01)
            return await usual(request)

        here.agent.prepare = prepare  # type: ignore[method-assign]
        job = here.submit(retries={"preempted": 0, "data": 0})
        await preparing.wait()
        supervisor_of(here, job).preempt("its place is needed")
        await here.launched(job, attempt=2)
        first = here.store.attempts(job.id)[0]
        assert (first.outcome, first.failure) == ("preempted", None)

    play(scene, tmp_path)


@pytest.mark.long
def test_actor_death_during_a_preemption_does_not_cancel_the_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()  # the host had been notified, and ended, during the actor outage
        here.agent.end(job.id, 1, signal=15, cause=EndCause(EndReason.PREEMPTED, "for job b"))
        here.agent.settled = Settled(Found.ENDED, proven=True)
        await here.restart()
        await here.launched(job, attempt=2)
        assert here.store.attempts(job.id)[0].outcome == "preempted"

    play(scene, tmp_path)


@pytest.mark.long
def test_all_nodes_of_a_group_are_preempted_together(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit(
            distribution={"backend": "gloo", "nodes": 2, "processes_per_node": 1},
        )
        await here.launched(job)
        supervisor_of(here, job).preempt("its place is needed")
        await here.launched(job, attempt=2)
        assert here.store.attempts(job.id)[0].outcome == "preempted"

    play(scene, tmp_path, nodes=2)


@pytest.mark.long
def test_lost_work_is_reported_with_the_resume_step(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        (here.folder / "blobs").mkdir()
        job = here.submit()
        await here.launched(job)
        here.store.add_metrics(job.id, [_point(job, step) for step in (1, 2, 3)])
        supervisor_of(here, job).preempt("its place is needed")
        await here.launched(job, attempt=2)
        reasons = [event.message for event in here.store.events(job.id)]
        matching = [text for text in reasons if "its place is needed" in text]
        assert any("it had reached step 3" in text for text in matching), reasons

    play(scene, tmp_path)


def _point(job: Job, step: int) -> MetricPoint:
    values: dict[str, Any] = {
        "at": datetime.now(tz=UTC),
        "attempt": 1,
        "rank": 0,
        "sequence": step,
        "name": "loss",
        "value": 0.5,
        "step": step,
    }
    return MetricPoint(**values)


@pytest.mark.parametrize(
    ("lost", "steps", "words"),
    [
        (Lost(7, 5), 2, "of step 5; its last step was 7: 2 lost"),
        (Lost(5, 6), 0, "0 lost"),
        (Lost(None, 5), None, "continues from its checkpoint of step 5"),
        (Lost(7, None), None, "it had reached step 7"),
        (Lost(None, None), None, "starts from the beginning"),
    ],
)
def test_lost_work_message(lost: Lost, steps: int | None, words: str) -> None:
    assert lost.steps == steps
    assert words in lost.sentence


def test_failure_during_a_preemption_is_the_cause() -> None:
    preempted = exit_record("j", 1, signal=15, cause=EndCause(EndReason.PREEMPTED, "x"))
    failed = exit_record("j", 1, exit_code=3, node=1)
    assert diagnose([preempted, failed], {1: b""})[0] == "failed"
    assert diagnose([preempted, preempted], {})[0] == "preempted"
    cause = EndCause(EndReason.NODE_ENDED, "node 0 of the job ended: preempted: x")
    follower = exit_record("j", 1, signal=15, node=1, cause=cause, ended_at=1.5)
    assert diagnose([preempted, follower], {})[0] == "preempted"  # regardless of its clock
