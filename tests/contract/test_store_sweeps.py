"""The contract of stores for sweeps, their trials and their children."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, TakenOverError, UsageError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import ChildNews, Sweep, TrialRow
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import JobFilter, NewSweep
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import TurnedClock, bring, point, submit

BASE = JobSpec(script="train.py", name="digits", tags={"team": "blue"})
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def put(store: Store, **values: Any) -> Sweep:
    fields: dict[str, Any] = {
        "definition": {"metric": "accuracy"},
        "driver": "somewhere:start",
        "experiment": "mnist",
        "snapshot": "sha256:" + "ab" * 32,
        "user": "ada",
    }
    return store.put_sweep(NewSweep(base=BASE, **{**fields, **values}))[0]


def row(number: int, **values: Any) -> TrialRow:
    return TrialRow(number=number, **{"parameters": {"--lr": 0.1}, "state": "Planned", **values})


def news(store: Store, sweep: Sweep, cursors: dict[str, Any]) -> dict[str, ChildNews]:
    found = store.child_news(sweep.job.id, metric="loss", cursors=cursors)
    return {one.job: one for one in found}


class SweepContract:
    """Each implementation's test class inherits it and provides `store`."""

    def test_name_lookup_excludes_trials_of_a_sweep(self, store: Store) -> None:
        """Trials of HyperDrive have the name of their script, as jobs of that script have."""
        sweep = put(store, name="search")
        job = submit(store, JobSpec(script="train.py", name="train"))
        named = JobSpec(script="train.py", name="train", display_name="search 1")
        trial = submit(store, named, parent=sweep.job.id)
        assert store.find("train").id == job.id
        assert store.find("search 1").id == trial.id

    def test_sweep_is_running_from_the_start_and_hidden_from_targets(self, store: Store) -> None:
        sweep = put(store, name="search", tags={"why": "test"})
        job = store.job(sweep.job.id)
        assert (job.kind, job.state, job.attempt) == ("sweep", JobState.RUNNING, 0)
        assert (job.display_name, job.tags) == ("search", {"why": "test"})
        assert (sweep.spec, sweep.driver) == ({"metric": "accuracy"}, "somewhere:start")
        assert store.sweep(job.id) == sweep
        assert store.live("local") == []
        assert store.jobs(JobFilter(states=[JobState.QUEUED])) == []
        assert store.start(job.id, attempt=0, allocation="a") is None
        assert store.find(job.id.rpartition("_")[2]).id == job.id

    def test_sweep_is_never_submitted_before_the_job_in_front_of_it(self, store: Store) -> None:
        """A client whose clock is slow submits it."""
        before = submit(store)
        clock = store._clock  # type: ignore[attr-defined]
        clock.at -= timedelta(hours=1)
        assert put(store).job.submitted_at == before.submitted_at
        assert submit(store).submitted_at == before.submitted_at

    def test_a_sweep_starts_with_its_first_trial(self, store: Store) -> None:
        sweep = put(store)
        trial = submit(store, parent=sweep.job.id)
        bring(store, trial, JobState.PROVISIONING)
        assert store.job(sweep.job.id).started_at is None
        bring(store, submit(store, parent=sweep.job.id), JobState.RUNNING)
        first = store.job(sweep.job.id).started_at
        assert first is not None
        bring(store, submit(store, parent=sweep.job.id), JobState.RUNNING)
        assert store.job(sweep.job.id).started_at == first

    def test_repeated_key_returns_the_first_sweep_and_a_job_key_is_refused(
        self, store: Store
    ) -> None:
        first = put(store, idempotency_key="k")
        again, created = store.put_sweep(
            NewSweep(
                base=BASE,
                definition={},
                driver="d:s",
                experiment="x",
                snapshot=None,
                user="",
                idempotency_key="k",
            )
        )
        assert (again.job.id, created) == (first.job.id, False)
        submit(store, idempotency_key="of-a-job")
        with pytest.raises(UsageError, match="belongs to another job"):
            put(store, idempotency_key="of-a-job")
        assert [one.job.id for one in store.sweeps()] == [first.job.id]

    def test_job_is_not_a_sweep(self, store: Store) -> None:
        job = submit(store)
        with pytest.raises(NotFoundError, match="is a job, not a sweep"):
            store.sweep(job.id)
        with pytest.raises(NotFoundError):
            store.sweep("nothing")
        assert store.claim_sweep(job.id) is None

    def test_sweeps_are_listed_newest_first(self, store: Store) -> None:
        first, second = put(store), put(store, experiment="other")
        assert [one.job.id for one in store.sweeps()] == [second.job.id, first.job.id]
        assert [one.job.id for one in store.sweeps(limit=1)] == [second.job.id]
        assert [one.job.id for one in store.sweeps(experiment="mnist")] == [first.job.id]

    def test_unfinished_sweeps_need_a_driver(self, store: Store) -> None:
        first, second = put(store), put(store)
        ids = [first.job.id, second.job.id]
        assert [job for job, _ in store.sweeps_to_drive("local")] == ids
        assert store.sweeps_to_drive("lab") == []
        claim = store.claim_sweep(ids[0])
        assert claim == 1
        old, new = JobState.RUNNING, JobState.FINALIZING
        assert store.move(ids[0], attempt=claim, old=old, new=new)
        assert [job for job, _ in store.sweeps_to_drive("local")] == ids
        assert store.finish(ids[0], attempt=claim, state=JobState.COMPLETED)
        assert store.sweeps_to_drive("local") == [(ids[1], "somewhere:start")]
        assert store.claim_sweep(ids[0]) is None

    def test_a_child_is_submitted_by_the_newest_claim_of_an_open_sweep_alone(
        self, store: Store
    ) -> None:
        sweep = put(store).job.id
        old = store.claim_sweep(sweep)
        first = submit(store, parent=sweep, claim=old, idempotency_key="trial-0")
        again = submit(store, parent=sweep, claim=old, idempotency_key="trial-0")
        assert (first.id, first.parent) == (again.id, sweep)
        new = store.claim_sweep(sweep)
        assert new is not None
        for key in ("trial-0", "trial-1"):
            with pytest.raises(TakenOverError, match=r"has claim 2.* by claim 1"):
                submit(store, parent=sweep, claim=old, idempotency_key=key)
        assert store.finish(sweep, attempt=new, state=JobState.CANCELED)
        with pytest.raises(TakenOverError, match="is Canceled"):
            submit(store, parent=sweep, claim=new, idempotency_key="trial-1")
        assert [job.id for job in store.jobs(JobFilter(parent=sweep))] == [first.id]
        with pytest.raises(NotFoundError):
            submit(store, parent="nothing", claim=1)
        with pytest.raises(UsageError, match="give `parent`"):
            submit(store, claim=1)

    def test_a_newer_claim_refuses_what_an_older_driver_writes(self, store: Store) -> None:
        sweep = put(store).job.id
        old = store.claim_sweep(sweep)
        assert old is not None
        assert store.put_trials(sweep, claim=old, trials=[row(0)])
        new = store.claim_sweep(sweep)
        assert new == old + 1
        assert not store.put_trials(sweep, claim=old, trials=[row(0, state="Running"), row(1)])
        assert not store.put_trials(sweep, claim=old, trials=[])
        assert store.put_trials(sweep, claim=new, trials=[])
        assert [trial.state for trial in store.trials(sweep)] == ["Planned"]
        assert not store.finish(sweep, attempt=old, state=JobState.FAILED)
        assert store.finish(sweep, attempt=new, state=JobState.FAILED)

    def test_a_canceled_sweep_keeps_its_state_and_gets_the_request(self, store: Store) -> None:
        sweep = put(store).job.id
        assert store.request_cancel(sweep, by="ada") is JobState.RUNNING
        assert store.job(sweep).cancel_requested_at is not None
        claim = store.claim_sweep(sweep)
        assert claim is not None
        assert store.finish(sweep, attempt=claim, state=JobState.CANCELED)

    def test_a_trial_comes_back_as_it_was_written(self, store: Store) -> None:
        sweep = put(store).job.id
        claim = store.claim_sweep(sweep)
        assert claim is not None
        full = row(
            1,
            parameters={"--lr": 1e-300, "layers": [1, 2], "deep": {"a": None}, "flag": True},
            state="Canceled",
            job="j1",
            reports=(0.1, math.inf, -math.inf, 2.0),
            reason="stopped trial 1 at interval 4: 2 < 3/(1+0.1) — größer",
            detail="interval 4: 2 < 3/(1+0.1) — größer",
            cause="policy",
            judged=4,
            stop_requested=True,
            metric_names=("accuracy", "loss"),
            started_at=AT,
            ended_at=AT,
        )
        assert store.put_trials(sweep, claim=claim, trials=[full, row(0, reports=(math.nan,))])
        first, second = store.trials(sweep)
        assert second == full
        assert first.number == 0
        assert len(first.reports) == 1
        assert math.isnan(first.reports[0])

    def test_parameters_are_written_once(self, store: Store) -> None:
        sweep = put(store).job.id
        claim = store.claim_sweep(sweep)
        assert claim is not None
        store.put_trials(sweep, claim=claim, trials=[row(0)])
        store.put_trials(sweep, claim=claim, trials=[row(0, parameters={"--lr": 9}, judged=2)])
        [trial] = store.trials(sweep)
        assert (trial.parameters, trial.judged) == ({"--lr": 0.1}, 2)

    # -- children ------------------------------------------------------------------------------
    def test_updates_of_a_child_are_its_state_and_new_points(self, store: Store) -> None:
        sweep = put(store)
        child, other = submit(store, parent=sweep.job.id), submit(store)
        cursors: dict[str, Any] = {child.id: {}, other.id: {}, "gone": {}}
        found = news(store, sweep, cursors)
        assert set(found) == {child.id}  # the others are not its children
        assert (found[child.id].state, found[child.id].points) == (JobState.QUEUED, ())
        bring(store, child, JobState.RUNNING)
        store.add_metrics(child.id, [point(0, step=0), point(9, step=0, name="accuracy")])
        one = news(store, sweep, {child.id: found[child.id].cursor})[child.id]
        assert (one.state, one.attempt) == (JobState.RUNNING, 1)
        assert [p.sequence for p in one.points] == [0]
        store.add_metrics(child.id, [point(12, step=1), point(0, step=0, rank=3)])
        two = news(store, sweep, {child.id: one.cursor})[child.id]
        assert [(p.rank, p.sequence) for p in two.points] == [(0, 12), (3, 0)]
        assert news(store, sweep, {child.id: two.cursor})[child.id].points == ()
        assert store.child_news(sweep.job.id, metric="loss", cursors={}) == []

    def test_new_attempt_restarts_its_points(self, store: Store) -> None:
        sweep = put(store)
        child = submit(store, parent=sweep.job.id)
        bring(store, child, JobState.RUNNING)
        store.add_metrics(child.id, [point(0, step=0), point(5, step=1)])
        one = news(store, sweep, {child.id: {}})[child.id]
        assert len(one.points) == 2
        store.requeue(child.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        bring(store, child, JobState.RUNNING)
        late, fresh = point(9, step=2), point(0, step=0, attempt=2)
        store.add_metrics(child.id, [late, fresh])
        two = news(store, sweep, {child.id: one.cursor})[child.id]
        assert (two.attempt, [p.attempt for p in two.points]) == (2, [2])

    def test_cursor_survives_json(self, store: Store) -> None:
        import json

        sweep = put(store)
        child = submit(store, parent=sweep.job.id)
        bring(store, child, JobState.RUNNING)
        store.add_metrics(child.id, [point(0, step=0)])
        cursor = news(store, sweep, {child.id: {}})[child.id].cursor
        travelled = json.loads(json.dumps(cursor))
        assert news(store, sweep, {child.id: travelled})[child.id].points == ()


class TestSqlStoreSweeps(SweepContract):
    @pytest.fixture
    def store(self, where: str | Path) -> Iterator[Store]:
        store = SqlStore(where, clock=TurnedClock(), busy_timeout_s=60)
        yield store
        store.close()
