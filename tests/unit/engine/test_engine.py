"""The engine on a real store and a fake cluster: every way a job starts, waits and ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.engine import engine
from rayjobs.engine.attempt import record
from rayjobs.jobs.records import AllocationState
from rayjobs.jobs.states import JobState
from rayjobs.policy import Rule
from rayjobs.protocol.agent import AgentLostError, NotPlacedError
from rayjobs.protocol.calls import Nothing, Stop
from rayjobs.protocol.settled import Found, Settled
from rayjobs.spec.model import Dependency, Distribution, Resources, Retries
from tests.fakes.cluster import FakeAgent, exit_record
from tests.fakes.world import World, play


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, False),
        ({"secrets": {"TOKEN": {"file": "/nowhere/token"}}}, True),
        ({"inputs": {"x": {"source": "photos/x"}}}, True),
        ({"outputs": {"y": {"destination": "photos/y"}}}, True),
        ({"environment": {"pip": ["six"]}}, True),
    ],
    ids=["nothing", "secrets", "inputs", "outputs", "packages"],
)
def test_node_knows_whether_an_attempt_may_read_a_secret(
    tmp_path: Path, changes: dict[str, Any], reads: bool
) -> None:
    async def scene(here: World) -> None:
        job = here.submit(**changes)
        await here.launched(job)
        (request,) = here.agent.requests
        assert request.on.reads_secrets is reads
        here.agent.end(job.id, 1, exit_code=0)
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path)


def test_attempt_that_ends_while_a_long_queue_is_read_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "LONG", 0)

    async def scene(here: World) -> None:
        first = here.submit()
        await here.launched(first)
        usual, seen = here.engine.candidates.records, threading.Event()

        def slow(*views: Any, without: Collection[str], **more: Any) -> Any:
            keys = iter(without)
            found = [*itertools.islice(keys, 1)]
            if found and not seen.is_set():
                seen.set()
                deadline = time.monotonic() + 30.0
                while found[0] in here.engine.attempts and time.monotonic() < deadline:
                    time.sleep(0.001)
            return usual(*views, without=[*found, *keys], **more)

        monkeypatch.setattr(here.engine.candidates, "records", slow)
        second = here.submit()
        await here.until(seen.is_set)
        here.agent.end(first.id, 1, exit_code=0)
        await here.launched(second)
        assert "unexpected error" not in caplog.text

    play(scene, tmp_path)


def test_job_runs_through_its_whole_lifecycle(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.agent.end(job.id, 1, exit_code=0)
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        (attempt,) = here.store.attempts(job.id)
        assert attempt.exits
        assert attempt.hosts[0].pid == 1
        await here.until(lambda: ("clean", job.id, 1) in here.agent.calls)
        kinds = [event.message for event in here.store.events(job.id)]
        assert len(kinds) >= 5

    play(scene, tmp_path)


@pytest.mark.long
def test_jobs_of_one_shape_share_an_allocation(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 0
        jobs = [here.submit() for _ in range(6)]
        for job in jobs:
            await here.state(job, JobState.COMPLETED)
        assert len(here.cluster.created) < len(jobs)

    play(scene, tmp_path)


@pytest.mark.long
def test_higher_priority_goes_first_then_the_older(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        first = here.submit(resources=Resources(cpus=2))
        await here.launched(first)
        low = here.submit(resources=Resources(cpus=2))
        high = here.submit(resources=Resources(cpus=2), priority=5)
        also_low = here.submit(resources=Resources(cpus=2))
        here.agent.instant = 0
        here.agent.end(first.id, 1, exit_code=0)
        for job in (low, high, also_low):
            await here.state(job, JobState.COMPLETED)
        order = [job for what, job, _ in here.agent.calls if what == "launch"]
        assert order == [first.id, high.id, low.id, also_low.id]
        assert not here.cluster.over_capacity

    play(scene, tmp_path)


def test_a_job_that_can_never_fit_does_not_block_others(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 0
        big = here.submit(resources=Resources(gpus=3))
        small = here.submit()
        await here.state(small, JobState.COMPLETED)
        decision = here.engine.explain(f"{here.folder}::{big.id}")
        assert decision is not None
        assert decision.rule is Rule.NEVER_FITS
        assert "3 GPUs" in decision.reason
        assert here.store.job(big.id).state is JobState.QUEUED

    play(scene, tmp_path)


def test_a_failing_script_ends_as_failed_with_its_exit_code(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 3
        job = here.submit()
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert done.failure.exit_code == 3
        assert str(done.failure.failure_class) == "user"

    play(scene, tmp_path)


@pytest.mark.long
def test_a_failing_script_is_retried_within_its_budget(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 1
        job = here.submit(retries=Retries(user=1))
        done = await here.state(job, JobState.FAILED)
        assert done.attempt == 2
        assert len(here.store.attempts(job.id)) == 2
        messages = [event.message for event in here.store.events(job.id)]
        again = "tries again (1 of 1) after a failure of class user: "
        assert any(again in message for message in messages), messages

    play(scene, tmp_path)


@pytest.mark.parametrize("stage", ["queued", "placing", "running", "ended"])
def test_cancel_in_every_stage(tmp_path: Path, stage: str) -> None:
    async def scene(here: World) -> None:
        if stage == "queued":
            blocker = here.submit(resources=Resources(cpus=2))
            await here.launched(blocker)
        if stage == "placing":
            here.cluster.hold_placement.clear()
        job = here.submit(resources=Resources(cpus=2))
        if stage == "placing":
            await here.state(job, JobState.PROVISIONING)
        if stage in ("running", "ended"):
            await here.launched(job)
        if stage == "ended":
            here.agent.end(job.id, 1, exit_code=0)
            await here.state(job, JobState.COMPLETED)
        for _ in range(2):  # idempotent
            here.store.request_cancel(job.id)
        here.engine.wake()
        expected = JobState.COMPLETED if stage == "ended" else JobState.CANCELED
        await here.state(job, expected)
        if stage == "placing":
            assert await here.cluster.group_names("rj-") == []
            here.cluster.hold_placement.set()
            after = here.submit(resources=Resources(cpus=2))
            await here.launched(after)

    play(scene, tmp_path)


@pytest.mark.long
def test_group_without_capacity_requeues_its_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.cluster.place_error = NotPlacedError("others were faster")
        job = here.submit()
        await here.until(lambda: here.store.attempts(job.id) and here.store.attempts(job.id)[0])
        await here.state(job, JobState.QUEUED)
        here.cluster.place_error = None
        here.agent.instant = 0
        done = await here.state(job, JobState.COMPLETED)
        assert done.failure is None

    play(scene, tmp_path)


def test_preparation_failure_keeps_its_class(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.prepare_error = PrepareError("no such data", failure_class=FailureClass.DATA)
        job = here.submit(retries=Retries(data=0))
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert str(done.failure.failure_class) == "data"
        await here.until(
            lambda: all(allocation.job is None for allocation in here.engine.allocations.all)
        )

    play(scene, tmp_path)


def test_unexpected_error_fails_one_job_and_not_the_queue(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.prepare_error = ZeroDivisionError("oh")
        job = here.submit(retries=Retries(system=0))
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert "ZeroDivisionError" in done.failure.message
        here.agent.prepare_error = None
        here.agent.instant = 0
        await here.state(here.submit(), JobState.COMPLETED)

    play(scene, tmp_path)


@pytest.mark.long
def test_a_lost_agent_does_not_end_its_attempt(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        old = here.agent
        old.lost = True
        old.ends[(job.id, 1)].set_exception(AgentLostError("gone"))
        del old.ends[(job.id, 1)]
        await here.until(lambda: here.agent is not old)
        await here.until(lambda: ("follow", job.id, 1) in here.agent.calls)
        here.agent.end(job.id, 1, exit_code=0)
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1

    play(scene, tmp_path)


@pytest.mark.long
def test_agent_lost_during_a_stop_request_leaves_no_unhandled_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_stop = FakeAgent.stop
    lost: list[FakeAgent] = []

    async def stop(self: FakeAgent, asked: Stop) -> Nothing:
        if not lost:
            lost.append(self)
            self.lost = True
            key = (asked.on.job, asked.on.attempt)
            self.ends.pop(key).set_exception(AgentLostError("gone while it was followed"))
            await asyncio.sleep(0.01)  # by now the `follow` call has failed
            raise AgentLostError("gone while it was told to stop")
        return await original_stop(self, asked)

    monkeypatch.setattr(FakeAgent, "stop", stop)
    unseen: list[dict[str, Any]] = []

    async def scene(here: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, one: unseen.append(one))
        job = here.submit(grace_s=0.0)
        await here.launched(job)
        here.store.request_cancel(job.id)
        await here.state(job, JobState.CANCELED)
        gc.collect()
        assert lost and not unseen

    play(scene, tmp_path)


@pytest.mark.long
def test_an_attempt_not_proven_dead_drains_its_allocation(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.agent.end(job.id, 1, exit_code=0, proven=False)
        await here.state(job, JobState.COMPLETED)
        await here.until(
            lambda: [
                allocation for allocation in here.engine.allocations.all if allocation.draining
            ]
        )
        await here.until(
            lambda: here.store.allocations("local")[0].state is AllocationState.DRAINING
        )
        here.agent.instant = 0
        after = here.submit()
        await here.state(after, JobState.COMPLETED)
        assert len(here.cluster.created) == 2

    play(scene, tmp_path)


@pytest.mark.long
def test_unstorable_files_are_reported_without_repeating_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.02)

    async def scene(here: World) -> None:
        here.agent.collect_problems = ["outputs/model.pt: no space left."]
        here.agent.instant = 0
        job = here.submit()
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert str(done.failure.failure_class) == "storage"
        assert "no space left" in done.failure.message
        assert done.attempt == 1

    play(scene, tmp_path)


@pytest.mark.long
def test_dependent_job_waits_for_its_parent_and_is_canceled_with_it(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        parent = here.submit()
        await here.launched(parent)
        ok = here.submit(depends_on=(Dependency(job=parent.id),))
        any_end = here.submit(depends_on=(Dependency(job=parent.id, when="any"),))
        await here.until(lambda: here.engine.explain(f"{here.folder}::{ok.id}"))
        decision = here.engine.explain(f"{here.folder}::{ok.id}")
        assert decision is not None
        assert "waits for" in decision.reason
        here.agent.instant = 0
        here.agent.end(parent.id, 1, exit_code=1)
        await here.state(ok, JobState.CANCELED)
        await here.state(any_end, JobState.COMPLETED)

    play(scene, tmp_path)


# -- a new engine takes over --------------------------------------------------------------------


def test_a_new_engine_follows_what_runs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.agent.settled = Settled(Found.RUNNING)
        here.agent.calls.clear()
        await here.restart()
        await here.until(lambda: ("follow", job.id, 1) in here.agent.calls)
        here.agent.end(job.id, 1, exit_code=0)
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        assert ("launch", job.id, 1) not in here.agent.calls

    play(scene, tmp_path)


@pytest.mark.long
def test_cancel_during_an_outage_is_honoured(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.store.request_cancel(job.id)
        here.agent.settled = Settled(Found.RUNNING)
        await here.restart()
        await here.state(job, JobState.CANCELED)

    play(scene, tmp_path)


@pytest.mark.long
def test_job_interrupted_before_its_launch_is_requeued(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.cluster.hold_placement.clear()
        job = here.submit()
        await here.state(job, JobState.PROVISIONING)
        await here.crash()
        here.cluster.hold_placement.set()
        here.agent.instant = 0
        await here.restart()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 2
        assert not here.cluster.over_capacity

    play(scene, tmp_path)


@pytest.mark.long
def test_another_cluster_ends_survivors_first_and_retries(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.cluster.id = "cluster-2"
        here.cluster.groups.clear()
        here.agent.calls.clear()
        here.agent.settled = Settled(Found.GONE, proven=True)
        await here.restart()
        await here.launched(job, attempt=2)
        calls = [(what, attempt) for what, _, attempt in here.agent.calls]
        assert calls.index(("settle-end", 1)) < calls.index(("launch", 2))
        # The files of its ranks are stored before the job continues, then its scratch is removed.
        assert calls.index(("collect", 1)) < calls.index(("launch", 2))
        assert ("clean", 1) in calls
        first, _second = here.store.attempts(job.id)
        assert first.outcome == "cluster_lost"

    play(scene, tmp_path)


@pytest.mark.long
def test_unobserved_end_is_accepted_on_another_cluster(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.cluster.id = "cluster-2"
        here.cluster.groups.clear()
        here.agent.settled = Settled.of_record(exit_record(job.id, 1), proven=True, ended_now=False)
        await here.restart()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1

    play(scene, tmp_path)


@pytest.mark.long
def test_orphaned_groups_are_removed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit(distribution=Distribution())
        await here.launched(job)
        await here.crash()
        from rayjobs.policy import Shape

        here.cluster.groups["rj-local-ghost"] = (Shape(), ("node0",))
        here.agent.settled = Settled(Found.RUNNING)
        await here.restart()
        await here.until(lambda: "rj-local-ghost" not in here.cluster.groups)
        assert len(here.cluster.groups) == 1

    play(scene, tmp_path)


@pytest.mark.long
def test_late_allocation_record_of_a_previous_actor_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TIDY_S", 0.0)

    async def scene(here: World) -> None:
        from rayjobs.policy import Shape

        here.cluster.hold_placement.clear()
        job = here.submit()
        await here.state(job, JobState.PROVISIONING)  # its own allocation is being made meanwhile
        here.store.add_allocation("rj-local-ghost", target="local", shape=Shape().to_dict())

        def places() -> list[str]:
            return [row.name for row in here.store.allocations("local")]

        await here.until(lambda: "rj-local-ghost" not in places(), "it is released")
        assert len(places()) == 1
        here.cluster.hold_placement.set()
        here.agent.instant = 0
        assert (await here.state(job, JobState.COMPLETED)).attempt == 1

    play(scene, tmp_path)


def test_replaced_actor_leaves_allocations_of_its_successor_alone(tmp_path: Path) -> None:
    """Its clean-up may still run when the next actor makes allocations."""

    async def scene(here: World) -> None:
        from rayjobs.policy import Shape

        await here.crash()
        here.epoch = "old"
        here.store.claim_target("local", epoch="old")
        await here.restart()
        job = here.submit()
        await here.launched(job)
        await here.crash()
        (own,) = here.cluster.groups
        here.store.claim_target("local", epoch="new")
        here.store.add_allocation("rj-local-next", target="local", shape=Shape().to_dict())
        here.cluster.groups["rj-local-next"] = (Shape(), ("node0",))

        def places() -> set[str]:
            return {row.name for row in here.store.allocations("local")}

        await here.engine.tidying.tidy(here.engine.nodes)
        assert {*here.cluster.groups} == places() == {own, "rj-local-next"}
        here.store.claim_target("local", epoch="old")
        await here.engine.tidying.tidy(here.engine.nodes)
        assert {*here.cluster.groups} == places() == {own}

    play(scene, tmp_path)
