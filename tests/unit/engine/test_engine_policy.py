"""The policy in the engine: preemption, limits, and placement of jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.policy import Limits, Rule
from rayjobs.spec.model import Resources, Retries
from rayjobs.target.answers import WaitingJob
from tests.fakes.world import World, play


@pytest.mark.long
def test_preemptible_job_is_preempted_and_resumes(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        low = here.submit(resources=Resources(cpus=2), preemptible=True)
        await here.launched(low)
        other = here.submit(resources=Resources(cpus=2))
        high = here.submit(resources=Resources(cpus=2), priority=1)
        await here.launched(high)
        assert here.store.job(low.id).state is JobState.QUEUED
        assert "priority 1" in here.agent.stop_causes[0].sentence
        (first,) = here.store.attempts(low.id)
        assert first.outcome == "preempted"
        here.agent.end(high.id, 1, exit_code=0)
        # Behind the preempting job, and before later ones: its old position.
        await here.launched(low, attempt=2)
        assert here.store.job(other.id).state is JobState.QUEUED
        here.agent.end(low.id, 2, exit_code=0)
        await here.state(low, JobState.COMPLETED)
        assert not here.cluster.over_capacity

    play(scene, tmp_path)


def test_job_at_its_preemption_budget_is_not_preempted(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        low = here.submit(
            resources=Resources(cpus=2), preemptible=True, retries=Retries(preempted=0)
        )
        await here.launched(low)
        high = here.submit(resources=Resources(cpus=2), priority=1)
        key = f"{here.folder}::{high.id}"
        await here.until(lambda: here.engine.explain(key))
        decision = here.engine.explain(key)
        assert decision is not None
        assert decision.rule is Rule.CAPACITY
        here.agent.end(low.id, 1, exit_code=0)
        await here.launched(high)
        assert here.store.job(low.id).state is JobState.COMPLETED

    play(scene, tmp_path)


def test_a_job_with_other_failures_is_still_preempted(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        low = here.submit(
            resources=Resources(cpus=2), preemptible=True, retries=Retries(preempted=1, user=1)
        )
        await here.launched(low)
        here.agent.end(low.id, 1, exit_code=1)
        await here.launched(low, attempt=2)
        high = here.submit(resources=Resources(cpus=2), priority=1)
        await here.launched(high)
        assert here.store.attempts(low.id)[1].outcome == "preempted"

    play(scene, tmp_path)


def test_limits_are_read_before_every_decision(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        limits = Limits(jobs_per_user=1)
        here.engine._limits = lambda: limits
        first, second = here.submit(), here.submit()
        await here.launched(first)
        key = f"{here.folder}::{second.id}"

        def refused() -> bool:
            explanation = here.engine.explain(key)
            return explanation is not None and explanation.rule is Rule.USER_JOBS

        await here.until(refused)
        limits = replace(limits, jobs_per_user=None)
        here.engine.wake()
        await here.launched(second)

    play(scene, tmp_path)


@pytest.mark.long
def test_jobs_are_placed_where_the_policy_says(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        jobs = [here.submit(resources=Resources(cpus=2)) for _ in range(2)]
        for job in jobs:
            await here.state(job, JobState.RUNNING)
        nodes = [at for _, places in here.cluster.groups.values() for at in places]
        assert sorted(nodes) == ["node0", "node1"]
        head = here.submit(resources=Resources(cpus=1.5))
        same = here.submit(resources=Resources(cpus=2))
        await here.until(lambda: here.engine.explain(f"{here.folder}::{same.id}"))
        # Its capacity is kept: the idle group of the same shape is not reused.
        (_, (ended,)) = next(iter(here.cluster.groups.values()))
        (first,) = (
            job for job in jobs if ("follow", job.id, 1) in here.cluster.agents[ended].calls
        )
        here.cluster.agents[ended].end(first.id, 1, exit_code=0)
        await here.state(head, JobState.RUNNING)
        assert here.store.job(same.id).state is JobState.QUEUED
        assert not here.cluster.over_capacity

    play(scene, tmp_path, nodes=2)


@pytest.mark.long
def test_reserved_node_is_not_used_through_an_idle_allocation(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        large = here.cluster.agents["node1"]
        here.cluster.sizes |= {"node1": (4.0, 0.0)}
        here.submit(resources=Resources(cpus=3))
        brief = here.submit(resources=Resources(cpus=1))
        await here.until(lambda: ("follow", brief.id, 1) in large.calls)
        head = here.submit(resources=Resources(cpus=4))
        await here.until(lambda: here.engine.explain(f"{here.folder}::{head.id}"))
        large.end(brief.id, 1, exit_code=0)
        await here.state(brief, JobState.COMPLETED)
        after = here.submit(resources=Resources(cpus=1))  # of the shape that is idle there
        small = here.cluster.agents["node0"]
        await here.until(lambda: ("follow", after.id, 1) in small.calls, "it runs on node0")

    play(scene, tmp_path, nodes=2)


def test_target_explains_waiting_for_selected_jobs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        first = here.submit(resources=Resources(cpus=2))
        await here.launched(first)
        waiting = [here.submit(resources=Resources(cpus=2)) for _ in range(3)]
        keys = [f"{here.folder}::{job.id}" for job in waiting]
        await here.until(lambda: here.engine.explain(keys[-1]))
        assert sorted(here.engine.status().waiting) == sorted(keys)
        explained = here.engine.status(keys[1:2]).waiting
        assert explained == {keys[1]: WaitingJob("waits for 1 job ahead of it", 2, "line")}
        explanation = here.engine.explain(keys[0])
        assert explanation is not None
        assert explanation.position == 1
        assert explanation.basis in ("unknown", "elapsed")  # depends on how long the first has run
        assert here.engine.explain("missing") is None

    play(scene, tmp_path)
