"""The history that the queue uses and is measured by: durations, predictions, waits, usage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.queue_records import Prediction
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Array, Dependency, JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import SHAPE, bring, submit

S = JobState
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


class SetClock:
    """A clock that shows the time that a test sets."""

    def __init__(self) -> None:
        self.at = AT

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()

    def go(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(where: str | Path, clock: SetClock) -> Iterator[SqlStore]:
    store = SqlStore(where, clock=clock, busy_timeout_s=60)
    yield store
    store.close()


def ran(
    store: SqlStore,
    clock: SetClock,
    seconds: float,
    state: JobState = S.COMPLETED,
    experiment: str = "mnist",
) -> None:
    """Submit a job of train.py with this run time and outcome."""
    job = submit(store, experiment=experiment)
    attempt = bring(store, job, S.RUNNING)
    clock.go(seconds)
    if state is S.COMPLETED:
        assert store.move(job.id, attempt=attempt, old=S.RUNNING, new=S.FINALIZING)
    assert store.finish(job.id, attempt=attempt, state=state)


def test_durations_are_those_of_the_same_entry_that_completed(
    store: SqlStore, clock: SetClock
) -> None:
    for seconds in (10, 20, 30, 40, 1000):
        ran(store, clock, seconds)
    ran(store, clock, 1, S.FAILED)
    submit(store, JobSpec(script="other.py"))
    known = store.durations([("mnist", "train.py"), ("mnist", "other.py"), ("x", "train.py")])
    assert set(known) == {("mnist", "train.py")}
    found = known["mnist", "train.py"]
    assert (found.count, found.median_s, found.p90_s) == (5, 30.0, 1000.0)
    assert found.longest_s == 1000.0


def test_durations_come_from_the_newest(store: SqlStore, clock: SetClock) -> None:
    for seconds in (1000, 1000, 1000, 5, 7):
        ran(store, clock, seconds)
    found = store.durations([("mnist", "train.py")], most=2)["mnist", "train.py"]
    assert (found.count, found.median_s) == (2, 6.0)


def test_duration_of_a_resumed_job_counts_all_attempts(store: SqlStore, clock: SetClock) -> None:
    job = submit(store)
    # Discarded: the second started over. The fourth was lost before its script ran.
    for number, seconds, resumed, until in (
        (1, 500, False, S.RUNNING),
        (2, 13, False, S.RUNNING),
        (3, 9, True, S.RUNNING),
        (4, 4000, True, S.PREPARING),
    ):
        assert bring(store, store.job(job.id), until) == number
        if resumed:
            store.add_event(job.id, "resumed", "goes on", attempt=number)
        clock.go(seconds)
        assert store.requeue(job.id, attempt=number, reason="lost", outcome=Outcome.CLUSTER_LOST)
        clock.go(100)
    assert bring(store, store.job(job.id), S.RUNNING) == 5
    store.add_event(job.id, "resumed", "goes on", attempt=5)
    clock.go(2)
    assert store.move(job.id, attempt=5, old=S.RUNNING, new=S.FINALIZING)
    assert store.finish(job.id, attempt=5, state=S.COMPLETED)
    found = store.durations([("mnist", "train.py")])["mnist", "train.py"]
    assert (found.count, found.median_s) == (1, 13.0 + 9.0 + 2.0)
    assert store.earlier_runs([job.id]) == {job.id: 500.0 + 13.0 + 9.0}


def test_run_time_of_earlier_attempts_is_reported_while_the_job_waits(
    store: SqlStore, clock: SetClock
) -> None:
    job, other = submit(store), submit(store)
    attempt = bring(store, job, S.RUNNING)
    bring(store, other, S.RUNNING)
    clock.go(20)
    assert store.earlier_runs([job.id, other.id, "nobody"]) == {}
    assert store.requeue(job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST)
    assert store.earlier_runs([job.id, other.id]) == {job.id: 20.0}
    bring(store, job, S.PREPARING)
    assert store.earlier_runs([job.id]) == {job.id: 20.0}
    assert store.move(job.id, attempt=2, old=S.PREPARING, new=S.RUNNING)
    clock.go(5)
    assert store.earlier_runs([job.id]) == {job.id: 20.0}  # without the current attempt
    assert store.finish(job.id, attempt=2, state=S.CANCELED)
    assert store.earlier_runs([job.id]) == {job.id: 20.0}


def test_members_of_arrays_count_for_durations(store: SqlStore, clock: SetClock) -> None:
    spec = JobSpec(script="train.py", array=Array(indices="0-1"))
    array, _ = store.submit_array(NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada"))
    bring(store, store.member(array.id, 0), S.RUNNING)
    clock.go(12)
    assert store.move(store.member(array.id, 0).id, attempt=1, old=S.RUNNING, new=S.FINALIZING)
    assert store.finish(store.member(array.id, 0).id, attempt=1, state=S.COMPLETED)
    assert store.usual_durations("local")["mnist", "train.py"].median_s == 12.0


def test_usual_durations_cover_unfinished_jobs_of_a_target(
    store: SqlStore, clock: SetClock
) -> None:
    ran(store, clock, 10)
    assert store.usual_durations("local") == {}
    submit(store)
    assert store.usual_durations("cluster") == {}
    assert store.usual_durations("local")["mnist", "train.py"].count == 1


def test_new_experiment_uses_durations_of_the_same_script(store: SqlStore, clock: SetClock) -> None:
    for seconds in (10, 30):
        ran(store, clock, seconds)
    store.submit(
        NewJob(spec=JobSpec(script="train.py"), experiment="new", snapshot=None, user="ada")
    )
    store.submit(
        NewJob(spec=JobSpec(script="other.py"), experiment="new", snapshot=None, user="ada")
    )
    known = store.usual_durations("local")
    assert set(known) == {("new", "train.py")}
    found = known["new", "train.py"]
    assert (found.count, found.median_s, found.is_of_any) == (2, 20.0, True)
    ran(store, clock, 50, experiment="new")
    found = store.usual_durations("local")["new", "train.py"]
    assert (found.count, found.median_s, found.is_of_any) == (1, 50.0, False)


@pytest.mark.parametrize("where", ["file"], indirect=True)
def test_durations_of_any_experiment_read_the_index_alone(store: SqlStore) -> None:
    from rayjobs.store.queue import DURATIONS_OF_ANY

    with store._database.read() as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {DURATIONS_OF_ANY}", {"entry": "a", "most": 1}
        ).fetchall()
    plan_text = " ".join(row["detail"] for row in plan)
    assert "COVERING INDEX ix_jobs_history" in plan_text
    assert "SCAN jobs USING INDEX" not in plan_text


@pytest.mark.parametrize("where", ["file"], indirect=True)
def test_durations_read_no_other_jobs(store: SqlStore) -> None:
    from rayjobs.store.queue import DURATIONS

    with store._database.read() as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {DURATIONS}", {"experiment": "e", "entry": "a", "most": 1}
        ).fetchall()
    plan_text = " ".join(row["detail"] for row in plan)
    assert "ix_jobs_history (experiment=? AND entry=? AND state=?)" in plan_text
    assert "TEMP B-TREE" not in plan_text


def test_first_and_last_predictions_before_the_start_are_kept(
    store: SqlStore, clock: SetClock
) -> None:
    job = submit(store)
    for wait_s, basis in ((60, "caps"), (90, "history"), (30, "history")):
        starts_at = clock.at + timedelta(seconds=wait_s)
        store.note_predictions([Prediction(job=job.id, starts_at=starts_at, basis=basis)])
        clock.go(10)
    attempt = bring(store, job, S.RUNNING)
    assert store.requeue(job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST)
    store.note_predictions([Prediction(job=job.id, starts_at=AT, basis="too late")])
    (row,) = store.queue_history()
    assert row.placed_at == AT + timedelta(seconds=30)
    first, last = row.predicted_first, row.predicted_last
    assert first is not None
    assert last is not None
    assert (first.starts_at, first.basis, first.made_at) == (AT + timedelta(seconds=60), "caps", AT)
    assert last.starts_at == AT + timedelta(seconds=20 + 30)


def test_first_allocation_time_stays_after_a_retry(store: SqlStore, clock: SetClock) -> None:
    job = submit(store)
    attempt = bring(store, job, S.RUNNING)
    assert store.requeue(job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST)
    clock.go(100)
    bring(store, job, S.RUNNING)
    assert store.job(job.id).placed_at == AT


def test_predictions_of_unknown_jobs_are_ignored(store: SqlStore) -> None:
    store.note_predictions([Prediction(job="gone", starts_at=AT, basis="caps")])
    assert store.queue_history() == []


def test_queue_history_is_filtered_by_time_and_target(store: SqlStore, clock: SetClock) -> None:
    submit(store)
    clock.go(3600)
    later = submit(store, JobSpec(script="train.py", target="cluster"), user="bob")
    assert [row.job for row in store.queue_history(target="cluster")] == [later.id]
    assert [row.user for row in store.queue_history(since=AT + timedelta(seconds=1))] == ["bob"]
    assert len(store.queue_history()) == 2


def test_oldest_waiting_job_is_found_for_each_target(store: SqlStore, clock: SetClock) -> None:
    def waits() -> dict[str, datetime]:
        return dict(store.waits(since=AT, now=clock.at, most=10).since)

    def queued(target: str, **values: Any) -> Job:
        return submit(store, JobSpec(command="true", target=target, **values))

    held = queued("held")
    store.hold(held.id, reason="for a test")
    clock.go(10)
    for _ in range(120):
        first = queued("local")
    clock.go(10)
    queued("other")
    queued("steps", depends_on=(Dependency(job=first.id),))
    assert waits() == {
        "local": AT + timedelta(seconds=10),
        "other": AT + timedelta(seconds=20),
    }
    attempt = bring(store, first, S.FINALIZING)
    assert store.finish(first.id, attempt=attempt, state=S.COMPLETED)
    assert waits()["steps"] == AT + timedelta(seconds=20)


def test_waits_are_of_the_newest_jobs(store: SqlStore, clock: SetClock) -> None:
    for wait_s in (1, 2, 3):
        job = submit(store)
        clock.go(wait_s)
        bring(store, job, S.RUNNING)
    found = store.waits(since=AT, now=clock.at, most=2).placed
    assert sorted(found) == [("local", 2.0), ("local", 3.0)]
    assert store.waits(since=AT + timedelta(seconds=2), now=clock.at, most=9).placed == [
        ("local", 3.0)
    ]


def test_usage_is_the_resources_of_attempts(store: SqlStore, clock: SetClock) -> None:
    store.add_allocation("rj-local-1", target="local", shape={**SHAPE, "gpus": 2.0})
    job = submit(store)
    attempt = bring(store, job, S.RUNNING)
    clock.go(50)
    (use,) = store.usage()
    assert (use.job, use.since, use.until, use.shape["gpus"]) == (job.id, AT, None, 2.0)
    assert store.finish(job.id, attempt=attempt, state=S.FAILED)
    (use,) = store.usage(target="local")
    assert use.until == AT + timedelta(seconds=50)
    assert store.usage(since=AT + timedelta(seconds=51)) == []
    assert store.usage(target="cluster") == []


def test_pruning_records_removes_their_predictions(store: SqlStore) -> None:
    job = submit(store)
    store.note_predictions([Prediction(job=job.id, starts_at=AT, basis="caps")])
    store.request_cancel(job.id)
    assert store.prune_records([job.id]) == {job.id}
    with store._database.read() as connection:
        assert connection.execute("SELECT COUNT(*) FROM predictions").fetchone()[0] == 0


def test_records_are_not_pruned_while_processes_may_use_the_allocation(store: SqlStore) -> None:
    store.add_allocation("rj-local-1", target="local", shape=SHAPE)
    parent = submit(store)
    job = submit(store)
    attempt = bring(store, job, S.RUNNING)
    with store._database.write() as connection:
        connection.execute("UPDATE jobs SET parent = ? WHERE id = ?", (parent.id, job.id))
    store.request_cancel(parent.id)
    assert store.place_allocation("rj-local-1", nodes=["node0"], gpus=[[]])
    assert store.hold_allocation("rj-local-1", job=job.id, attempt=attempt)
    assert store.finish(job.id, attempt=attempt, state=S.FAILED)
    assert store.free_allocation("rj-local-1", job=job.id, attempt=attempt, proven=False)
    assert store.prune_records([parent.id, job.id]) == frozenset()
    assert store.release_allocation("rj-local-1")
    assert store.prune_records([parent.id, job.id]) == {parent.id, job.id}
