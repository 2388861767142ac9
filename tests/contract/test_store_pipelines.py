"""The contract of stores for pipeline runs and their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.records import Pipeline, ScheduleRecord
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.spec.model import Dependency, JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import JobFilter, NewJob, NewPipeline, NewRun, NewStep
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import bring, submit

DRIVER = "somewhere:start"


def step(number: int, name: str, *after: str, **values: Any) -> NewStep:
    spec = JobSpec(
        name=name,
        script=f"{name}.py",
        depends_on=tuple(Dependency(job=f"j-{one}") for one in after),
    )
    fields = {"job": f"j-{name}", "spec": spec, "after": after, "reuse_key": f"key of {name}"}
    return NewStep(number=number, name=name, **{**fields, **values})


def put(store: Store, *steps: NewStep, **values: Any) -> Pipeline:
    fields: dict[str, Any] = {
        "name": "digits",
        "base": JobSpec(name="digits", command="pipeline"),
        "definition": {"name": "digits"},
        "parameters": {"epochs": 3},
        "experiment": "mnist",
        "user": "ada",
    }
    return store.put_pipeline(NewPipeline(steps=steps, **{**fields, **values}))[0]


def chain(store: Store, **values: Any) -> Pipeline:
    """Submit a → b → c, and d, which needs nothing."""
    steps = step(0, "a"), step(1, "b", "a"), step(2, "c", "b"), step(3, "d")
    return put(store, *steps, **values)


def end(store: Store, job: str, state: JobState, **values: Any) -> None:
    attempt = store.start(job, attempt=0, allocation="x")
    assert attempt is not None
    moves = [JobState.PROVISIONING, JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING]
    for old, new in pairwise(moves):
        assert store.move(job, attempt=1, old=old, new=new)
    assert store.finish(job, attempt=1, state=state, **values)


def states(store: Store, pipeline: Pipeline) -> dict[str, str]:
    rows = store.steps(pipeline.job.id)
    return {row.name: str(store.job(row.job).state) for row in rows}


class PipelineContract:
    """Each implementation's test class inherits it and provides `store`."""

    def test_run_and_all_steps_are_created_together(self, store: Store) -> None:
        run = chain(store, tags={"why": "test"})
        assert (run.job.kind, run.job.state, run.job.attempt) == ("pipeline", JobState.RUNNING, 0)
        assert (run.spec, run.parameters) == ({"name": "digits"}, {"epochs": 3})
        assert store.pipeline(run.job.id) == run == store.pipelines()[0]
        assert [row.name for row in store.steps(run.job.id)] == ["a", "b", "c", "d"]
        assert store.steps(run.job.id)[2].after == ("b",)
        assert set(states(store, run).values()) == {"Queued"}
        assert {job.parent for job in store.jobs(JobFilter(states=[JobState.QUEUED]))} == {
            run.job.id
        }
        assert store.start(run.job.id, attempt=0, allocation="x") is None
        assert store.step_of("j-b").name == "b"  # type: ignore[union-attr]
        assert store.step_of(run.job.id) is None

    def test_a_run_ends_with_its_last_step(self, store: Store) -> None:
        run = chain(store)
        assert store.job_states([run.job.id]) == {run.job.id: JobState.QUEUED}
        for name in "abd":
            end(store, f"j-{name}", JobState.COMPLETED)
            assert not store.job(run.job.id).state.is_final
        assert store.job_states([run.job.id]) == {run.job.id: JobState.RUNNING}
        end(store, "j-c", JobState.COMPLETED)
        ended = store.job(run.job.id)
        assert (ended.state, ended.reason) == (JobState.COMPLETED, "4 Completed")
        assert ended.placed_at is not None and ended.started_at is not None

    def test_a_failure_cancels_all_others_and_names_the_step(self, store: Store) -> None:
        run = chain(store)
        attempt = store.start("j-d", attempt=0, allocation="x")
        assert attempt is not None
        failure = Failure(FailureClass.USER, "rank 0 exited with 3", exit_code=3)
        end(store, "j-a", JobState.FAILED, failure=failure)
        assert states(store, run) == {
            "a": "Failed",
            "b": "Canceled",
            "c": "Canceled",
            "d": "Provisioning",
        }
        assert store.job("j-d").cancel_requested_at is not None
        assert "step 'a' is Failed" in store.job("j-b").reason
        assert not store.job(run.job.id).state.is_final
        assert store.finish("j-d", attempt=1, state=JobState.CANCELED)
        ended = store.job(run.job.id)
        assert ended.state is JobState.FAILED and ended.failure is not None
        assert ended.failure.message == "step 'a' failed: rank 0 exited with 3"
        assert ended.failure.exit_code == 3

    def test_other_steps_continue_if_requested(self, store: Store) -> None:
        run = chain(store, continues=True)
        end(store, "j-a", JobState.FAILED)
        assert states(store, run) == {
            "a": "Failed",
            "b": "Canceled",
            "c": "Canceled",
            "d": "Queued",
        }
        end(store, "j-d", JobState.COMPLETED)
        assert store.job(run.job.id).state is JobState.FAILED

    def test_canceled_run_starts_no_step(self, store: Store) -> None:
        run = chain(store)
        assert store.start("j-a", attempt=0, allocation="x") is not None
        assert store.request_cancel(run.job.id, by="ada") is JobState.RUNNING
        assert states(store, run)["d"] == "Canceled"
        assert store.finish("j-a", attempt=1, state=JobState.CANCELED)
        ended = store.job(run.job.id)
        assert ended.state is JobState.CANCELED
        assert ended.reason.startswith("canceled by ada; 4 Canceled")

    def test_a_waiting_run_is_canceled_at_once(self, store: Store) -> None:
        run = chain(store)
        assert store.request_cancel(run.job.id, by="ada") is JobState.CANCELED
        assert set(states(store, run).values()) == {"Canceled"}

    def test_retried_step_has_not_ended(self, store: Store) -> None:
        run = chain(store)
        assert store.start("j-a", attempt=0, allocation="x") is not None
        assert store.requeue("j-a", attempt=1, reason="lost", outcome="node lost")  # type: ignore[arg-type]
        assert states(store, run)["b"] == "Queued"

    def test_a_reused_step_is_complete_from_the_start(self, store: Store) -> None:
        first = chain(store)
        for name in "abcd":
            end(store, f"j-{name}", JobState.COMPLETED)
        again = put(
            store,
            step(0, "a", job="k-a", original="j-a"),
            step(1, "b", job="k-b", spec=JobSpec(script="b.py", depends_on=[{"job": "k-a"}])),
        )
        assert states(store, again) == {"a": "Completed", "b": "Queued"}
        assert store.job("k-a").reason == "reused from j-a"
        assert store.attempts("k-a") == []
        # A reused step is never itself an original.
        assert [row.job for row in store.reusable_steps("key of a")] == ["j-a"]
        assert store.earlier_step("digits", "a").job == "j-a"  # type: ignore[union-attr]
        assert store.earlier_step("digits", "a", before="j-a") is None
        assert store.job(first.job.id).state is JobState.COMPLETED

    def test_run_of_reused_steps_is_already_complete(self, store: Store) -> None:
        chain(store)
        end(store, "j-a", JobState.COMPLETED)
        run = put(store, step(0, "a", job="k-a", original="j-a"))
        assert run.job.state is JobState.COMPLETED

    def test_pruned_original_makes_the_run_fail_at_submit(self, store: Store) -> None:
        with pytest.raises(UsageError, match="pruned"):
            put(store, step(0, "a", job="k-a", original="j-gone"))
        assert store.jobs() == []

    def test_a_sweep_waits_for_the_steps_before_it(self, store: Store) -> None:
        sweep = step(1, "search", "a", driver=DRIVER, sweep={"metric": "loss"})
        run = put(store, step(0, "a"), sweep, step(2, "last", "search"))
        assert states(store, run)["search"] == "Queued"
        assert store.sweeps_to_drive("local") == []
        end(store, "j-a", JobState.COMPLETED)
        assert states(store, run)["search"] == "Running"
        assert store.sweeps_to_drive("local") == [("j-search", DRIVER)]
        assert store.sweep("j-search").spec == {"metric": "loss"}
        assert store.job("j-search").placed_at == store.job("j-a").ended_at  # its start

    def test_a_run_begins_with_the_first_trial_of_its_sweep(self, store: Store) -> None:
        run = put(store, step(0, "search", driver=DRIVER, sweep={"metric": "loss"}))
        before = store.job(run.job.id), store.job("j-search")
        assert [one.started_at for one in before] == [None, None]
        assert before[0].placed_at is None
        trial = submit(store, parent="j-search")
        bring(store, trial, JobState.RUNNING)
        after, sweep = store.job(run.job.id), store.job("j-search")
        assert after.placed_at == store.job(trial.id).placed_at
        assert after.started_at == sweep.started_at == store.job(trial.id).started_at

    def test_a_sweep_never_starts_after_a_failure(self, store: Store) -> None:
        sweep = step(1, "search", "a", driver=DRIVER, sweep={"metric": "loss"})
        run = put(store, step(0, "a"), sweep, continues=True)
        end(store, "j-a", JobState.FAILED)
        assert states(store, run)["search"] == "Canceled"
        assert store.sweeps_to_drive("local") == []

    def test_repeated_key_returns_the_first_run(self, store: Store) -> None:
        first, new = store.put_pipeline(_keyed("a"))
        again, is_new = store.put_pipeline(_keyed("b"))
        assert (new, is_new, again) == (True, False, first)
        assert len(store.jobs()) == 2

    def test_taken_id_writes_nothing(self, store: Store) -> None:
        put(store, step(0, "a"))
        with pytest.raises(UsageError, match="exists already"):
            put(store, step(0, "b"), step(1, "a"))
        assert len(store.pipelines()) == 1
        assert len(store.jobs()) == 2

    def test_a_job_is_not_a_pipeline(self, store: Store) -> None:
        put(store, step(0, "a"))
        with pytest.raises(NotFoundError, match="is a job, not a pipeline"):
            store.pipeline("j-a")

    def test_only_steps_are_children_of_a_run(self, store: Store) -> None:
        run = put(store, step(0, "a"))
        job = NewJob(
            spec=JobSpec(script="a.py"),
            experiment="mnist",
            user="ada",
            snapshot=None,
            parent=run.job.id,
        )
        with pytest.raises(UsageError, match="its only children are its steps"):
            store.submit(job)
        with pytest.raises(UsageError, match="its only children are its steps"):
            store.start_run(interactive(parent=run.job.id))
        assert {one.id for one in store.jobs()} == {run.job.id, "j-a"}
        # Below a step they are allowed.
        assert store.submit(replace(job, parent="j-a"))[1]
        assert store.start_run(interactive(parent="j-a"))[1]

    def test_a_published_pipeline_is_found_by_id_and_name(self, store: Store) -> None:
        spec = {"steps": {"a": {"snapshot": "sha256:ab"}}}
        first = store.publish_pipeline(spec, name="digits", version="1", user="ada")
        second = store.publish_pipeline(spec, name="digits", description="newer")
        assert store.published_pipeline("digits") == second
        assert store.published_pipeline(first.id) == first == store.published_pipeline(first.id[:8])
        assert (first.version, first.created_by, first.spec) == ("1", "ada", spec)
        store.set_published_active(second.id, active=False)
        assert store.published_pipeline("digits") == first
        assert store.published_pipelines() == [first]
        assert len(store.published_pipelines(active=False)) == 2
        assert store.prune_view().published == {"sha256:ab"}
        store.set_published_active(second.id[:8], active=True)
        assert store.published_pipeline("digits").is_active
        assert store.published_pipeline("digits").id == second.id
        store.set_published_active("digits", active=False)
        assert not store.published_pipeline(second.id).is_active
        with pytest.raises(NotFoundError, match="no published pipeline 'digit'"):
            store.published_pipeline("digit")

    def test_an_endpoint_has_versions_and_a_default(self, store: Store) -> None:
        one, two = (store.publish_pipeline({"steps": {}}, name=name) for name in "ab")
        first = store.add_endpoint_version("daily", one.id)
        assert (first.version, first.is_default) == (0, True)
        assert not store.add_endpoint_version("daily", two.id).is_default
        third = store.add_endpoint_version("daily", one.id, is_default=True)
        assert (third.id, third.version) == (first.id, 2)
        store.set_endpoint_default("daily", 1)
        versions = store.endpoint_versions("daily")
        assert [one.is_default for one in versions] == [False, True, False]
        assert store.endpoint_versions(first.id) == versions == store.endpoint_versions()
        store.set_endpoint_active("daily", active=False)
        assert not any(one.is_active for one in store.endpoint_versions("daily"))
        store.set_endpoint_active(first.id, active=True)
        store.set_endpoint_default(first.id, 2)
        versions = store.endpoint_versions("daily")
        assert all(one.is_active for one in versions)
        assert [one.is_default for one in versions] == [False, False, True]
        assert store.add_endpoint_version("daily", "a").pipeline == one.id
        with pytest.raises(UsageError, match="no version 7; it has: 0, 1, 2"):
            store.set_endpoint_default("daily", 7)
        with pytest.raises(NotFoundError, match="no pipeline endpoint 'weekly'"):
            store.endpoint_versions("weekly")
        with pytest.raises(NotFoundError):
            store.add_endpoint_version("weekly", "gone")

    def test_an_endpoint_is_renamed_unless_the_name_is_taken(self, store: Store) -> None:
        published = store.publish_pipeline({"steps": {}}, name="a")
        first = store.add_endpoint_version("daily", published.id)
        store.add_endpoint_version("daily", published.id)
        store.add_endpoint_version("weekly", published.id)
        store.rename_endpoint("daily", "nightly")
        store.rename_endpoint("nightly", "nightly")
        assert [one.version for one in store.endpoint_versions("nightly")] == [0, 1]
        assert store.endpoint_versions("nightly")[0].id == first.id
        with pytest.raises(UsageError, match="a pipeline endpoint 'weekly' already exists"):
            store.rename_endpoint("nightly", "weekly")
        with pytest.raises(NotFoundError):
            store.rename_endpoint("daily", "other")

    def test_a_schedule_is_written_found_settled_and_removed(self, store: Store) -> None:
        published = store.publish_pipeline({"steps": {}}, name="digits")
        due = datetime(2026, 3, 1, 9, tzinfo=UTC)
        record = ScheduleRecord(
            id="a" * 32,
            name="nightly",
            pipeline=published.id,
            experiment="digits",
            parameters={"epochs": 3},
            continues=True,
            watched={"datastore": "d", "path": "in", "polling_interval": 5, "parameter": None},
            seen={"in/a": "1 x"},
            next_at=due,
            created_by="someone",
            created_at=due - timedelta(days=1),
        )
        store.put_schedule(record)
        assert [*store.schedules()] == [record]
        assert store.schedule("nightly") == store.schedule("a" * 8) == store.schedule("a" * 32)
        other = replace(record, id="ab" * 16)
        store.put_schedule(other)
        assert [store.schedule(text) for text in ("aaaa", "abab")] == [record, other]
        with pytest.raises(UsageError, match="names 2 schedules") as caught:
            store.schedule("nightly")
        assert set(caught.value.values["matches"]) == {record.id, other.id}
        store.drop_schedule(other.id)
        later = due + timedelta(minutes=5)
        settled: dict[str, Any] = {
            "next_at": later,
            "note": "late",
            "failed_start": "the disk is full",
            "run": "r1",
            "seen": {"in/a": "2 y"},
        }
        assert not store.settle_schedule(record.id, due=later, **settled), "it is not due then"
        assert store.settle_schedule(record.id, due=due, **settled)
        assert not store.settle_schedule(record.id, due=due, **settled), "it was settled already"
        expected = replace(
            record,
            next_at=later,
            note="late",
            failed_start="the disk is full",
            last_run="r1",
            seen={"in/a": "2 y"},
        )
        assert store.schedule(record.id) == expected
        assert store.settle_schedule(record.id, due=later, next_at=later, note="")
        assert store.schedule(record.id).failed_start == ""
        store.put_schedule(replace(expected, is_active=False, name="off"))
        assert store.schedule(record.id).failed_start == "the disk is full"
        assert not store.settle_schedule(record.id, due=later, next_at=None, note="")
        assert store.schedules() == []
        assert [one.name for one in store.schedules(active=False)] == ["off"]
        store.drop_schedule(record.id)
        with pytest.raises(NotFoundError):
            store.drop_schedule(record.id)


def interactive(**values: Any) -> NewRun:
    fields: dict[str, Any] = {
        "experiment": "mnist",
        "name": "",
        "user": "ada",
        "writer": ProcessWriter.own().to_json(),
    }
    return NewRun(**{**fields, **values})


def _keyed(name: str) -> NewPipeline:
    return NewPipeline(
        name="digits",
        base=JobSpec(name="digits", command="pipeline"),
        definition={},
        parameters={},
        steps=[step(0, name)],
        experiment="mnist",
        user="ada",
        idempotency_key="once",
    )


class TestSqlStorePipelines(PipelineContract):
    """The pipeline tests on a SQL store, and what only that store can contain."""

    @pytest.fixture
    def store(self, where: str | Path) -> Iterator[SqlStore]:
        store = SqlStore(where)
        yield store
        store.close()

    def adopt(self, store: SqlStore, child: str, parent: str) -> None:
        """Write a child of a pipeline run that is not a step, which earlier versions allowed."""
        with store._database.write(durable=True) as connection:
            connection.execute("UPDATE jobs SET parent = ? WHERE id = ?", (parent, child))

    def test_an_open_child_that_is_not_a_step_does_not_keep_a_run_open(
        self, store: SqlStore
    ) -> None:
        run = put(store, step(0, "a"))
        child, _ = store.start_run(interactive())
        self.adopt(store, child.id, run.job.id)
        end(store, "j-a", JobState.COMPLETED)
        ended = store.job(run.job.id)
        assert (ended.state, ended.reason) == (JobState.COMPLETED, "1 Completed")
        assert store.job(child.id).state is JobState.RUNNING

    def test_a_failed_child_that_is_not_a_step_ends_and_cancels_no_step(
        self, store: SqlStore
    ) -> None:
        run = put(store, step(0, "a"))
        child, _ = store.submit(
            NewJob(spec=JobSpec(script="a.py"), experiment="mnist", user="ada", snapshot=None)
        )
        self.adopt(store, child.id, run.job.id)
        end(store, child.id, JobState.FAILED)
        assert store.job(child.id).state is JobState.FAILED
        assert states(store, run) == {"a": "Queued"}
        end(store, "j-a", JobState.COMPLETED)
        assert store.job(run.job.id).state is JobState.COMPLETED
