"""Arrays: submitted as one, found by index, ended by their last member, changed together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import JobChanges, JobFilter, NewJob, NewSweep
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import TurnedClock, bring, steps, submit

S = JobState
SPEC = JobSpec(script="train.py", name="shards", array=Array(indices="0-3", limit=2))


@pytest.fixture
def store(where: str | Path) -> Iterator[SqlStore]:
    store = SqlStore(where, clock=TurnedClock(), busy_timeout_s=60)
    yield store
    store.close()


def submit_array(store: SqlStore, spec: JobSpec = SPEC, *, key: str | None = None) -> Job:
    return store.submit_array(
        NewJob(spec=spec, experiment="mnist", snapshot="sha256:1", user="ada", idempotency_key=key)
    )[0]


def test_an_array_has_a_job_for_each_index(store: SqlStore) -> None:
    array = submit_array(store)
    assert (array.kind, array.state, array.array_index) == ("array", S.RUNNING, None)
    members = store.jobs(JobFilter(parent=array.id, newest_first=False))
    assert [member.array_index for member in members] == [0, 1, 2, 3]
    for member in members:
        assert (member.kind, member.state, member.parent) == ("job", S.QUEUED, array.id)
        assert (member.spec, member.snapshot, member.user) == (SPEC, "sha256:1", "ada")
        assert member.group_limit == 2
        assert steps(store, member) == [(None, "Queued")]
    assert len({member.id for member in members}) == 4
    assert store.member_counts([array.id]) == {array.id: {S.QUEUED: 4}}
    assert [one.id for one in store.job_lines(JobFilter(members=False))] == [array.id]
    assert len(store.job_lines()) == 5


def test_a_repeated_key_gives_the_first_array(store: SqlStore) -> None:
    first = submit_array(store, key="k")
    again, is_new = store.submit_array(
        NewJob(spec=SPEC, experiment="mnist", snapshot="sha256:1", user="ada", idempotency_key="k")
    )
    assert (again, is_new) == (first, False)
    assert len(store.jobs(JobFilter(parent=first.id))) == 4
    other = SPEC.model_copy(update={"array": Array(indices="0-4")})
    with pytest.raises(UsageError, match="another spec"):
        submit_array(store, other, key="k")


def test_a_repeated_key_gives_the_first_array_also_after_a_revision(store: SqlStore) -> None:
    first = submit_array(store, key="k")
    changed = SPEC.model_copy(update={"priority": SPEC.priority + 1})
    assert store.revise(first, changed) is not None
    again, is_new = store.submit_array(
        NewJob(spec=SPEC, experiment="mnist", snapshot="sha256:1", user="ada", idempotency_key="k")
    )
    assert (again.id, is_new) == (first.id, False)


def test_a_submit_that_is_cut_short_leaves_nothing(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object, **_values: object) -> None:
        raise sqlite3.OperationalError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(SqlStore, "_state_event", broken)
        with pytest.raises(Exception, match="killed here"):
            submit_array(store, key="k")
    assert store.counts() == {}
    assert len(store.jobs(JobFilter(parent=submit_array(store, key="k").id))) == 4


def test_members_are_found_by_their_index(store: SqlStore) -> None:
    array = submit_array(store)
    tail = array.id.rpartition("_")[2]
    for text in (f"{array.id}[2]", f"{tail}[2]", f"{tail[:4]}[2]", "shards[2]"):
        found = store.find(text)
        assert (found.parent, found.array_index) == (array.id, 2), text
    assert store.find("shards").id == array.id
    with pytest.raises(NotFoundError, match=r"no member \[7\]"):
        store.find("shards[7]")
    single = submit(store)
    with pytest.raises(NotFoundError, match="not an array"):
        store.find(f"{single.id}[0]")


@pytest.mark.parametrize("newest", [False, True])
def test_rerun_member_leaves_the_array_name_unchanged(store: SqlStore, newest: bool) -> None:
    array = submit_array(store)
    alone = SPEC.model_copy(update={"array": Array(indices="1", count=4)})
    again, _ = store.submit_array(
        NewJob(spec=alone, experiment="mnist", snapshot="sha256:1", user="ada", numbered=True)
    )
    assert again.display_name == "shards-1"
    assert store.find("shards[1]", newest=newest).parent == array.id
    assert store.find("shards-1[1]", newest=newest).parent == again.id


def test_member_index_selects_between_arrays_of_one_name(store: SqlStore) -> None:
    first = submit_array(store)
    submit_array(store, SPEC.model_copy(update={"array": Array(indices="0-1")}))
    assert store.find("shards[3]").parent == first.id
    with pytest.raises(UsageError, match="names 2 jobs"):
        store.find("shards[1]")


def test_job_and_sweep_refuse_an_array_spec(store: SqlStore) -> None:
    with pytest.raises(UsageError, match="array"):
        submit(store, SPEC)
    with pytest.raises(UsageError, match="array"):
        store.put_sweep(
            NewSweep(
                base=SPEC, definition={}, driver="a:b", experiment="e", snapshot=None, user="ada"
            )
        )
    with pytest.raises(UsageError, match="no `array`"):
        submit_array(store, JobSpec(script="a.py"))


def test_an_array_begins_with_its_first_member(store: SqlStore) -> None:
    array = submit_array(store)
    assert (array.placed_at, array.started_at) == (None, None)
    bring(store, store.member(array.id, 1), S.RUNNING)
    first = store.job(array.id)
    assert first.placed_at == store.member(array.id, 1).placed_at
    assert first.started_at == store.member(array.id, 1).started_at
    bring(store, store.member(array.id, 0), S.RUNNING)
    assert store.job(array.id).started_at == first.started_at


def test_an_array_completes_with_its_last_member(store: SqlStore) -> None:
    array = submit_array(store)
    for index in range(4):
        assert not store.job(array.id).state.is_final
        bring(store, store.member(array.id, index), S.COMPLETED)
    ended = store.job(array.id)
    assert (ended.state, ended.reason, ended.failure) == (S.COMPLETED, "4 Completed", None)
    assert ended.ended_at is not None
    assert steps(store, ended) == [
        (None, "Running"),
        ("Running", "Finalizing"),
        ("Finalizing", "Completed"),
    ]


def fail(store: SqlStore, member: Job, failure: Failure) -> None:
    attempt = bring(store, member, S.RUNNING)
    assert store.finish(member.id, attempt=attempt, state=S.FAILED, failure=failure)


def test_a_member_that_failed_fails_the_array_once_all_have_ended(store: SqlStore) -> None:
    array = submit_array(store)
    late = Failure(FailureClass.TIME_LIMIT, "reached its limit")
    broken = Failure(FailureClass.USER, "rank 0 exited with code 3", rank=0, exit_code=3)
    fail(store, store.member(array.id, 0), late)
    fail(store, store.member(array.id, 2), broken)
    bring(store, store.member(array.id, 1), S.COMPLETED)
    assert store.job(array.id).state is S.RUNNING
    store.request_cancel(store.member(array.id, 3).id)
    ended = store.job(array.id)
    assert ended.state is S.FAILED
    assert ended.failure is not None
    assert ended.failure.failure_class is FailureClass.USER
    assert ended.failure.message == "2 of 4 members failed, [2] first: rank 0 exited with code 3"
    assert ended.reason == "1 Canceled, 1 Completed, 2 Failed"


def test_array_fails_by_time_limit_only_if_all_failures_are_time_limits(store: SqlStore) -> None:
    array = submit_array(store, SPEC.model_copy(update={"array": Array(indices="5")}))
    fail(store, store.member(array.id, 5), Failure(FailureClass.TIME_LIMIT, "reached its limit"))
    ended = store.job(array.id)
    assert ended.failure is not None
    assert ended.failure.failure_class is FailureClass.TIME_LIMIT


def test_cancel_reaches_every_member(store: SqlStore) -> None:
    array = submit_array(store)
    done = store.member(array.id, 0)
    bring(store, done, S.COMPLETED)
    running = store.member(array.id, 1)
    attempt = bring(store, running, S.RUNNING)
    assert store.request_cancel(array.id, by="ada") is S.RUNNING
    assert store.job(running.id).cancel_requested_at is not None
    assert store.member_counts([array.id])[array.id] == {
        S.COMPLETED: 1,
        S.RUNNING: 1,
        S.CANCELED: 2,
    }
    assert store.finish(running.id, attempt=attempt, state=S.CANCELED)
    assert store.job(array.id).state is S.CANCELED
    assert store.request_cancel(array.id) is S.CANCELED


def test_cancel_ends_a_waiting_array(store: SqlStore) -> None:
    array = submit_array(store)
    assert store.request_cancel(array.id) is S.CANCELED
    assert store.counts() == {S.CANCELED: 5}


def test_member_canceled_instead_of_requeued_ends_the_array(store: SqlStore) -> None:
    array = submit_array(store, SPEC.model_copy(update={"array": Array(indices="0")}))
    member = store.member(array.id, 0)
    attempt = bring(store, member, S.RUNNING)
    store.request_cancel(member.id)
    assert store.requeue(member.id, attempt=attempt, reason="node lost", outcome=Outcome.NODE_LOST)
    assert store.job(array.id).state is S.CANCELED


def test_array_priority_applies_to_all_members(store: SqlStore) -> None:
    array = submit_array(store)
    bring(store, store.member(array.id, 0), S.COMPLETED)
    assert store.update(array.id, JobChanges(priority=7)).priority == 7
    assert [job.priority for job in store.jobs(JobFilter(parent=array.id, newest_first=False))] == [
        0,
        7,
        7,
        7,
    ]
    single = store.member(array.id, 3)
    assert store.update(single.id, JobChanges(priority=9)).priority == 9
    assert store.member(array.id, 2).priority == 7


def test_a_held_job_is_not_started_until_it_is_released(store: SqlStore) -> None:
    job = submit(store)
    assert store.hold(job.id, reason="three hosts died of it").held == "three hosts died of it"
    assert store.start(job.id, attempt=0, allocation="rj-local-1") is None
    assert store.job(job.id).state is S.QUEUED
    assert store.release(job.id).held is None
    assert store.release(job.id).held is None
    assert store.start(job.id, attempt=0, allocation="rj-local-1") is not None
    kinds = ("hold", "release")
    events = [(one.kind, one.message) for one in store.events(job.id) if one.kind in kinds]
    assert events == [("hold", "held: three hosts died of it"), ("release", "released")]


def test_job_is_requeued_and_held_in_one_call(store: SqlStore) -> None:
    job = submit(store)
    attempt = bring(store, job, S.RUNNING)
    assert store.requeue(
        job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST, hold="poison"
    )
    assert (store.job(job.id).state, store.job(job.id).held) == (S.QUEUED, "poison")


def test_a_hold_of_an_array_holds_its_members(store: SqlStore) -> None:
    array = submit_array(store)
    bring(store, store.member(array.id, 0), S.COMPLETED)
    store.hold(array.id, reason="wait for me")
    held = [job.held for job in store.jobs(JobFilter(parent=array.id, newest_first=False))]
    assert held == [None, "wait for me", "wait for me", "wait for me"]
    store.release(array.id)
    assert {job.held for job in store.jobs()} == {None}


def test_ended_job_is_not_held(store: SqlStore) -> None:
    job = submit(store)
    store.request_cancel(job.id)
    with pytest.raises(UsageError, match="Canceled"):
        store.hold(job.id, reason="late")
    with pytest.raises(UsageError, match="for a reason"):
        store.hold(job.id, reason="")


@pytest.mark.long
def test_array_of_many_members_is_one_submit(
    store: SqlStore, request: pytest.FixtureRequest
) -> None:
    # A cancel in PostgreSQL takes a round trip for each member.
    count = 2_000 if "postgres" in request.node.name else 10_000
    spec = SPEC.model_copy(update={"array": Array(indices=f"0-{count - 1}")})
    array = submit_array(store, spec)
    assert store.member_counts([array.id]) == {array.id: {S.QUEUED: count}}
    assert store.find(f"{array.id}[{count - 1}]").array_index == count - 1
    assert store.request_cancel(array.id) is S.CANCELED


def test_line_describes_the_job(store: SqlStore) -> None:
    spec = JobSpec(script="a.py", name="n", display_name="N", tags={"a": "b"}, priority=3)
    job, _ = store.submit(
        NewJob(
            spec=spec,
            experiment="e",
            snapshot="sha256:1",
            user="ada",
            parent="p",
            properties={"c": "d"},
        )
    )
    attempt = bring(store, job, S.RUNNING)
    broken = Failure(FailureClass.USER, "boom", lines=("x",))
    store.hold(job.id, reason="why")
    store.request_cancel(job.id)
    assert store.finish(job.id, attempt=attempt, state=S.FAILED, reason="r", failure=broken)
    (line,) = store.job_lines()
    whole = store.job(job.id)
    for name in line._fields:
        assert getattr(line, name) == getattr(whole, name), name
