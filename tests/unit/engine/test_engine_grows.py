"""A queue on a cluster that starts its nodes by itself: demand, order, and dependencies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.engine.allocations import Allocations, KnownAllocation
from rayjobs.engine.attempt import supervisor
from rayjobs.engine.board import Served
from rayjobs.engine.pending_nodes import PendingNodes
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.policy import Rule, Shape
from rayjobs.policy.node_types import NodeType, NodeTypes
from rayjobs.protocol.agent import Cluster, NodeInfo
from rayjobs.spec.model import Distribution, Resources
from tests.fakes.world import World, play

TWO = Distribution(nodes=2, backend="gloo")


def growth(timeout_s: float = 60.0, *, cpus: int = 2, gpus: int = 1) -> PendingNodes:
    """A cluster of up to `cpus` plain nodes with 2 CPUs and `gpus` with a GPU as well."""
    plain = NodeType("cpu", 2.0, max_nodes=cpus)
    with_gpu = NodeType("gpu", 2.0, 1.0, max_nodes=gpus, is_spot=True)
    return PendingNodes(NodeTypes((plain, with_gpu), cpus + gpus), timeout_s=timeout_s)


def scaling_reason(here: World, job: Job) -> str:
    found = here.engine.status().scaling.get(f"{here.folder}::{job.id}")
    return "" if found is None else found.reason


async def waits_for_nodes(here: World, job: Job, *, up: int = 0) -> None:
    nodes = job.spec.distribution.nodes
    text = f"waits for nodes to start ({up} of {nodes} up)"
    await here.until(lambda: scaling_reason(here, job) == text, f"{job.id} {text}")


async def runs_on(here: World, job: Job, *nodes: str) -> None:
    calls = [here.cluster.agents[node].calls for node in nodes]
    await here.until(
        lambda: all(any(call[:2] == ("follow", job.id) for call in one) for one in calls),
        f"{job.id} on {nodes}",
    )


@pytest.mark.long
def test_a_job_makes_its_nodes_start_and_runs_on_them(tmp_path: Path) -> None:
    """Off switch: `PendingNodes.capacities` is always empty."""

    async def scene(here: World) -> None:
        job = here.submit(resources=Resources(cpus=2), distribution=TWO)
        await waits_for_nodes(here, job)
        await here.state(job, JobState.PROVISIONING)
        here.cluster.grow("a", "cpu", 2.0)
        await waits_for_nodes(here, job, up=1)
        here.cluster.grow("b", "cpu", 2.0)
        await runs_on(here, job, "a", "b")
        assert scaling_reason(here, job) == ""
        assert not here.cluster.pending
        for node in ("a", "b"):
            here.cluster.agents[node].end(job.id, 1, exit_code=0)
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path, nodes=0, growth=growth())


@pytest.mark.long
def test_another_size_waits_until_the_nodes_of_the_first_have_started(tmp_path: Path) -> None:
    """Ray would give the first node to the small job. Off switch: `_Pass._take` is `take`."""

    async def scene(here: World) -> None:
        large = here.submit(resources=Resources(cpus=2), distribution=TWO)
        small = here.submit(resources=Resources(cpus=1))
        await waits_for_nodes(here, large)
        key = f"{here.folder}::{small.id}"
        decision = await here.until(lambda: here.engine.explain(key))
        assert decision.rule is Rule.CAPACITY
        assert "an earlier job" in decision.reason
        here.cluster.grow("a", "cpu", 2.0)
        await waits_for_nodes(here, large, up=1)
        await here.until(lambda: here.cluster.pending)
        assert [shape.nodes for shape, _ in here.cluster.pending.values()] == [2]
        here.cluster.grow("b", "cpu", 2.0)
        await runs_on(here, large, "a", "b")
        await waits_for_nodes(here, small)
        here.cluster.grow("c", "cpu", 2.0)
        await runs_on(here, small, "c")

    play(scene, tmp_path, nodes=0, growth=growth(cpus=3, gpus=0))


def test_jobs_for_other_types_wait_side_by_side(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        plain = here.submit(resources=Resources(cpus=2, node_types=("cpu",)))
        on_gpu = here.submit(resources=Resources(cpus=1, gpus=1))
        await waits_for_nodes(here, plain)
        await waits_for_nodes(here, on_gpu)
        here.cluster.grow("g", "gpu", 2.0, 1.0)
        await runs_on(here, on_gpu, "g")
        await waits_for_nodes(here, plain)  # a CPU is free, but the type is another one

    play(scene, tmp_path, nodes=0, growth=growth())


@pytest.mark.long
def test_higher_priority_job_replaces_one_waiting_for_nodes(tmp_path: Path) -> None:
    """Off switch: `victims` takes only preemptible jobs."""

    async def scene(here: World) -> None:
        first = here.submit(resources=Resources(gpus=1))
        await waits_for_nodes(here, first)
        better = here.submit(resources=Resources(gpus=1), priority=5)
        await waits_for_nodes(here, better)
        await here.state(first, JobState.QUEUED)
        (ended,) = here.store.attempts(first.id)
        assert ended.outcome == "preempted"
        here.cluster.grow("g", "gpu", 2.0, 1.0)
        await runs_on(here, better, "g")
        assert not here.cluster.pending
        here.cluster.agents["g"].end(better.id, 1, exit_code=0)
        await runs_on(here, first, "g")

    play(scene, tmp_path, nodes=0, growth=growth())


@pytest.mark.long
def test_capacity_freed_meanwhile_is_used(tmp_path: Path) -> None:
    """Off switch: `Allocations.hasten` does nothing."""

    async def scene(here: World) -> None:
        before = here.submit(resources=Resources(cpus=2))
        await here.launched(before)
        job = here.submit(resources=Resources(cpus=2))
        await waits_for_nodes(here, job)
        here.agent.end(before.id, 1, exit_code=0)
        await runs_on(here, job, "node0")
        assert not here.cluster.pending

    play(scene, tmp_path, growth=growth())


def test_all_bundles_of_a_group_on_one_node_count_as_its_own_use() -> None:
    """Two bundles are on node `a`; the third one waits for a node until `b` has room."""
    allocations = Allocations("t", cast(Cluster, None), SystemClock())
    shape = Shape(nodes=3, cpus=2.0)
    made = allocations.reserve_new(
        cast(Served, None), shape, "w::j", ("a", "a", "new"), up={"a", "b"}
    )
    nodes = [NodeInfo(one, one, 4.0, 0.0, 1e9, 4.0, 0.0, 1e9) for one in "ab"]
    other = KnownAllocation("rj-t-1", cast(Served, None), Shape(cpus=4.0), ("b",), (), "w::o", 0.0)
    allocations.know(other)
    allocations.hasten(allocations.capacities(nodes))
    assert not allocations._growing[made.name].is_needless.is_set()
    allocations.know(replace(other, shape=Shape(cpus=2.0)))
    allocations.hasten(allocations.capacities(nodes))
    assert allocations._growing[made.name].is_needless.is_set()


@pytest.mark.long
def test_missing_nodes_are_reported_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: `AttemptSupervisor._requeue_not_grown` holds nothing."""
    monkeypatch.setattr(supervisor, "NOT_GROWN_PAUSE_S", 0.0)

    async def scene(here: World) -> None:
        job = here.submit(resources=Resources(gpus=1))
        held = await here.until(lambda: here.store.job(job.id).held)
        assert "did not start" in held
        assert "ray status" in held
        outcomes = [attempt.outcome for attempt in here.store.attempts(job.id)]
        assert outcomes == ["not_grown"] * supervisor.NOT_GROWN_TRIES
        other = here.submit(resources=Resources(cpus=1))
        await here.launched(other)
        assert not here.cluster.pending

    play(scene, tmp_path, growth=growth(0.05))


def test_cancel_withdraws_the_request_for_nodes(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit(resources=Resources(gpus=1))
        await waits_for_nodes(here, job)
        here.store.request_cancel(job.id)
        here.engine.wake()
        await here.state(job, JobState.CANCELED)
        assert not here.cluster.pending

    play(scene, tmp_path, growth=growth())


def test_new_target_actor_requests_the_nodes_again(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit(resources=Resources(gpus=1))
        await waits_for_nodes(here, job)
        await here.until(lambda: here.cluster.pending)
        await here.crash()
        await here.restart()
        await waits_for_nodes(here, job)
        here.cluster.grow("g", "gpu", 2.0, 1.0)
        await runs_on(here, job, "g")

    play(scene, tmp_path, nodes=0, growth=growth())


def test_requested_nodes_stay_within_the_node_limit(tmp_path: Path) -> None:
    """Off switch: the comparison with `may_start` in `_Pass._take`."""

    async def scene(here: World) -> None:
        first = here.submit(resources=Resources(cpus=2, node_types=("cpu",)))
        await waits_for_nodes(here, first)
        second = here.submit(resources=Resources(gpus=1))
        key = f"{here.folder}::{second.id}"
        await here.until(
            lambda: (explanation := here.engine.explain(key)) and "may start" in explanation.reason
        )
        await here.until(lambda: here.cluster.pending)
        assert len(here.cluster.pending) == 1

    types = replace(growth().types, max_nodes=1)
    play(scene, tmp_path, nodes=0, growth=PendingNodes(types))
