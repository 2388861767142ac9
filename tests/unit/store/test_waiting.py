"""What a target reads from the queue: marks that show changes, and a token that detects them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.store.sql import SqlStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SqlStore:
    return SqlStore(":memory:" if request.param == "memory" else tmp_path / "store.db")


def submit(store: SqlStore, **more: str) -> str:
    spec = JobSpec.model_validate({"script": "train.py", "name": "t"} | more)
    return store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="u"))[0].id


CHANGES: dict[str, Callable[[SqlStore, str], object]] = {
    "submit": lambda store, job: submit(store),
    "priority": lambda store, job: store.update(job, JobChanges(priority=3)),
    "hold": lambda store, job: store.hold(job, reason="later"),
    "cancel": lambda store, job: store.request_cancel(job),
    "start": lambda store, job: store.start(job, attempt=0, allocation="a"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_of_the_queue_is_reported(store: SqlStore, what: str) -> None:
    job = submit(store)
    before, marks = store.change(), store.queue_marks("local")
    store.job(job)
    assert store.change() == before  # reading is not a change
    CHANGES[what](store, job)
    assert store.change() != before
    assert set(store.queue_marks("local")) != set(marks)
    store.close()


def test_a_change_of_another_process_is_reported(tmp_path: Path) -> None:
    store, other = SqlStore(tmp_path / "store.db"), SqlStore(tmp_path / "store.db")
    before = store.change()
    job = submit(other)
    seen = store.change()
    assert seen != before
    other.update(job, JobChanges(priority=1))
    assert store.change() != seen
    store.close()
    other.close()


def test_requeued_job_has_a_new_mark(store: SqlStore) -> None:
    job = submit(store)
    (before,) = store.queue_marks("local")
    store.start(job, attempt=0, allocation="a")
    assert store.queue_marks("local") == []
    assert store.requeue(job, attempt=1, reason="again", outcome=Outcome.NODE_LOST)
    (after,) = store.queue_marks("local")
    assert after[0] == before[0]
    assert after != before
    assert [one.attempt for one in store.jobs_of([after[0]])] == [1]
    store.close()


def test_other_targets_and_parents_have_no_marks(store: SqlStore) -> None:
    submit(store, target="elsewhere")
    assert store.queue_marks("local") == []
    assert store.jobs_of([77]) == []
    store.close()


def test_states_of_existing_jobs(store: SqlStore) -> None:
    job = submit(store)
    assert store.job_states([job, "gone"]) == {job: JobState.QUEUED}
    store.close()


def test_only_a_stored_manifest_is_a_checkpoint(store: SqlStore) -> None:
    job, other = submit(store), submit(store)

    def publish(job_id: str, name: str) -> None:
        file = StoredFile(name=name, attempt=1, size=1, digest="d", blob="b", stored_at=NOW)
        assert store.publish_files(job_id, attempt=1, files=[file])

    for one in (job, other):
        store.start(one, attempt=0, allocation=f"a-{one}")
        publish(one, "outputs/checkpoints/step-000000000007/weights.pt")
        publish(one, "outputs/manifest.json")
    assert store.checkpoint_times([job, other]) == {}
    publish(job, "outputs/checkpoints/step-000000000007/manifest.json")
    assert store.checkpoint_times([job, other]) == {job: NOW}
    publish(other, "node-1/outputs/checkpoints/step-000000000007/manifest.json")
    assert store.checkpoint_times([other]) == {other: NOW}
    store.close()


def test_a_job_with_recorded_hosts_is_not_requeued_as_one_without(store: SqlStore) -> None:
    job = submit(store)
    store.start(job, attempt=0, allocation="a")
    assert store.set_hosts(job, attempt=1, hosts=[HostRecord()])
    more = {"attempt": 1, "reason": "r", "outcome": "put_back"}
    assert not store.requeue(job, **more, if_without_hosts=True)  # type: ignore[arg-type]
    assert store.job(job).state is JobState.PROVISIONING
    assert store.requeue(job, **more)  # type: ignore[arg-type]
    assert not store.set_hosts(job, attempt=1, hosts=[HostRecord()])
    store.close()


@pytest.mark.long
def test_fork_and_its_parent_can_both_query(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    before = store.change()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        first = store.change()
        submit(store)
        answers.put((first, store.change()))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    process.join(60)
    first, second = answers.get()
    assert first != second
    assert store.change() != before
    assert len(store.queue_marks("local")) == 1
    store.close()
