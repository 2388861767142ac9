"""The contract of stores for interactive runs and their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import INTERACTIVE, Job
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import AttemptWriter, ProcessWriter
from rayjobs.store.base import Store
from rayjobs.store.requests import JobChanges, JobFilter, NewRun
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import TurnedClock, bring, point, stored, submit

S = JobState
FAILURE = Failure(FailureClass.USER, "it diverged")


def start(store: Store, **values: Any) -> Job:
    fields: dict[str, Any] = {
        "experiment": "notes",
        "name": "",
        "user": "ada",
        "writer": ProcessWriter.own().to_json(),
        **values,
    }
    return store.start_run(NewRun(**fields))[0]


class InteractiveContract:
    """Each implementation's test class inherits it and provides `store`."""

    def test_interactive_run_is_running_from_the_start_and_hidden_from_targets(
        self, store: Store
    ) -> None:
        run = start(store, name="notes", description="by hand", tags={"k": "v"})
        assert (run.kind, run.state, run.attempt) == (INTERACTIVE, S.RUNNING, 1)
        assert (run.display_name, run.description, run.tags) == ("notes", "by hand", {"k": "v"})
        assert run.started_at is not None
        for target in ("local", run.target):
            assert store.live(target) == []
            assert store.queue_marks(target) == []
        assert store.start(run.id, attempt=1, allocation="a") is None
        with pytest.raises(UsageError, match="an interactive run, which no target starts"):
            store.hold(run.id, reason="later")
        assert store.find("notes").id == run.id
        assert start(store).display_name == "run-1"

    def test_interactive_run_takes_metrics_and_files_until_its_end(self, store: Store) -> None:
        run = start(store)
        assert store.add_metrics(run.id, [point(0, step=1), point(1, step=2)]) == 2
        assert store.publish_files(run.id, attempt=1, files=[stored("a.txt", 1)])
        assert store.end_run(run.id, outcome=Outcome.COMPLETED)
        assert not store.end_run(run.id, outcome=Outcome.FAILED, failure=FAILURE)
        job = store.job(run.id)
        assert (job.state, job.failure) == (S.COMPLETED, None)
        assert job.ended_at is not None
        assert not store.publish_files(run.id, attempt=1, files=[stored("b.txt", 1)])
        assert [one.step for one in store.metrics(run.id)] == [1, 2]
        [attempt] = store.attempts(run.id)
        assert (attempt.outcome, attempt.ended_at is None) == ("completed", False)
        assert store.run_writers() == []

    def test_a_repeated_start_returns_the_first_run(self, store: Store) -> None:
        parent = start(store)
        first = start(store, id="mine", parent=parent.id)
        again, is_new = store.start_run(
            NewRun(
                experiment="notes",
                name="other",
                user="ada",
                writer=ProcessWriter.own().to_json(),
                id="mine",
                parent=parent.id,
            )
        )
        assert (again, is_new) == (first, False)
        with pytest.raises(UsageError, match="a run 'mine' already"):
            start(store, id="mine")
        with pytest.raises(NotFoundError):
            start(store, parent="nobody_1_00000000")

    def test_interactive_run_is_canceled_or_failed_immediately(self, store: Store) -> None:
        run = start(store)
        assert store.request_cancel(run.id, by="ada") is S.CANCELED
        assert store.job(run.id).reason == "canceled by ada"
        other = start(store)
        assert store.request_fail(other.id, failure=FAILURE) is S.FAILED
        assert store.job(other.id).failure == FAILURE

    def test_only_an_interactive_run_is_ended_by_its_writer(self, store: Store) -> None:
        job = submit(store)
        with pytest.raises(UsageError, match="is a job, which its target ends"):
            store.end_run(job.id, outcome=Outcome.COMPLETED)
        assert store.job(job.id).state is S.QUEUED

    @pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED, S.CANCELED])
    def test_runs_of_an_attempt_end_with_the_attempt(self, store: Store, state: S) -> None:
        job = submit(store)
        attempt = bring(store, job, S.FINALIZING)
        writer = AttemptWriter(job=job.id, attempt=attempt).to_json()
        child = start(store, parent=job.id, writer=writer)
        below = start(store, parent=child.id, writer=writer)
        done = start(store, parent=job.id, writer=writer)
        store.end_run(done.id, outcome=Outcome.COMPLETED)
        elsewhere = start(store, parent=job.id)
        assert store.finish(job.id, attempt=attempt, state=state)
        assert [store.job(one.id).state for one in (child, below)] == [state, state]
        assert store.job(done.id).state is S.COMPLETED
        assert store.job(elsewhere.id).state is S.RUNNING  # its process may live on
        if state is S.FAILED:
            assert f"attempt {attempt} of {job.id} ended before" in store.job(child.id).reason
        with pytest.raises(UsageError, match=f"attempt {attempt} of {job.id} has ended"):
            start(store, parent=job.id, writer=writer)

    def test_retry_ends_the_runs_of_the_previous_attempt(self, store: Store) -> None:
        job = submit(store)
        attempt = bring(store, job, S.RUNNING)
        writer = AttemptWriter(job=job.id, attempt=attempt).to_json()
        child = start(store, parent=job.id, writer=writer)
        assert store.requeue(job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST)
        assert store.job(child.id).state is S.FAILED
        with pytest.raises(UsageError, match="has ended"):
            start(store, parent=job.id, writer=writer)

    def test_orphans_end_like_their_parent_or_as_failed(self, store: Store) -> None:
        alone, parent = start(store), start(store)
        child = start(store, parent=parent.id)
        grandchild = start(store, parent=child.id)
        store.end_run(parent.id, outcome=Outcome.COMPLETED)
        runs = [run for run, _writer in store.run_writers()]
        assert runs == [alone.id, child.id, grandchild.id]
        why = dict.fromkeys(runs, "its process ended")
        assert store.end_orphans(runs, reasons=why) == tuple(runs)
        assert store.end_orphans(runs, reasons=why) == ()
        assert [store.job(run).state for run in runs] == [S.FAILED, S.COMPLETED, S.COMPLETED]
        failure = store.job(alone.id).failure
        assert failure is not None and failure.message == "its process ended"

    def test_snapshot_is_set_once(self, store: Store) -> None:
        run = start(store)
        assert store.set_run_snapshot(run.id, "sha256:aa")
        assert not store.set_run_snapshot(run.id, "sha256:bb")
        assert store.job(run.id).snapshot == "sha256:aa"
        assert not store.set_run_snapshot(submit(store).id, "sha256:cc")

    def test_a_description_may_change(self, store: Store) -> None:
        job = submit(store)
        assert store.update(job.id, JobChanges(description="the first")).description == "the first"
        assert store.update(job.id, JobChanges(tags={"a": "b"})).description == "the first"

    def test_a_stated_failure_makes_a_job_failed(self, store: Store) -> None:
        queued, running, fails = submit(store), submit(store), submit(store)
        assert store.request_fail(queued.id, failure=FAILURE) is S.FAILED
        attempt = bring(store, running, S.RUNNING)
        assert store.request_fail(running.id, by="ada", failure=FAILURE) is S.RUNNING
        assert store.job(running.id).cancel_requested_at is not None
        assert store.finish(running.id, attempt=attempt, state=S.CANCELED)
        assert [store.job(one.id).state for one in (queued, running)] == [S.FAILED, S.FAILED]
        assert store.job(running.id).failure == FAILURE
        attempt = bring(store, fails, S.FINALIZING)
        store.add_event(
            fails.id, "script_error", "the script reported an error: x", attempt=attempt
        )
        assert store.finish(fails.id, attempt=attempt, state=S.COMPLETED)
        job = store.job(fails.id)
        assert (job.state, job.reason) == (S.FAILED, "the script reported an error: x")
        assert store.jobs(JobFilter(states=[S.COMPLETED])) == []

    def test_a_stated_failure_wins_over_a_retry(self, store: Store) -> None:
        job = submit(store)
        attempt = bring(store, job, S.RUNNING)
        store.request_fail(job.id, failure=FAILURE)
        assert store.requeue(job.id, attempt=attempt, reason="lost", outcome=Outcome.NODE_LOST)
        assert (store.job(job.id).state, store.job(job.id).failure) == (S.FAILED, FAILURE)


class TestSqlStore(InteractiveContract):
    @pytest.fixture
    def store(self, where: str | Path) -> Iterator[Store]:
        store = SqlStore(where, clock=TurnedClock())
        yield store
        store.close()
