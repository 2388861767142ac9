"""The queue in memory: only changes are read, and unreadable stores cause no action."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import StoreBusyError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.engine import candidates as candidates_module
from rayjobs.engine.board import QueueView, Served
from rayjobs.engine.candidates import Candidates
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job, StoredFile
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.policy import Decisions, Rule, Situation, decide
from rayjobs.policy.order import sort_key
from rayjobs.protocol.agent import NodeInfo
from rayjobs.spec.model import Array, Dependency, JobSpec, Retries
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.store.sql import SqlStore

S = JobState
NODE = NodeInfo("n0", "127.0.0.1", 4.0, 0.0, 8e9, 4.0, 0.0, 8e9)


class Counted:
    """A store that counts its calls, and is locked on request."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()
        self.locked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            self.calls[name] += len(given[0]) if name == "jobs_of" else 1
            if name in self.locked:
                raise StoreBusyError("locked")
            return getattr(self.store, name)(*given, **more)

        return call

    def submit(self, **more: Any) -> Job:
        spec = JobSpec(**({"script": "train.py", "name": "t"} | more))
        return self.store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))[0]


Scene = Callable[[Counted, QueueView], Awaitable[None]]


def play(scene: Scene, folder: Path) -> None:
    async def whole() -> None:
        store = Counted(SqlStore(folder / "store.db"))
        view = QueueView(Served(str(folder), "ws", store), "local")  # type: ignore[arg-type]
        try:
            await scene(store, view)
        finally:
            store.store.close()

    asyncio.run(whole())


def test_only_what_has_changed_is_read_again(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        jobs = [store.submit() for _ in range(5)]
        await view.look()
        first = view.queued
        assert [job.id for job in first.values()] == [job.id for job in jobs]
        store.calls.clear()
        await view.look()
        assert store.calls == {"change": 1}
        store.store.update(jobs[2].id, JobChanges(priority=7))
        await view.look()
        assert store.calls["jobs_of"] == 1
        key = view.served.key(jobs[2].id)
        assert view.queued[key].priority == 7
        others = [one for one in first if one != key]
        assert all(view.queued[one] is first[one] for one in others)

    play(scene, tmp_path)


def test_unrelated_change_leaves_the_queue_unchanged(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        job = store.submit()
        await view.look()
        before = view.queued
        store.store.add_event(job.id, "note", "something else")
        await view.look()
        assert view.queued is before

    play(scene, tmp_path)


def test_started_or_canceled_job_leaves_the_queue_and_may_return(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        started, canceled = store.submit(script="a.py"), store.submit(script="b.py")
        await view.look()
        assert view.entries == {("e", "a.py"): 1, ("e", "b.py"): 1}
        store.store.start(started.id, attempt=0, allocation="x")
        store.store.request_cancel(canceled.id)
        await view.look()
        assert (view.queued, view.entries) == ({}, {})
        assert [job.id for _served, job, _attempt in view.live] == [started.id]
        store.store.requeue(started.id, attempt=1, reason="again", outcome=Outcome.NODE_LOST)
        await view.look()
        assert [job.attempt for job in view.queued.values()] == [1]
        assert view.live == []

    play(scene, tmp_path)


@pytest.mark.parametrize("call", ["change", "queue_marks", "jobs_of", "job_states", "live"])
def test_unreadable_store_has_no_queue_until_it_is_readable(tmp_path: Path, call: str) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        parent = store.submit()
        child = store.submit(depends_on=(Dependency(job=parent.id),))
        await view.look()
        assert len(view.queued) == 2
        store.submit()
        store.locked.add(call)
        await view.look()
        assert (view.queued, view.live, view.parents) == ({}, [], {})
        store.locked.clear()
        await view.look()
        assert len(view.queued) == 3
        assert view.parents == {parent.id: JobState.QUEUED}
        assert view.served.key(child.id) in view.queued

    play(scene, tmp_path)


def test_interrupted_scan_loses_nothing(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        gone = store.submit()
        await view.look()
        store.store.request_cancel(gone.id)
        new = store.submit()
        reached = asyncio.Event()
        ask = Served.ask

        async def never(served: Served, function: Any, *given: Any, **more: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

        async def stuck(served: Served, function: Any, *given: Any, **more: Any) -> Any:
            if given and isinstance(given[0], list):  # the call that reads jobs
                return await never(served, function)
            return await ask(served, function, *given, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Served, "ask", stuck)
            looking = asyncio.ensure_future(view.look())
            await reached.wait()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        await view.look()
        assert [job.id for job in view.queued.values()] == [new.id]

    play(scene, tmp_path)


def test_newest_checkpoint_of_a_preemptible_job_is_known(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        for preemptible in (True, False):
            job = store.submit(preemptible=preemptible)
            store.store.start(job.id, attempt=0, allocation=job.id)
            name = "outputs/checkpoints/step-000000000001/manifest.json"
            file = StoredFile(name=name, attempt=1, size=1, digest="d", blob="b", stored_at=at)
            assert store.store.publish_files(job.id, attempt=1, files=[file])
        await view.look()
        first = view.live[0][1]
        assert view.saved == {view.served.key(first.id): at.timestamp()}

    play(scene, tmp_path)


def test_preemptions_of_a_live_job_are_counted_and_read_once(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        job = store.submit(preemptible=True, retries=Retries(preempted=1))
        now = datetime.now(UTC)

        async def allowed(number: int, now: datetime) -> bool:
            if store.store.job(job.id).attempt < number:
                started = store.store.start(job.id, attempt=number - 1, allocation=str(number))
                assert started is not None
                for old, new in ((S.PROVISIONING, S.PREPARING), (S.PREPARING, S.RUNNING)):
                    assert store.store.move(job.id, attempt=number, old=old, new=new)
            store.calls.clear()
            await view.look(now)
            ((_served, live, attempt),) = view.live
            return view.allows_preemption(live, attempt)

        def end(number: int, outcome: Outcome, name: FailureClass) -> None:
            failure = Failure(name, "it ended")
            assert store.store.requeue(
                job.id, attempt=number, reason="", outcome=outcome, failure=failure
            )

        assert await allowed(1, now)
        assert store.calls["attempts"] == 0
        end(1, Outcome.NODE_LOST, FailureClass.NODE_LOST)
        assert await allowed(2, now)  # a lost node spends another budget
        assert store.calls["attempts"] == 1
        end(2, Outcome.PREEMPTED, FailureClass.PREEMPTED)
        assert not await allowed(3, now)
        assert store.calls["attempts"] == 1
        store.store.add_event(job.id, "note", "anything")
        assert not await allowed(3, now)
        assert store.calls["attempts"] == 0
        assert await allowed(3, now + timedelta(hours=2))  # its work has renewed the budget
        assert store.calls["attempts"] == 0

    play(scene, tmp_path)


def test_records_are_created_once_and_follow_the_outcome_of_parents(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        parent = store.submit()
        ok = store.submit(depends_on=(Dependency(job=parent.id, when="ok"),))
        any_ = store.submit(depends_on=(Dependency(job=parent.id, when="any"),))
        candidates = Candidates(shares_machine=True)
        candidates.look_at([NODE])
        await view.look()
        records = candidates.records([view], usual={})
        by_key = {one.key: one for one in records}
        key = view.served.key
        assert by_key[key(ok.id)].blocked_rule is Rule.DEPENDENCY
        assert by_key[key(ok.id)].blocked_by == f"waits for {parent.id} (Queued)"
        assert by_key[key(ok.id)].after == (key(parent.id),)
        assert candidates.records([view], usual={}) is records
        without = candidates.records([view], usual={}, without=[key(parent.id)])
        assert key(parent.id) not in {one.key for one in without}
        store.store.request_cancel(parent.id)
        await view.look()
        later = {one.key: one for one in candidates.records([view], usual={})}
        assert later[key(any_.id)].blocked_by is None
        assert set(candidates.doomed) == {key(ok.id)}
        assert "ended as Canceled" in candidates.doomed[key(ok.id)][2]

    play(scene, tmp_path)


def test_a_failed_parent_decides_at_once_whatever_the_order(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        waits, failed = store.submit(), store.submit()
        store.store.request_cancel(failed.id)
        first = store.submit(depends_on=(Dependency(job=waits.id), Dependency(job=failed.id)))
        last = store.submit(depends_on=(Dependency(job=failed.id), Dependency(job=waits.id)))
        anyway = store.submit(
            depends_on=(Dependency(job=waits.id), Dependency(job=failed.id, when="any"))
        )
        candidates = Candidates(shares_machine=True)
        candidates.look_at([NODE])
        await view.look()
        records = {one.key: one for one in candidates.records([view], usual={})}
        key = view.served.key
        assert set(candidates.doomed) == {key(first.id), key(last.id)}
        assert records[key(anyway.id)].blocked_by == f"waits for {waits.id} (Queued)"

    play(scene, tmp_path)


def test_all_parents_that_have_not_ended_are_named(tmp_path: Path) -> None:
    async def scene(store: Counted, view: QueueView) -> None:
        one, ended = store.submit(), store.submit()
        store.store.request_cancel(ended.id)
        spec = JobSpec(script="train.py", array=Array(indices="0-3"))
        array, _ = store.store.submit_array(
            NewJob(spec=spec, experiment="e", snapshot=None, user="u")
        )
        child = store.submit(
            depends_on=(
                Dependency(job=one.id),
                Dependency(job=ended.id, when="any"),
                Dependency(job=array.id, when="any"),
            )
        )
        candidates = Candidates(shares_machine=True)
        candidates.look_at([NODE])
        key = view.served.key(child.id)

        async def blocked_by() -> str | None:
            await view.look()
            records = {one.key: one for one in candidates.records([view], usual={})}
            return records[key].blocked_by

        # No member has had an allocation, so the array is Queued, as in `ls`.
        assert await blocked_by() == f"waits for {one.id} (Queued) and {array.id} (Queued)"
        store.store.hold(child.id, reason="the data is missing")
        waits = f"waits for {one.id} (Queued) and {array.id} (Queued)"
        assert await blocked_by() == f"held: the data is missing; it also {waits}"
        store.store.release(child.id)
        store.store.request_cancel(array.id)
        assert await blocked_by() == f"waits for {one.id} (Queued)"

    play(scene, tmp_path)


@pytest.mark.parametrize("wrong", [timedelta(days=-400), timedelta(days=3)])
def test_the_order_never_depends_on_a_clients_clock(tmp_path: Path, wrong: timedelta) -> None:
    class WrongClock(SystemClock):
        def now(self) -> datetime:
            return super().now() + wrong

    client = SqlStore(tmp_path / "store.db", clock=WrongClock())

    async def scene(store: Counted, view: QueueView) -> None:
        candidates = Candidates(shares_machine=True)
        candidates.look_at([NODE])
        spec = JobSpec(script="train.py", name="t")
        array = JobSpec(script="train.py", name="a", array=Array(indices="0-1"))
        jobs = [store.submit()]

        async def line() -> list[str]:
            now = datetime.now(UTC)
            await view.look(now)
            waiting = candidates.records([view], usual={})
            assert all(abs(one.submitted_s - now.timestamp()) < 60.0 for one in waiting)
            singles = [replace(one, group=None) for one in waiting]
            plan = decide(Situation(waiting=singles, capacities=[], now_s=now.timestamp()))
            return [key.rpartition("::")[2] for key in sorted(plan.by_key, key=_place(plan))]

        assert await line() == [job.id for job in jobs]
        jobs.append(client.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))[0])
        jobs.append(store.submit())
        assert await line() == [job.id for job in jobs]
        made, _ = client.submit_array(NewJob(spec=array, experiment="e", snapshot=None, user="u"))
        jobs += [client.member(made.id, 0), client.member(made.id, 1), store.submit()]
        assert await line() == [job.id for job in jobs]
        for job in jobs:
            waited = datetime.now(UTC) - store.store.job(job.id).submitted_at
            assert abs(waited.total_seconds()) < 60.0
        kinds = [event.kind for event in store.store.events(jobs[1].id)]
        assert ("clock" in kinds) == (wrong > timedelta())  # the store corrects one that is behind

    try:
        play(scene, tmp_path)
    finally:
        client.close()


def test_job_submitted_since_the_last_scan_is_not_older(tmp_path: Path) -> None:
    class WrongClock(SystemClock):
        def now(self) -> datetime:
            return super().now() - timedelta(days=400)

    client = SqlStore(tmp_path / "store.db", clock=WrongClock())

    async def scene(store: Counted, view: QueueView) -> None:
        await view.look(datetime.now(UTC))
        spec = JobSpec(script="train.py", name="t")
        job, _ = client.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))
        await view.look(datetime.now(UTC))
        (seen,) = view.queued.values()
        assert (datetime.now(UTC) - seen.submitted_at).total_seconds() < 60.0
        assert seen.submitted_at == store.store.job(job.id).submitted_at
        (event,) = (one for one in store.store.events(job.id) if one.kind == "clock")
        assert "the clock of its client was" in event.message
        assert "behind" in event.message

    try:
        play(scene, tmp_path)
    finally:
        client.close()


def _place(plan: Decisions) -> Callable[[str], Any]:
    limits = plan.situation.limits
    return lambda key: sort_key(plan.by_key[key], limits)


@given(st.lists(st.tuples(st.sampled_from(list(JobState)), st.sampled_from(["ok", "any"]))))
@pytest.mark.long
def test_the_parents_that_are_named_are_those_that_have_not_ended(
    parents: list[tuple[JobState, Literal["ok", "any"]]],
) -> None:
    states = {f"p{number}": state for number, (state, _when) in enumerate(parents)}
    after = [Dependency(job=f"p{n}", when=when) for n, (_state, when) in enumerate(parents)]
    job = Job(
        id="j",
        serial=1,
        experiment="e",
        spec=JobSpec(script="a.py", depends_on=tuple(after)),
        state=JobState.QUEUED,
        submitted_at=datetime.now(UTC),
        changed_at=datetime.now(UTC),
    )
    reason, is_vain = candidates_module._blocked(job, states)
    failed = [
        one.job
        for one in after
        if one.when == "ok" and states[one.job] in FINAL - {JobState.COMPLETED}
    ]
    assert is_vain == bool(failed)
    if not failed:
        unmet = [one.job for one in after if not states[one.job].is_final]
        assert re.findall(r"p\d+", reason or "") == unmet
    else:
        assert reason is not None
        assert reason.startswith(failed[0])


def test_requeued_job_keeps_its_submission_time(tmp_path: Path) -> None:
    """An actor that found the queue empty has not seen the job wait; the job is not new."""

    async def scene(store: Counted, view: QueueView) -> None:
        job = store.submit()
        assert store.store.start(job.id, attempt=0, allocation="a") is not None
        await view.look(datetime.now(UTC) + timedelta(hours=1))
        assert store.store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.CLUSTER_LOST)
        await view.look(datetime.now(UTC) + timedelta(hours=1))
        (found,) = view.queued.values()
        assert found.submitted_at == job.submitted_at

    play(scene, tmp_path)
