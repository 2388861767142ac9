"""Jobs of several nodes on a real store and a fake cluster: they start and end together."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.engine.attempt import supervisor
from rayjobs.injob.outcomes import CANCELED
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.node.ports import FORGOTTEN_S, HeldPorts
from rayjobs.protocol.agent import AgentFaultError, AgentLostError
from rayjobs.protocol.calls import Nothing, Stop
from rayjobs.protocol.nodes import Hello
from rayjobs.protocol.settled import Found, Settled
from rayjobs.spec.model import Distribution
from rayjobs.target import versions
from tests.fakes.cluster import FakeAgent
from tests.fakes.world import World, play

PAIR = Distribution(nodes=2, processes_per_node=1, backend="gloo")
TWO = {"cpus": 1.0, "nodes": 2}


def agents(here: World) -> list[FakeAgent]:
    return [here.cluster.agents["node0"], here.cluster.agents["node1"]]


async def running_pair(here: World) -> Job:
    job = here.submit(distribution=PAIR)
    await here.state(job, JobState.RUNNING)
    for agent in agents(here):
        await here.until(lambda agent=agent: ("follow", job.id, 1) in agent.calls)  # type: ignore[misc]
    return job


def test_failing_preparation_on_a_node_ends_the_other_preparations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_PREPARING_AGAIN_S", 0.01)

    async def scene(here: World) -> None:
        first, other = agents(here)
        first.prepare_error = PrepareError("no such data", failure_class=FailureClass.USER)
        other.prepares_until_stopped = True  # as with a lock of the other node, or hours of data
        job = here.submit(distribution=PAIR)
        failed = await here.state(job, JobState.FAILED)
        assert failed.failure is not None
        assert failed.failure.message == "no such data"
        assert {str(one.reason) for one in other.stop_causes} == {"node_ended"}

    play(scene, tmp_path, **TWO)


def test_failing_stop_request_does_not_abandon_nodes_that_still_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_PREPARING_AGAIN_S", 0.01)
    stop, faults = FakeAgent.stop, [AgentFaultError("KeyError: 'oh'")]

    async def failing_once(agent: FakeAgent, request: Stop) -> Nothing:
        if faults:
            raise faults.pop()
        return await stop(agent, request)

    monkeypatch.setattr(FakeAgent, "stop", failing_once)

    async def scene(here: World) -> None:
        first, other = agents(here)
        first.prepare_error = PrepareError("no such data", failure_class=FailureClass.USER)
        other.prepares_until_stopped = True
        failed = await here.state(here.submit(distribution=PAIR), JobState.FAILED)
        assert failed.failure is not None
        assert failed.failure.message == "no such data"
        assert failed.attempt == 1
        assert not faults and len(other.stop_causes) > 1

    play(scene, tmp_path, **TWO)


def test_all_nodes_are_launched_with_one_rendezvous_address(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = await running_pair(here)
        plans = [agent.requests[0].plan for agent in agents(here)]
        assert [plan.node for plan in plans] == [0, 1]
        assert [plan.master_port for plan in plans] == [40_001, None]
        assert {plan.env["MASTER_PORT"] for plan in plans} == {"40001"}
        assert len({plan.root for plan in plans}) == 2
        for node, agent in enumerate(agents(here)):
            agent.end(job.id, 1, exit_code=0, node=node)
        await here.state(job, JobState.COMPLETED)
        (attempt,) = here.store.attempts(job.id)
        assert [record.node for record in attempt.exits] == [0, 1]
        for agent in agents(here):
            await here.until(lambda agent=agent: ("clean", job.id, 1) in agent.calls)  # type: ignore[misc]

    play(scene, tmp_path, **TWO)


@pytest.mark.long
def test_the_first_node_that_fails_ends_the_attempt_and_is_named(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = await running_pair(here)
        first, second = agents(here)
        second.end(job.id, 1, exit_code=3, node=1)
        done = await here.state(job, JobState.FAILED)
        assert [one.sentence[:6] for one in first.stop_causes] == ["node 1"]
        assert second.stop_causes == []
        assert done.failure is not None
        assert (done.failure.rank, done.failure.exit_code) == (1, 3)
        (attempt,) = here.store.attempts(job.id)
        assert [record.outcome for record in attempt.exits] == ["canceled", "failed"]

    play(scene, tmp_path, **TWO)


def test_a_finished_node_waits_for_the_others(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = await running_pair(here)
        first, second = agents(here)
        first.end(job.id, 1, exit_code=0)
        await here.until(lambda: first.future((job.id, 1)).done())
        assert here.store.job(job.id).state is JobState.RUNNING
        assert second.stop_causes == []
        second.end(job.id, 1, exit_code=0, node=1)
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path, **TWO)


def test_a_cancel_goes_to_every_node(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = await running_pair(here)
        here.store.request_cancel(job.id)
        here.engine.wake()
        await here.state(job, JobState.CANCELED)
        assert [agent.stop_causes for agent in agents(here)] == [[CANCELED]] * 2

    play(scene, tmp_path, **TWO)


@pytest.mark.parametrize(
    "error",
    [
        PrepareError("a secret is missing", failure_class=FailureClass.ENVIRONMENT),
        AgentLostError("the agent died"),
    ],
)
def test_failing_start_on_a_node_ends_the_ranks_of_others(tmp_path: Path, error: Exception) -> None:
    async def scene(here: World) -> None:
        first, second = agents(here)
        second.launch_error = error
        job = here.submit(distribution=PAIR)
        await here.until(lambda: ("settle-end", job.id, 1) in first.calls)
        await here.until(lambda: here.store.attempts(job.id)[0].failure is not None)
        assert ("launch", job.id, 1) in first.calls

    play(scene, tmp_path, **TWO)


@pytest.mark.long
def test_a_new_engine_takes_over_every_node(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = await running_pair(here)
        for agent in agents(here):
            agent.settled = Settled(Found.RUNNING)
            agent.calls.clear()
        await here.crash()
        await here.restart()
        for agent in agents(here):
            await here.until(lambda agent=agent: ("follow", job.id, 1) in agent.calls)  # type: ignore[misc]
        agents(here)[1].end(job.id, 1, exit_code=5, node=1)
        done = await here.state(job, JobState.FAILED)
        assert done.failure is not None
        assert done.failure.rank == 1

    play(scene, tmp_path, **TWO)


def test_chosen_port_is_reserved_until_it_is_released() -> None:
    ports = HeldPorts()
    chosen = ports.take()
    others = {ports.take() for _ in range(20)}
    assert chosen not in others
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", chosen))
    with socket.socket() as rank_zero:
        rank_zero.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_zero.bind(("127.0.0.1", chosen))
        rank_zero.listen()
    for port in (chosen, *others, None, chosen):
        ports.let_go(port)


def open_files() -> set[str]:
    """Return what the descriptors of this process stand for."""
    found = set()
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{one}"))
    return found


def test_port_without_a_launch_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = HeldPorts()
    first = ports.take()
    held = os.readlink(f"/proc/self/fd/{ports._held[first][0]}")
    later_s = FORGOTTEN_S + 1.0 + time.monotonic()
    monkeypatch.setattr("rayjobs.node.ports.time.monotonic", lambda: later_s)
    port = ports.take()
    assert list(ports._held) == [port]
    assert held not in open_files()
    ports.let_go(port)


def test_a_node_with_another_rayjobs_is_refused_and_named(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        second = agents(here)[1]
        greeting = replace(await second.hello(Nothing()), address="10.0.0.7", installed="99.1")

        async def hello(_: Nothing) -> Hello:
            return greeting

        second.hello = hello  # type: ignore[method-assign]
        job = here.submit(distribution=PAIR)
        failed = await here.state(job, JobState.FAILED)
        assert failed.failure is not None
        assert str(failed.failure.failure_class) == "environment"
        for word in ("10.0.0.7", "rayjobs 99.1", f"runs rayjobs {versions.installed()}"):
            assert word in failed.failure.message

        greeting = replace(greeting, installed=versions.installed())
        again = here.submit(distribution=PAIR)
        await here.state(again, JobState.RUNNING)

    play(scene, tmp_path, **TWO)
