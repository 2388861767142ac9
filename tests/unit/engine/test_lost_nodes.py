"""A lost node: the target waits for its lease, ends the rest, and retries the job elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rayjobs.core.clock import Clock
from rayjobs.core.failures import FailureClass
from rayjobs.engine.allocations import Allocations, KnownAllocation
from rayjobs.engine.attempt import ending, group, leases
from rayjobs.engine.attempt.group import GroupEnd
from rayjobs.engine.attempt.leases import Leases
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.board import Served
from rayjobs.injob.outcomes import EndCause, EndReason, Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.rootcause import diagnose
from rayjobs.jobs.states import JobState
from rayjobs.policy import Shape
from rayjobs.protocol.agent import AgentLostError, Cluster, NodeInfo
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.calls import Nothing, Renew, Renewed
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Hello
from tests.fakes.cluster import FakeAgent, FakeCluster, exit_record
from tests.fakes.world import World, play
from tests.support.attempts import on_node


class TurnedClock:
    """A monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic_s(self) -> float:
        return self.at


def attempt_on(
    node: str, *, lease_s: float | None = 90.0, watches_raylet: bool = False
) -> NodeOfAttempt:
    on = on_node(address="10.0.0.1", lease_s=lease_s)
    return NodeOfAttempt(on, node, watches_raylet=watches_raylet)


def supervisor_of(here: World, job: Job) -> AttemptSupervisor:
    supervisor = here.engine.attempts.get(f"{here.folder}::{job.id}")
    assert supervisor is not None
    return supervisor


@pytest.mark.long
def test_a_lost_node_ends_the_group_and_it_is_tried_elsewhere(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit(distribution={"backend": "gloo", "nodes": 2, "processes_per_node": 1})
        await here.launched(job)
        here.cluster.lose("node1")
        await here.launched(job, attempt=2)
        first = here.store.attempts(job.id)[0]
        assert first.failure is not None
        assert first.failure.failure_class is FailureClass.NODE_LOST
        assert "node 1" in first.failure.message and "was lost" in first.failure.message
        assert any("was lost" in cause.sentence for cause in here.agent.stop_causes)
        assert here.store.allocations("local")[0].nodes != ("node0", "node1")

    play(scene, tmp_path, lease_s=0.05, nodes=3, cpus=1.0)


def test_no_retry_starts_before_the_lease_is_over(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.cluster.lose("node0")
        await here.until(
            lambda: any(one.kind == "node_lost" for one in here.store.events(job.id)),
            "the loss is told",
        )
        assert here.store.job(job.id).state is JobState.RUNNING
        assert here.store.job(job.id).attempt == 1

    play(scene, tmp_path, lease_s=3600.0, nodes=2)


def test_lease_starts_before_the_launch_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet, launch = FakeAgent.hello, FakeAgent.launch
    clocks: list[float] = []
    since: list[float | None] = []

    async def hello(self: FakeAgent, asked: Nothing) -> Hello:
        clocks.append(1000.0 + len(clocks))
        return replace(await greet(self, asked), clock_s=clocks[-1])

    async def starts(self: FakeAgent, request: LaunchRequest) -> Launched:
        since.append(request.plan.lease_since_s)
        return await launch(self, request)

    monkeypatch.setattr(FakeAgent, "hello", hello)
    monkeypatch.setattr(FakeAgent, "launch", starts)

    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        assert clocks == [1000.0, 1001.0]  # read again after the preparation
        assert since == [1001.0]

    play(scene, tmp_path, lease_s=90.0)


def test_gpus_of_a_machine_are_not_given_away_while_an_earlier_attempt_may_use_them() -> None:
    """After a restart of Ray the machine is a new node, on which the old group reserves no GPU."""
    allocations = Allocations("t", cast(Cluster, None), cast(Clock, TurnedClock()))
    free = NodeInfo("new", "10.0.0.1", 8.0, 4.0, 1e9, 8.0, 4.0, 1e9)
    other = replace(free, node_id="other", address="10.0.0.2")

    def left(node: NodeInfo) -> list[tuple[float, float]]:
        return [(one.free_cpus, one.free_gpus) for one in allocations.capacities([node])]

    suspect = KnownAllocation(
        name="rj-t-1",
        served=cast(Served, None),
        shape=Shape(cpus=2.0, gpus=1.0),
        nodes=(),
        gpus=(),
        job=None,
        since_s=0.0,
        draining=True,
        suspects=(attempt_on("old"),),
    )
    allocations.know(suspect)
    assert left(free) == [(6.0, 0.0)]  # Ray does not know which of the four GPUs it uses
    assert left(other) == [(8.0, 4.0)]
    allocations.know(replace(suspect, shape=Shape(cpus=2.0)))
    assert left(free) == [(6.0, 4.0)]
    # If the node still lives, its placement group holds the GPUs.
    allocations.know(replace(suspect, nodes=("new",), suspects=(attempt_on("new"),)))
    assert left(free) == [(6.0, 3.0)]
    allocations.know(replace(suspect, draining=False))
    assert left(free) == [(8.0, 4.0)]


@pytest.mark.long
def test_where_nodes_share_the_machine_another_agent_follows_the_attempt(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.cluster.lose("node0")
        other = here.cluster.agents["node1"]
        await here.until(lambda: ("follow", job.id, 1) in other.calls, "the other one follows")
        other.end(job.id, 1, exit_code=0)
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path, nodes=2)


@pytest.mark.long
def test_group_silent_on_all_nodes_has_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SILENCE_LOOK_S", 0.01)

    async def scene(here: World) -> None:
        job = here.submit(
            stall_timeout_s=60.0,
            distribution={"backend": "gloo", "nodes": 2, "processes_per_node": 1},
        )
        await here.launched(job)
        first, second = here.cluster.agents["node0"], here.cluster.agents["node1"]
        first.silent = 61.0
        await here.until(lambda: ("silent", job.id, 1) in second.calls, "both are asked")
        asked = second.calls.count(("silent", job.id, 1))
        await here.until(
            lambda: second.calls.count(("silent", job.id, 1)) > asked + 1, "and asked again"
        )
        assert here.store.job(job.id).state is JobState.RUNNING  # one node reports
        second.silent = 62.0
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert done.failure.failure_class is FailureClass.STALLED

    play(scene, tmp_path, nodes=2, cpus=1.0)


async def pair_of_which_one_has_ended(here: World, *, stall_timeout_s: float) -> Job:
    """Return a job whose first node has completed and whose other node has long been silent."""
    job = here.submit(
        stall_timeout_s=stall_timeout_s,
        distribution={"backend": "gloo", "nodes": 2, "processes_per_node": 1},
    )
    await here.launched(job)
    first, second = here.cluster.agents["node0"], here.cluster.agents["node1"]
    first.silent, second.silent = None, 7200.0
    await here.until(lambda: ("follow", job.id, 1) in first.calls, "its end will be seen")
    first.end(job.id, 1, exit_code=0)
    return job


@pytest.mark.long
def test_ended_node_does_not_keep_a_silent_group_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SILENCE_LOOK_S", 0.01)

    async def scene(here: World) -> None:
        job = await pair_of_which_one_has_ended(here, stall_timeout_s=0.1)
        first, asked = here.cluster.agents["node0"], ("silent", job.id, 1)
        enough = first.calls.count(asked) + 50

        def over() -> bool:  # gives up if the job never ends
            return here.store.job(job.id).state.is_final or first.calls.count(asked) > enough

        await here.until(over, "it has stalled")
        done = here.store.job(job.id)
        assert done.state is JobState.FAILED and done.failure is not None
        assert done.failure.failure_class is FailureClass.STALLED
        assert ("stalled", job.id, 1) not in first.calls

    play(scene, tmp_path, nodes=2, cpus=1.0)


@pytest.mark.long
def test_the_end_of_a_node_is_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SILENCE_LOOK_S", 0.01)
    looks: list[float] = []
    ended_for_s = GroupEnd.ended_for_s

    def noted(self: GroupEnd, node: NodeOfAttempt) -> float | None:
        ago_s = ended_for_s(self, node)
        if ago_s is not None:
            looks.append(ago_s)
        return ago_s

    monkeypatch.setattr(GroupEnd, "ended_for_s", noted)

    async def scene(here: World) -> None:
        job = await pair_of_which_one_has_ended(here, stall_timeout_s=3600.0)
        stalled, calls = ("stalled", job.id, 1), here.cluster.agents["node1"].calls
        await here.until(lambda: len(looks) > 5 or stalled in calls, "it is looked at again")
        assert stalled not in calls
        assert here.store.job(job.id).state is JobState.RUNNING

    play(scene, tmp_path, nodes=2, cpus=1.0)


def leases_of(cluster: FakeCluster, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch) -> Leases:
    """Return leases whose waits advance the clock instead of sleeping."""

    async def turn(seconds: float) -> None:
        clock.at += seconds

    monkeypatch.setattr(asyncio, "sleep", turn)
    return Leases(cluster, clock, lease_s=90.0, shares_machine=False)  # type: ignore[arg-type]


def test_the_whole_lease_is_waited_for_from_the_last_renewal_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = TurnedClock()
    held = leases_of(FakeCluster(), clock, monkeypatch)
    node = attempt_on("gone")
    held.grant(node)
    clock.at += 30.0
    assert asyncio.run(held.wait_over(node))
    assert clock.at == pytest.approx(1090.0)


@pytest.mark.parametrize(("watches", "waited_s"), [(True, leases.RAYLET_GONE_S), (False, 90.0)])
def test_a_raylet_that_has_ended_shortens_the_wait_where_its_host_watches_it(
    monkeypatch: pytest.MonkeyPatch, watches: bool, waited_s: float
) -> None:
    clock, cluster = TurnedClock(), FakeCluster()
    cluster.raylets_gone.add("gone")
    held = leases_of(cluster, clock, monkeypatch)
    node = attempt_on("gone", watches_raylet=watches)
    held.grant(node)
    assert asyncio.run(held.wait_over(node))
    assert clock.at - 1000.0 == pytest.approx(waited_s)


def test_new_actor_waits_a_full_lease_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = TurnedClock()
    held = leases_of(FakeCluster(), clock, monkeypatch)
    assert asyncio.run(held.wait_over(attempt_on("gone")))
    assert clock.at == pytest.approx(1090.0)
    assert not asyncio.run(held.wait_over(attempt_on("gone", lease_s=None)))


def test_a_renewal_carries_the_stamp_of_the_previous_answer() -> None:
    stamps: list[float | None] = []

    class Agent(FakeAgent):
        async def renew(self, request: Renew) -> Renewed:
            stamps.append(request.stamp)
            if len(stamps) == 4:
                raise AgentLostError("gone")
            return await super().renew(request)

    leases = Leases(FakeCluster(), TurnedClock(), lease_s=0.01, shares_machine=False)  # type: ignore[arg-type]
    asyncio.run(leases.keep(Agent("node0"), attempt_on("node0", lease_s=0.01)))
    assert stamps == [None, 0.0, 1.0, 2.0]


def test_a_node_of_a_restarted_cluster_is_found_by_its_address() -> None:
    cluster = FakeCluster()  # its only node has the address 127.0.0.1
    leases = Leases(cluster, TurnedClock(), lease_s=90.0, shares_machine=False)  # type: ignore[arg-type]
    node = NodeOfAttempt(on_node(address="127.0.0.1"), "of the old cluster")
    assert asyncio.run(leases.living_node(node)) is None
    assert asyncio.run(leases.living_node(node, restarted=True)) == "node0"
    elsewhere = NodeOfAttempt(on_node(address="10.9.9.9"), "of the old cluster")
    assert asyncio.run(leases.living_node(elsewhere, restarted=True)) is None


def test_host_ended_with_its_allocation_is_not_canceled() -> None:
    ended = exit_record("j", 1, signal=15, cause=EndCause(EndReason.UNFOLLOWED))
    outcome, failure = diagnose([ended], {})
    assert failure is not None
    assert (outcome, failure.failure_class) == ("node_lost", FailureClass.NODE_LOST)


LOST = replace(
    exit_record("j", 1, outcome=Outcome.NODE_LOST, node=1, reason="node 1 was lost"), ranks=()
)


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (b"RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1\n", "node_lost"),
        (b"", "node_lost"),
        (
            b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
            b"ConnectionResetError: [Errno 104] Connection reset by peer\n",
            "node_lost",
        ),
        (
            b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
            b"ValueError: a mistake of its own\n",
            "failed",
        ),
    ],
)
def test_errors_caused_by_a_lost_node_are_not_the_cause(log: bytes, outcome: str) -> None:
    failed = exit_record("j", 1, exit_code=1)
    assert diagnose([failed, LOST], {0: log})[0] == outcome


@pytest.mark.parametrize("outcome", [Outcome.LEASE_LOST, Outcome.FAILED])
@pytest.mark.long
def test_nothing_is_placed_on_a_node_whose_raylet_has_ended_though_ray_still_lists_it(
    tmp_path: Path, outcome: Outcome
) -> None:
    async def scene(here: World) -> None:
        job = here.submit(retries={"node_lost": 3, "user": 1})
        await here.launched(job)
        (node,) = here.store.allocations("local")[0].nodes
        here.cluster.raylets_gone.add(node)
        here.cluster.agents[node].end(job.id, 1, outcome=outcome, exit_code=1)
        await here.until(lambda: here.store.job(job.id).attempt == 2, "it is tried again")

        def place() -> tuple[str, ...]:
            name = here.store.attempts(job.id)[-1].allocation
            rows = here.store.allocations("local", released=True)
            return next((tuple(row.nodes) for row in rows if row.name == name), ())

        await here.until(lambda: bool(place()), "it has its place")
        (again,) = place()
        # A failing job is not a reason to suspect its node.
        assert (again != node) == (outcome is Outcome.LEASE_LOST)
        assert here.cluster.doubted == ([node] if outcome is Outcome.LEASE_LOST else [])

    play(scene, tmp_path, nodes=2)


@pytest.mark.long
def test_node_loss_detected_by_the_host_before_ray_is_reported_once(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        freed: list[str] = []
        free = here.store.free_allocation

        def noted(name: str, **values: Any) -> bool:
            freed.append(name)
            return free(name, **values)

        here.store.free_allocation = noted  # type: ignore[method-assign]
        job = here.submit(retries={"node_lost": 3})
        await here.launched(job)
        (node,) = here.store.allocations("local")[0].nodes
        reason = "Ray's process on its node (raylet) has ended"
        here.cluster.agents[node].end(job.id, 1, outcome=Outcome.LEASE_LOST, reason=reason)
        await here.until(lambda: here.store.job(job.id).attempt == 2, "it is tried again")
        (event,) = [one for one in here.store.events(job.id) if one.kind == "node_lost"]
        assert event.attempt == 1
        assert node in event.message and event.message.endswith(f"is lost: {reason}")
        # Ray moves the bundles of a lost node: its group is removed at once, never idle.
        first = here.store.attempts(job.id)[0].allocation
        await here.until(lambda: first not in here.cluster.groups, "the group is removed")
        assert first not in freed

    play(scene, tmp_path, nodes=2)


@pytest.mark.parametrize("rejoins", [False, True])
def test_node_lost_while_its_files_are_collected_is_not_a_storage_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rejoins: bool
) -> None:
    monkeypatch.setattr(ending, "AGENT_PAUSE_S", 0.01)
    collect = FakeAgent.collect

    async def scene(here: World) -> None:
        lost: list[str] = []

        async def losing(agent: FakeAgent, on: AttemptOnNode) -> Collected:
            if not lost:
                lost.append(agent.node_id)
                if rejoins:  # as another node of Ray, on the same machine with the same files
                    number = agent.node_id.removeprefix("node")
                    here.cluster.grow(f"again{number}", "", cpus=2.0)
                here.cluster.lose(agent.node_id)
                raise AgentLostError("the agent has ended")
            return await collect(agent, on)

        monkeypatch.setattr(FakeAgent, "collect", losing)
        job = here.submit(retries={"node_lost": 1})
        await here.until(lambda: here.store.job(job.id).state is JobState.RUNNING)
        (node,) = here.store.allocations("local")[0].nodes
        here.cluster.agents[node].end(job.id, 1, exit_code=0)
        if rejoins:
            assert (await here.state(job, JobState.COMPLETED)).attempt == 1
            return
        await here.until(lambda: here.store.job(job.id).attempt == 2, "it is tried again")
        first = here.store.attempts(job.id)[0]
        assert first.outcome == Outcome.NODE_LOST and first.failure is not None
        assert first.failure.failure_class is FailureClass.NODE_LOST
        assert "was lost before its files were stored" in first.failure.message
        assert [one.kind for one in here.store.events(job.id)].count("node_lost") == 1

    play(scene, tmp_path, nodes=2, lease_s=90.0)
