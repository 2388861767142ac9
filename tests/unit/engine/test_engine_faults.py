"""The engine when its store, its agents, its workspaces or other actors fail."""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.core.errors import StoreBusyError, StoreFullError
from rayjobs.core.failures import FailureClass
from rayjobs.engine import board, engine
from rayjobs.engine.attempt import ending, record, settling, supervisor
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import AllocationState
from rayjobs.jobs.states import JobState
from rayjobs.policy import Shape
from rayjobs.protocol.agent import AgentFaultError, AgentLostError, NotPlacedError
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.calls import Nothing, Settle, Stop
from rayjobs.protocol.settled import Found, Settled
from rayjobs.spec.model import Resources, Retries
from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from tests.fakes.cluster import FakeAgent, exit_record
from tests.fakes.world import World, play


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr(engine, "TIDY_S", 0.05)
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.02)
    monkeypatch.setattr(supervisor, "NOT_PLACED_PAUSE_S", 0.02)


class Flaky:
    """A store whose calls fail a number of times set by a test."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failing: Counter[str] = Counter()
        self.error: Exception = StoreFullError("no space left")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            if self.failing[name] > 0:
                self.failing[name] -= 1
                raise self.error
            return found(*given, **more)

        return call


def flaky(here: World) -> Flaky:
    """Put a flaky store between the engine and the test's own; call before `start`."""
    made = Flaky(here.store)
    here.open = lambda: made
    return made


async def all_is_free(here: World) -> None:
    """Wait until no allocation is in use, no orphaned group is left, and the rows agree."""
    await here.until(
        lambda: (
            not here.engine.attempts
            and all(
                allocation.job is None and not allocation.draining
                for allocation in here.engine.allocations.all
            )
            and set(here.cluster.groups)
            == {allocation.name for allocation in here.engine.allocations.all}
            and all(row.state is AllocationState.IDLE for row in here.store.allocations("local"))
        ),
        "every place is free",
    )


def test_a_supervisor_that_is_cancelled_before_it_begins_leaves_no_coroutine(
    tmp_path: Path,
) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        begun: list[str] = []

        async def work() -> None:
            begun.append("work")

        made = work()
        here.engine.attempts.adopt(SimpleNamespace(key="k"), made)  # type: ignore[arg-type]
        await asyncio.gather(*here.engine.attempts.cancel(), return_exceptions=True)
        assert begun == []
        assert inspect.getcoroutinestate(made) == inspect.CORO_CLOSED

    play(scene, tmp_path)


WRITES = (
    "add_allocation", "start", "place_allocation", "hold_allocation", "set_hosts", "move",
    "record_exit", "finish", "free_allocation", "live", "jobs_of", "queue_marks", "change",
    "allocations", "set_meta", "release_allocation",
)  # fmt: skip


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("call", WRITES)
@pytest.mark.long
def test_temporary_store_failure_loses_no_job_or_allocation(
    tmp_path: Path, call: str, times: int
) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        store = flaky(here)
        store.failing[call] = times
        here.agent.instant = 0
        await here.restart()
        jobs = [here.submit() for _ in range(2)]
        for job in jobs:
            await here.state(job, JobState.COMPLETED)
        store.failing.clear()
        launches = [job for what, job, _ in here.agent.calls if what == "launch"]
        assert sorted(launches) == sorted(job.id for job in jobs)
        await all_is_free(here)

    play(scene, tmp_path)


def test_failed_allocation_release_is_retried(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        store = flaky(here)
        await here.restart()
        job = here.submit()
        await here.launched(job)
        await here.crash()  # the other search for orphaned allocations is disabled
        (allocation,) = here.engine.allocations.all
        store.failing["release_allocation"] = 1
        await here.engine.allocations.release(allocation)
        assert here.store.allocations("local")[0].state is AllocationState.HELD
        await here.engine.allocations.release_old()
        assert not here.store.allocations("local")

    play(scene, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("call", ["requeue", "finish", "job", "attempts"])
def test_a_failure_is_written_once_the_store_takes_it(tmp_path: Path, call: str) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        store = flaky(here)
        here.agent.instant = 1
        await here.restart()
        store.failing[call] = 2
        job = here.submit(retries=Retries(user=1 if call == "requeue" else 0))
        done = await here.state(job, JobState.FAILED)
        assert done.attempt == (2 if call == "requeue" else 1)
        await all_is_free(here)

    play(scene, tmp_path)


@pytest.mark.long
def test_a_locked_store_at_a_takeover_costs_no_running_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        store = flaky(here)
        store.error = StoreBusyError("locked")
        store.failing["live"] = 5
        here.agent.settled = Settled(Found.RUNNING)
        here.agent.calls.clear()
        await here.restart()
        await here.until(lambda: ("follow", job.id, 1) in here.agent.calls)
        assert ("settle-end", job.id, 1) not in here.agent.calls
        assert len(here.cluster.groups) == 1
        here.agent.end(job.id, 1, exit_code=0)
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1

    play(scene, tmp_path)


# -- draining allocations -----------------------------------------------------------------------


@pytest.mark.long
def test_draining_allocation_is_freed_when_its_ranks_are_proven_dead(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.settled = Settled(Found.ENDED, proven=False)
        job = here.submit()
        await here.launched(job)
        here.agent.end(job.id, 1, exit_code=0, proven=False)
        await here.state(job, JobState.COMPLETED)
        await here.until(lambda: here.agent.calls.count(("settle-end", job.id, 1)) > 2)
        (allocation,) = here.engine.allocations.all
        assert allocation.draining
        here.agent.settled = Settled(Found.ENDED, proven=True)
        await here.until(lambda: here.engine.allocations.all == [], "it is forgotten")
        await here.until(lambda: here.cluster.groups == {}, "its group is removed")
        await here.until(lambda: here.store.allocations("local") == [], "its row says so")

    play(scene, tmp_path)


@pytest.mark.parametrize("cluster", ["same", "another"])
@pytest.mark.parametrize("state", ["drained", "held"])
@pytest.mark.long
def test_allocation_not_proven_empty_stays_reserved_after_a_restart(
    tmp_path: Path, state: str, cluster: str
) -> None:
    async def scene(here: World) -> None:
        here.agent.settled = Settled(Found.ENDED, proven=False)
        job = here.submit(resources=Resources(cpus=2))
        await here.launched(job)
        if state == "drained":
            here.agent.end(job.id, 1, exit_code=0, proven=False)
            await here.state(job, JobState.COMPLETED)
            await here.until(
                lambda: [
                    allocation for allocation in here.engine.allocations.all if allocation.draining
                ]
            )
        await here.crash()
        if state == "held":  # the end was recorded, but the allocation was not released
            here.store.finish(job.id, attempt=1, state=JobState.FAILED)
        if cluster == "another":
            here.cluster.id = "cluster-2"
            here.cluster.groups.clear()
        await here.restart()
        after = here.submit(resources=Resources(cpus=2))
        key = f"{here.folder}::{after.id}"
        await here.until(lambda: here.engine.explain(key))
        decision = here.engine.explain(key)
        assert decision is not None
        assert not decision.start
        (allocation,) = here.engine.allocations.all
        assert allocation.draining
        here.agent.instant = 0
        here.agent.settled = Settled(Found.ENDED, proven=True)
        await here.state(after, JobState.COMPLETED)

    play(scene, tmp_path)


# -- agents ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_cancel_not_received_by_its_host_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_AGAIN_S", 0.02)
    deaf = 2
    original_stop = FakeAgent.stop

    async def stop(self: FakeAgent, asked: Stop) -> Nothing:
        nonlocal deaf
        if deaf:
            deaf -= 1
            return Nothing()
        return await original_stop(self, asked)

    monkeypatch.setattr(FakeAgent, "stop", stop)

    async def scene(here: World) -> None:
        job = here.submit(grace_s=0.0)
        await here.launched(job)
        here.store.request_cancel(job.id)
        await here.state(job, JobState.CANCELED)
        assert deaf == 0

    play(scene, tmp_path)


@pytest.mark.long
def test_finished_job_is_not_repeated_when_agents_are_lost_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "PAUSE_S", 0.01)
    losses = {"launch": 1, "settle": 5}  # more than the retries of one question

    async def launch(self: FakeAgent, _request: Any) -> Any:
        losses["launch"] -= 1
        raise AgentLostError("gone while it launched")

    async def settle(self: FakeAgent, asked: Settle) -> Settled:
        if losses["settle"]:
            losses["settle"] -= 1
            raise AgentLostError("gone while it looked")
        record = exit_record(asked.on.job, asked.on.attempt)
        return Settled.of_record(record, proven=True, ended_now=False)

    monkeypatch.setattr(FakeAgent, "launch", launch)
    monkeypatch.setattr(FakeAgent, "settle", settle)

    async def scene(here: World) -> None:
        job = here.submit(retries={"system": 5})
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        assert losses == {"launch": 0, "settle": 0}

    play(scene, tmp_path)


@pytest.mark.long
def test_history_has_the_first_sentence_of_a_long_agent_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "AGENT_PAUSE_S", 0.01)
    message = (
        "The node's agent cannot be reached: the actor died. Its owner's address is x.\n\tclass: A"
    )
    follow, losses = FakeAgent.follow, [1]

    async def lost_once(self: FakeAgent, on: AttemptOnNode) -> Any:
        if losses.pop() if losses else 0:
            raise AgentLostError(message)
        return await follow(self, on)

    monkeypatch.setattr(FakeAgent, "follow", lost_once)

    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.agent.end(job.id, 1)
        await here.state(job, JobState.COMPLETED)
        [event] = [one for one in here.store.events(job.id) if one.kind == "agent_lost"]
        assert event.message.endswith("agent cannot be reached: the actor died.")
        assert event.data["detail"] == message

    play(scene, tmp_path)


@pytest.mark.long
def test_a_node_whose_agents_never_start_keeps_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        async def lost(_node_id: str) -> FakeAgent:
            raise AgentLostError("it does not start")

        with monkeypatch.context() as broken:
            broken.setattr(here.cluster, "agent", lost)
            job = here.submit(retries={"system": 1})
            failed = await here.state(job, JobState.FAILED)
        assert failed.failure is not None
        assert failed.failure.failure_class == "system"
        assert "it does not start" in failed.failure.message

    play(scene, tmp_path)


@pytest.mark.parametrize("is_other_cluster", [False, True])
@pytest.mark.long
def test_new_engine_asks_until_a_node_reports_the_state_of_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other_cluster: bool
) -> None:
    monkeypatch.setattr(settling, "PAUSE_S", 0.01)
    losses = 10  # more than the retries of one turn

    async def settle(self: FakeAgent, asked: Settle) -> Settled:
        nonlocal losses
        if losses:
            losses -= 1
            raise AgentLostError("gone while it looked")
        record = exit_record(asked.on.job, asked.on.attempt)
        return Settled.of_record(record, proven=True, ended_now=False)

    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        await here.crash()
        if is_other_cluster:
            here.cluster.id = "cluster-2"
            here.cluster.groups.clear()
        monkeypatch.setattr(FakeAgent, "settle", settle)
        here.agent.end(job.id, 1, exit_code=0)
        await here.restart()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        assert losses == 0
        assert ("launch", job.id, 2) not in here.agent.calls

    play(scene, tmp_path)


@pytest.mark.parametrize("call", ["prepare", "launch", "follow", "collect", "settle", "clean"])
@pytest.mark.long
def test_failing_agent_costs_at_most_one_job_and_no_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(FakeAgent, call)
    wrong = True

    async def fails(self: FakeAgent, message: Any) -> Any:
        if wrong:
            raise AgentFaultError("KeyError: 'oh'")
        return await real(self, message)

    monkeypatch.setattr(FakeAgent, call, fails)
    monkeypatch.setattr(ending, "COLLECT_TRIES", 1)
    monkeypatch.setattr(settling, "PAUSE_S", 0.01)
    monkeypatch.setattr(settling, "FAULT_S", 0.05)

    async def scene(here: World) -> None:
        nonlocal wrong
        if call == "settle":
            here.agent.launch_error = AgentFaultError("oh")
        here.agent.instant = 0
        job = here.submit(retries=Retries(system=0))
        await here.until(lambda: here.store.job(job.id).state.is_final)
        wrong, here.agent.launch_error = False, None
        await here.state(here.submit(), JobState.COMPLETED)
        await all_is_free(here)

    play(scene, tmp_path)


def test_a_host_that_may_have_started_late_is_ended_before_the_retry(tmp_path: Path) -> None:
    from rayjobs.core.errors import PrepareError

    async def scene(here: World) -> None:
        here.agent.launch_error = PrepareError("no answer", failure_class=FailureClass.SYSTEM)
        job = here.submit(retries=Retries(system=0))
        await here.state(job, JobState.FAILED)
        await here.until(lambda: ("clean", job.id, 1) in here.agent.calls)
        calls = [what for what, _, _ in here.agent.calls]
        assert calls == ["prepare", "launch", "settle-end", "clean"]

    play(scene, tmp_path)


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_group_that_is_made_after_its_jobs_cancel_is_removed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 0
        await here.state(here.submit(), JobState.COMPLETED)
        here.cluster.groups["rj-local-late"] = (Shape(), ("node0",))
        await all_is_free(here)
        assert len(here.cluster.groups) == 1

    play(scene, tmp_path)


@pytest.mark.parametrize("error", [NotPlacedError("its node went away"), ValueError("odd")])
@pytest.mark.long
def test_group_that_fails_late_leaves_no_allocation(tmp_path: Path, error: Exception) -> None:
    async def scene(here: World) -> None:
        real = here.cluster.gpu_ids

        async def fails_once(*given: Any) -> Any:
            here.cluster.gpu_ids = real  # type: ignore[method-assign]
            raise error

        here.cluster.gpu_ids = fails_once  # type: ignore[assignment,method-assign]
        here.agent.instant = 0
        job = here.submit(retries=Retries(system=1))
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 2
        assert len(here.cluster.created) == 2
        await all_is_free(here)

    play(scene, tmp_path)


# -- workspaces -----------------------------------------------------------------------------------


def named(folder: Path, number: str) -> None:
    record = {"version": 1, "id": number, "name": "w"}
    (folder / "workspace.json").write_text(json.dumps(record))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("state", ["placing", "running"])
def test_removing_a_workspace_ends_its_job_and_frees_the_allocation(
    tmp_path: Path, state: str, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "GONE_S", 0.0)

    async def scene(here: World) -> None:
        await here.crash()
        here.folder = tmp_path / "w"
        here.folder.mkdir()
        named(here.folder, "one")
        await here.restart()
        if state == "placing":
            here.cluster.hold_placement.clear()
        job = here.submit()
        if state == "running":
            await here.launched(job)
        else:
            await here.state(job, JobState.PROVISIONING)
        here.agent.settled = Settled(Found.GONE, proven=True)
        shutil.rmtree(here.folder)
        if replaced:
            here.folder.mkdir()
            named(here.folder, "two")
        here.engine.wake()
        await here.until(lambda: not here.engine.attempts, "the attempt ends")
        here.cluster.hold_placement.set()
        if state == "running":
            assert ("stop", job.id, 1) in here.agent.calls
            assert ("settle-end", job.id, 1) in here.agent.calls
        await here.until(lambda: here.cluster.groups == {}, "its group is gone")
        await here.until(lambda: here.engine.allocations.all == [], "it is forgotten")

    play(scene, tmp_path)


@pytest.mark.long
def test_a_workspace_that_disappears_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        here.folder, away = tmp_path / "w", tmp_path / "away"
        here.folder.mkdir()
        named(here.folder, "one")
        here.store.close()
        here.store = SqlStore(here.folder / "store.db")
        await here.restart()
        goes_on, ends = here.submit(), here.submit()
        await here.launched(goes_on)
        await here.launched(ends)
        shutil.copytree(here.folder, away)  # unlike a rename, hidden from open handles
        shutil.rmtree(here.folder)
        here.agent.end(ends.id, 1, exit_code=0)
        calls = len(here.agent.calls)
        looks, refresh = Counter[str](), here.engine.board.refresh

        async def counted() -> None:
            await refresh()
            looks["done"] += 1

        here.engine.board.refresh = counted  # type: ignore[method-assign]
        here.engine.wake()
        await here.until(lambda: looks["done"] > 2, "some turns without the folder")
        assert not [call for call in here.agent.calls[calls:] if call[0] in ("stop", "settle-end")]
        shutil.copytree(away, here.folder)
        here.engine.wake()
        assert (await here.state(ends, JobState.COMPLETED)).attempt == 1
        here.agent.end(goes_on.id, 1, exit_code=0)
        assert (await here.state(goes_on, JobState.COMPLETED)).attempt == 1

    play(scene, tmp_path)


def test_a_job_that_is_changed_while_it_starts_runs_what_was_changed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        start = here.store.start
        seen: list[Any] = []

        def late(job_id: str, **more: Any) -> Any:
            if not seen:  # after the decision to start the job, before the store has started it
                read = here.store.job(job_id)
                spec = read.spec.model_copy(update={"max_duration_s": 60.0})
                assert here.store.revise(read, spec) is not None
            seen.append(start(job_id, **more))
            return seen[-1]

        here.store.start = late  # type: ignore[method-assign]
        here.agent.instant = 0
        job = here.submit()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        assert seen[0] is None
        assert done.spec.max_duration_s == 60.0
        assert [one.message for one in here.store.events(job.id) if one.kind == "revision"] == [
            "revision 2: max_duration_s none → 60"
        ]

    play(scene, tmp_path)


# -- another actor --------------------------------------------------------------------------------


@pytest.mark.long
def test_an_actor_that_was_replaced_stops_acting(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await here.crash()
        here.epoch = "old"
        here.store.claim_target("local", epoch="old")
        await here.restart()
        job = here.submit()
        await here.launched(job)
        here.store.claim_target("local", epoch="new")
        await here.ended()
        assert len(here.engine.attempts) == 0
        after = here.submit()
        here.agent.end(job.id, 1, exit_code=0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert here.store.job(job.id).state is JobState.RUNNING
        assert here.store.job(after.id).state is JobState.QUEUED
        assert not [call for call in here.agent.calls if call[0] in ("stop", "settle-end")]

    play(scene, tmp_path)


def test_host_recorded_by_the_old_actor_during_a_requeue_runs_once(
    tmp_path: Path,
) -> None:
    """The old actor records a host just before the new one, which has seen none, requeues."""

    async def scene(here: World) -> None:
        await here.crash()
        store = flaky(here)
        store.failing["set_hosts"] = 10**6
        await here.restart()
        job = here.submit()
        await here.state(job, JobState.PREPARING)
        await here.crash()
        requeue = here.store.requeue

        def raced(job_id: str, **more: Any) -> bool:
            host = HostRecord(0, "node0", root="/r", socket="/s", marker="m")
            here.store.set_hosts(job_id, attempt=1, hosts=[host])
            return requeue(job_id, **more)

        here.store.requeue = raced  # type: ignore[method-assign]
        store.failing.clear()
        here.agent.settled = Settled(Found.ENDED, proven=True)
        here.agent.end(job.id, 1, exit_code=0)
        here.agent.instant = 0
        await here.restart()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 1
        await all_is_free(here)

    play(scene, tmp_path)


@pytest.mark.parametrize("after_launch", [False, True])
@pytest.mark.long
def test_actor_whose_attempt_was_ended_by_another_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_launch: bool
) -> None:
    """A slow actor: its job has been requeued elsewhere before it records the hosts of attempt 1.

    A host that it has already launched is ended by the clean-up of attempt 1.
    """
    monkeypatch.setattr(engine, "TIDY_S", 1e6)

    async def scene(here: World) -> None:
        write = here.store.set_hosts

        def raced(job_id: str, *, attempt: int, **more: Any) -> bool:
            if attempt == 1 and (("launch", job_id, 1) in here.agent.calls) == after_launch:
                here.store.requeue(
                    job_id, attempt=1, reason="its actor is gone", outcome=Outcome.NODE_LOST
                )
            return write(job_id, attempt=attempt, **more)

        here.store.set_hosts = raced  # type: ignore[method-assign]
        here.agent.instant = 0
        job = here.submit()
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt == 2

        def first() -> list[str]:
            return [what for what, _, attempt in here.agent.calls if attempt == 1]

        begun = ["prepare", "launch"] if after_launch else []
        assert first() == begun
        place = here.store.attempts(job.id)[0].allocation
        assert place in here.cluster.groups
        monkeypatch.setattr(engine, "TIDY_S", 0.0)
        await here.until(
            lambda: all(row.name != place for row in here.store.allocations("local")),
            "the place of attempt 1 is released",
        )
        assert first() == [*begun, *(["settle-end"] if after_launch else [])]
        assert place not in here.cluster.groups

    play(scene, tmp_path)
