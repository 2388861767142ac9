"""Attempts whose state is unknown, because Ray or an agent does not answer or answers with errors.

A job that may still run must not start again, and must not delay other jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayjobs.engine import engine
from rayjobs.engine.attempt import ending, record, settling, supervisor
from rayjobs.jobs.records import AllocationState
from rayjobs.jobs.states import JobState
from rayjobs.protocol.agent import AgentFaultError, AgentLostError, ClusterUnreachableError
from rayjobs.protocol.calls import Settle
from rayjobs.protocol.settled import Found, Settled
from rayjobs.spec.model import Retries
from tests.fakes.cluster import FakeAgent
from tests.fakes.world import World, play


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr(engine, "TIDY_S", 0.05)
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.02)
    monkeypatch.setattr(settling, "PAUSE_S", 0.01)
    for module in (ending, supervisor):
        monkeypatch.setattr(module, "AGENT_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor, "NOT_PLACED_PAUSE_S", 0.02)


class Failing:
    """Replaces a method by one that raises while `error` is set; counts the failures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.error: Callable[[], Exception] | None = None
        self.failures = 0
        real = getattr(owner, name)

        async def call(*given: Any, **more: Any) -> Any:
            if self.error is not None:
                self.failures += 1
                raise self.error()
            return await real(*given, **more)

        monkeypatch.setattr(owner, name, call)


def names(here: World) -> list[tuple[str, int]]:
    return [(what, attempt) for what, _job, attempt in here.agent.calls]


def test_an_attempt_is_ended_before_the_next_one_after_unexpected_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known about the first attempt as long as the node cannot be asked."""

    async def scene(here: World) -> None:
        reaching = Failing(monkeypatch, here.cluster, "agent")
        job = here.submit(retries=Retries(system=3))
        await here.launched(job)
        reaching.error = lambda: RuntimeError("a bug")
        here.agent.ends.pop((job.id, 1)).set_exception(AgentLostError("gone"))
        await here.until(lambda: reaching.failures > 5)
        assert here.store.job(job.id).state is JobState.RUNNING
        reaching.error = None
        here.agent.instant = 0
        await here.state(job, JobState.COMPLETED)
        calls = names(here)
        assert calls.index(("settle-end", 1)) < calls.index(("prepare", 2))

    play(scene, tmp_path)


def test_a_node_that_only_answers_with_errors_ends_its_job_without_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "FAULT_S", 0.1)
    monkeypatch.setattr(settling, "REPORT_S", 0.05)

    async def scene(here: World) -> None:
        settle = Failing(monkeypatch, FakeAgent, "settle")
        follow = Failing(monkeypatch, FakeAgent, "follow")
        settle.error = follow.error = lambda: AgentFaultError("KeyError: 'oh'")
        job = here.submit(retries=Retries(system=3))
        failed = await here.state(job, JobState.FAILED)
        assert failed.attempt == 1
        assert "It is not retried, since its processes may still run" in failed.reason
        assert any(
            "waits until its processes on node 0 (node0" in event.message
            for event in here.store.events(job.id)
        )
        draining = [AllocationState.DRAINING]
        await here.until(lambda: [one.state for one in here.store.allocations("local")] == draining)
        settle.error = follow.error = None
        await here.until(lambda: not here.store.allocations("local"))

    play(scene, tmp_path)


def test_an_error_after_a_long_outage_is_not_a_node_that_only_answers_with_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "FAULT_S", 0.3)

    async def scene(here: World) -> None:
        settle = Failing(monkeypatch, FakeAgent, "settle")
        follow = Failing(monkeypatch, FakeAgent, "follow")
        follow.error = lambda: AgentFaultError("KeyError: 'oh'")
        settle.error = lambda: ClusterUnreachableError("Ray does not answer")
        job = here.submit(retries=Retries(system=3))
        await here.until(lambda: settle.failures > 0)
        await asyncio.sleep(2 * settling.FAULT_S)
        seen, fault = settle.failures, [AgentFaultError("KeyError: 'oh'")]
        away = ClusterUnreachableError("Ray does not answer")
        settle.error = lambda: fault.pop() if fault else away
        await here.until(lambda: settle.failures > seen + 3)
        follow.error = settle.error = None
        here.agent.instant = 0
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 2

    play(scene, tmp_path)


def test_the_end_of_a_lease_settles_an_attempt_whose_node_answers_with_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "FAULT_S", 0.05)

    async def scene(here: World) -> None:
        settle = Failing(monkeypatch, FakeAgent, "settle")
        follow = Failing(monkeypatch, FakeAgent, "follow")
        settle.error = follow.error = lambda: AgentFaultError("KeyError: 'oh'")
        job = here.submit(retries=Retries(system=3))
        await here.until(lambda: settle.failures > 3)
        follow.error = None
        here.agent.instant = 0
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 2

    play(scene, tmp_path, lease_s=0.5)


def test_an_attempt_continues_while_ray_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        reaching = Failing(monkeypatch, here.cluster, "agent")
        job = here.submit(retries=Retries(system=0))
        await here.launched(job)
        reaching.error = lambda: ClusterUnreachableError("Ray lists no living node")
        here.agent.ends.pop((job.id, 1)).set_exception(AgentLostError("gone"))
        await here.until(lambda: reaching.failures > 5)
        here.agent.end(job.id, 1, exit_code=0)
        reaching.error = None
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        assert not [one for one in names(here) if one[0].startswith("settle")]

    play(scene, tmp_path)


def test_files_are_collected_once_ray_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "COLLECT_TRIES", 2)

    async def scene(here: World) -> None:
        reaching = Failing(monkeypatch, here.cluster, "agent")
        job = here.submit()
        await here.launched(job)
        reaching.error = lambda: ClusterUnreachableError("Ray does not answer")
        here.agent.end(job.id, 1, exit_code=0)
        await here.until(lambda: reaching.failures > 5)
        reaching.error = None
        await here.state(job, JobState.COMPLETED)
        assert ("collect", 1) in names(here)

    play(scene, tmp_path)


def test_a_cancel_gives_up_a_collection_while_ray_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        reaching = Failing(monkeypatch, here.cluster, "agent")
        job = here.submit()
        await here.launched(job)
        reaching.error = lambda: ClusterUnreachableError("Ray does not answer")
        here.agent.end(job.id, 1, exit_code=0)
        await here.until(lambda: reaching.failures > 5)
        here.store.request_cancel(job.id)
        here.engine.wake()
        canceled = await here.state(job, JobState.CANCELED)
        assert "Ray does not answer, so the collection was given up" in canceled.reason

    play(scene, tmp_path)


def test_a_start_waits_while_ray_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 0
        here.cluster.place_error = ClusterUnreachableError("Ray does not answer")
        job = here.submit(retries=Retries(system=0))
        await here.until(lambda: "Ray does not answer" in here.store.job(job.id).reason)
        here.cluster.place_error = None
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path)


@pytest.mark.parametrize("silent", [False, True], ids=["errors", "silent"])
def test_a_faulty_node_delays_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """Its job has lost its supervisor, because the store could not be written."""

    async def scene(here: World) -> None:
        is_faulty = True

        async def settle(self: FakeAgent, asked: Settle) -> Settled:
            if is_faulty and silent:
                await asyncio.Event().wait()
            if is_faulty:
                raise AgentFaultError("KeyError: 'oh'")
            return Settled(Found.GONE, proven=True)

        first = here.submit(retries=Retries(system=3, node_lost=3))
        await here.launched(first)
        key = here.engine.board.served[0].key(first.id)
        here.engine.attempts._running.pop(key)[1].cancel()  # as after a full store
        monkeypatch.setattr(FakeAgent, "settle", settle)
        await here.until(lambda: key in here.engine.attempts, "the job has a supervisor again")
        here.agent.instant = 0
        await here.state(here.submit(), JobState.COMPLETED)
        assert here.store.job(first.id).attempt == 1
        if not silent:
            is_faulty = False
            await here.state(first, JobState.COMPLETED)

    play(scene, tmp_path, cpus=4.0)


def test_a_new_actor_ends_a_job_whose_node_only_answers_with_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "FAULT_S", 0.1)

    async def scene(here: World) -> None:
        job = here.submit(retries=Retries(system=3, node_lost=3))
        await here.launched(job)
        await here.crash()
        here.cluster.id = "cluster-2"
        here.cluster.groups.clear()
        settle = Failing(monkeypatch, FakeAgent, "settle")
        settle.error = lambda: AgentFaultError("KeyError: 'oh'")
        await here.restart()
        failed = await here.state(job, JobState.FAILED)
        assert failed.attempt == 1
        assert "restarted, and the state of its attempt is unknown. It is not" in failed.reason

    play(scene, tmp_path)


def test_a_silent_node_delays_the_recovery_of_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "ANSWER_S", 0.05)

    async def settle(self: FakeAgent, asked: Settle) -> Settled:
        await asyncio.Event().wait()
        raise AssertionError

    async def scene(here: World) -> None:
        first = here.submit()
        await here.launched(first)
        await here.crash()
        here.cluster.id = "cluster-2"
        here.cluster.groups.clear()
        monkeypatch.setattr(FakeAgent, "settle", settle)
        here.agent.instant = 0
        await here.restart()
        await here.state(here.submit(), JobState.COMPLETED)
        assert here.store.job(first.id).attempt == 1

    play(scene, tmp_path, cpus=4.0)
