"""A sweep's driver on a real store: submits, stops, records and takeovers."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import (
    RayjobsError,
    SpecError,
    StoreBusyError,
    StoreError,
    TakenOverError,
)
from rayjobs.datastore.errors import DatastoreUnavailable
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.states import JobState
from rayjobs.tuning.driver import NO_METRIC_S, Driver
from rayjobs.tuning.driver_actor import MOST_FAULTS, drive
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.events import DriverFault
from rayjobs.tuning.state import Finish, metric_missing
from rayjobs.tuning.submitter import submit_sweep
from rayjobs.tuning.table import elapsed_s, row_of
from rayjobs.tuning.trials import TrialState
from rayjobs.tuning.watch import News
from tests.unit.tuning_driver.world import World, good, parameters_of
from tests.unit.tuning_driver.world import sweep as sweep_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def run(world: World, sweep_id: str) -> JobState:
    return world.finish(world.driver(sweep_id))


@pytest.mark.long
def test_a_sweep_runs_all_its_trials_and_names_the_best(world: World) -> None:
    sweep = world.submit()
    assert run(world, sweep) is JobState.COMPLETED
    parent = world.store.job(sweep)
    assert (parent.state, parent.kind) == (JobState.COMPLETED, "sweep")
    assert parent.reason == "6 completed, 0 stopped, 0 failed of 6 trials"
    jobs, trials = world.jobs(sweep), world.trials(sweep)
    assert [job.id for job in jobs] == [trial.job_id for trial in trials]
    assert [job.tags["trial"] for job in jobs] == list("012345")
    assert {job.snapshot for job in jobs} == {parent.snapshot} != {None}
    for job, trial in zip(jobs, trials, strict=True):
        x = trial.parameters["--x"]
        assert parameters_of(job) == {"--x": str(x)}
        assert trial.values == pytest.approx((x * 0.5, x * 0.8, x))
        assert trial.state is TrialState.COMPLETED
        assert trial.started_at is not None and trial.ended_at is not None
    best = max(trials, key=lambda trial: trial.parameters["--x"])
    assert parent.properties["best_run"] == best.job_id
    assert parent.properties["best_trial"] == str(best.number)
    assert float(parent.properties["best_primary_metric"]) == best.values[-1]


@pytest.mark.long
def test_the_submit_itself_begins_the_first_trials_and_no_more_than_may_run(world: World) -> None:
    sweep = world.submit(limits={"total": 6, "concurrent": 2})
    assert [job.state for job in world.jobs(sweep)] == [JobState.QUEUED] * 2
    driver = world.driver(sweep)
    most = 0
    while driver.turn() is None:
        most = max(most, sum(not job.state.is_final for job in world.jobs(sweep)))
        world.play()
    assert most == 2


def test_a_hopeless_trial_is_stopped_with_its_numbers(world: World) -> None:
    def script(parameters: Any) -> Any:
        x = float(parameters["--x"])
        return [x] * 5, JobState.COMPLETED, "accuracy"

    world.script = script
    sweep = world.submit(
        policy={"type": "bandit", "slack_factor": 0.1},
        sampling={"type": "grid", "parameters": {"--x": ["choice", [0.9, 0.2]]}},
        limits={"total": 2, "concurrent": 2},
    )
    assert run(world, sweep) is JobState.COMPLETED
    good_one, stopped = world.trials(sweep)
    assert good_one.state is TrialState.COMPLETED
    assert stopped.state is TrialState.CANCELED
    assert stopped.reason == "stopped trial 1 at interval 1: 0.2 < 0.9/(1+0.1)"
    job = world.store.job(str(stopped.job_id))
    assert job.state is JobState.CANCELED
    messages = [event.message for event in world.store.events(job.id) if event.kind == "cancel"]
    assert messages == [f"cancel requested by its sweep: {stopped.reason}"]
    assert len(stopped.values) < 5


@pytest.mark.parametrize("written", ["NaN", "Infinity"])
def test_a_trial_whose_value_is_not_finite_is_never_the_best(world: World, written: str) -> None:
    def script(parameters: Any) -> Any:
        x = float(parameters["--x"])
        return ([0.1, 0.2] if x < 0.5 else [written, written]), JobState.COMPLETED, "accuracy"

    world.script = script
    sweep = world.submit(
        sampling={"type": "grid", "parameters": {"--x": ["choice", [0.9, 0.2]]}},
        limits={"total": 2},
    )
    assert run(world, sweep) is JobState.COMPLETED
    diverged, best = world.trials(sweep)
    assert diverged.diverged and not any(map(math.isfinite, diverged.values))
    assert world.store.job(sweep).properties["best_run"] == best.job_id


def test_healthy_trial_wins_over_one_that_diverged_after_its_best(
    world: World,
) -> None:
    def script(parameters: Any) -> Any:
        x = float(parameters["--x"])
        return ([0.2, 0.3] if x < 0.5 else [0.9, 0.9, "NaN"]), JobState.COMPLETED, "accuracy"

    world.script = script
    sweep = world.submit(
        sampling={"type": "grid", "parameters": {"--x": ["choice", [0.9, 0.2]]}},
        limits={"total": 2},
    )
    assert run(world, sweep) is JobState.COMPLETED
    diverged, healthy = world.trials(sweep)
    assert diverged.values[:2] == (0.9, 0.9) and math.isnan(diverged.values[2])
    found = world.store.job(sweep).properties
    assert (found["best_run"], found["best_primary_metric"]) == (healthy.job_id, "0.3")


def test_misspelled_metric_fails_the_trial_with_the_names_it_logged(world: World) -> None:
    world.script = lambda parameters: ([0.5], JobState.COMPLETED, "acuracy")
    sweep = world.submit(limits={"total": 2})
    assert run(world, sweep) is JobState.FAILED
    first, _ = world.trials(sweep)
    assert first.state is TrialState.FAILED
    assert "it reported: acuracy. Did you mean 'acuracy'?" in first.reason
    parent = world.store.job(sweep)
    assert parent.failure is not None and "never reported the metric" in parent.failure.lines[0]
    assert "best_run" not in parent.properties


def test_a_metric_that_running_trials_do_not_report_is_named_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.tuning.driver.NAMES_S", 0.0)
    sweep = world.submit(limits={"total": 2})
    driver = world.driver(sweep)
    assert driver.turn() is None
    world.begin(world.jobs(sweep)[0])
    job = world.jobs(sweep)[0]
    for index in range(3):
        assert not [one for one in world.store.events(sweep) if one.kind == "metric_missing"]
        world.report(job, index, 0.5, name="val_accuracy")
        driver.turn()
    (event,) = [one for one in world.store.events(sweep) if one.kind == "metric_missing"]
    assert "3 reports or more, but none of the sweep's metric 'accuracy'" in event.message
    assert "Did you mean 'val_accuracy'? If so, cancel the sweep" in event.message
    notice = metric_missing(world.trials(sweep), "accuracy")
    assert notice is not None
    assert (notice.text, notice.level) == (event.message, "warning")
    # A driver that takes over does not repeat it; the metric itself ends the warning.
    other = world.driver(sweep)
    other.take_up()
    other.turn()
    assert len([one for one in world.store.events(sweep) if one.kind == "metric_missing"]) == 1
    world.report(job, 3, 0.5)
    other.turn()
    assert metric_missing(world.trials(sweep), "accuracy") is None


def test_late_metric_causes_no_advice_to_cancel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.tuning.driver.NAMES_S", 0.0)
    sweep = world.submit(limits={"total": 2})
    driver = world.driver(sweep)
    driver.turn()
    world.begin(world.jobs(sweep)[0])
    job = world.jobs(sweep)[0]
    news = News(driver.spec)
    for index in range(5):  # a loss for each step, within seconds
        world.report(job, index, 0.5, name="loss")
        driver.turn()
    assert metric_missing(world.trials(sweep), "accuracy") is None
    # After a while it is worth a note, without advice to cancel and without a guess.
    world.report(job, 5, 0.5, name="loss", after_s=NO_METRIC_S)
    driver.turn()
    notice = metric_missing(world.trials(sweep), "accuracy")
    assert notice is not None and notice.level == "note" and "cancel" not in notice.text
    assert [line for line in news.lines(driver.state) if notice.text in line] == [
        f"note: {notice.text}"
    ]
    world.report(job, 6, 0.9)
    driver.turn()
    assert "the sweep's metric 'accuracy' has now been reported" in news.lines(driver.state)


@pytest.mark.long
def test_crashed_trials_are_counted_and_the_others_continue(world: World) -> None:
    def script(parameters: Any) -> Any:
        values, _, name = good(parameters)
        end = JobState.FAILED if float(parameters["--x"]) > 0.5 else JobState.COMPLETED
        return values, end, name

    world.script = script
    sweep = world.submit(limits={"total": 8, "concurrent": 3})
    assert run(world, sweep) is JobState.COMPLETED
    failed = [trial for trial in world.trials(sweep) if trial.state is TrialState.FAILED]
    assert failed and failed[0].reason == "ValueError: no"
    assert f"{len(failed)} failed of 8 trials" in world.store.job(sweep).reason


def test_too_many_failures_end_the_sweep_as_failed(world: World) -> None:
    world.script = lambda parameters: ([0.5], JobState.FAILED, "accuracy")
    sweep = world.submit(limits={"total": 8, "concurrent": 1, "max_failures": 1})
    assert run(world, sweep) is JobState.FAILED
    assert len(world.jobs(sweep)) == 2
    parent = world.store.job(sweep)
    assert "more than max_failures, 1" in parent.reason
    assert parent.failure is not None
    assert parent.failure.lines == ("trial 0: ValueError: no", "trial 1: ValueError: no")


def test_a_canceled_sweep_cancels_its_trials_and_plans_no_more(world: World) -> None:
    sweep = world.submit()
    driver = world.driver(sweep)
    world.play()
    assert world.store.request_cancel(sweep, by="ada") is JobState.RUNNING
    assert world.finish(driver) is JobState.CANCELED
    assert [job.state for job in world.jobs(sweep)] == [JobState.CANCELED] * 2
    assert {trial.state for trial in world.trials(sweep)} == {TrialState.CANCELED}
    assert world.store.job(sweep).reason.startswith("canceled by ada; 0 completed")


def test_a_sweep_canceled_before_any_driver_came_ends(world: World) -> None:
    sweep = world.submit()
    world.store.request_cancel(sweep)
    assert run(world, sweep) is JobState.CANCELED


def test_running_trials_are_stopped_at_the_time_limit(world: World) -> None:
    class Later(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(hours=2)

    sweep = world.submit(limits={"total": 6, "concurrent": 2, "max_duration_s": 3600})
    late = Driver(world.workspace, sweep, clock=Later())
    assert late.take_up()
    assert world.finish(late) is JobState.FAILED
    assert "the sweep's time is up" in world.store.job(sweep).reason
    assert [job.state for job in world.jobs(sweep)] == [JobState.CANCELED] * 2


def test_the_time_of_a_sweep_begins_after_the_steps_before_it(world: World) -> None:
    job = world.store.job(world.submit(limits={"total": 1}))
    now = job.submitted_at + timedelta(hours=2)
    assert elapsed_s(job, now=now) == 7200
    waited = dataclasses.replace(job, placed_at=job.submitted_at + timedelta(hours=1))
    assert elapsed_s(waited, now=now) == 3600


def test_a_retry_that_starts_over_reports_its_intervals_again(world: World) -> None:
    sweep = world.submit(limits={"total": 1})
    driver = world.driver(sweep)
    for _ in range(3):  # begins, reports twice
        world.play()
    driver.turn()
    assert len(driver.state.trials[0].values) == 2
    [job] = world.jobs(sweep)
    world.store.requeue(job.id, attempt=1, reason="node lost", outcome=Outcome.NODE_LOST)
    driver.turn()
    world.play()
    world.play()
    driver.turn()
    x = driver.state.trials[0].parameters["--x"]
    assert driver.state.trials[0].values == pytest.approx((x * 0.5,))
    assert world.finish(driver) is JobState.COMPLETED
    assert world.trials(sweep)[0].values == pytest.approx((x * 0.5, x * 0.8, x))


def test_trial_of_a_removed_job_fails_and_the_sweep_continues(world: World) -> None:
    sweep = world.submit(limits={"total": 2, "concurrent": 1})
    driver = world.driver(sweep)
    with world.store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute("DELETE FROM jobs WHERE parent = ?", (sweep,))
    assert world.finish(driver) is JobState.COMPLETED
    first, second = world.trials(sweep)
    assert "no longer in the store" in first.reason
    assert second.state is TrialState.COMPLETED


# -- one driver after another ----------------------------------------------------------------------


@pytest.mark.long
def test_replaced_driver_cannot_write(world: World) -> None:
    sweep = world.submit()
    old = world.driver(sweep)
    world.play()
    world.play()
    new = world.driver(sweep)
    with pytest.raises(TakenOverError):
        old.turn()
    assert world.finish(new) is JobState.COMPLETED
    assert Driver(world.workspace, sweep).run() is JobState.COMPLETED  # nothing left to do


@pytest.mark.parametrize("ends", ["finish", "give up"])
def test_replaced_driver_cancels_no_trials(world: World, ends: str) -> None:
    sweep = world.submit()
    old = world.driver(sweep)
    new = world.driver(sweep)
    if ends == "finish":
        with pytest.raises(TakenOverError):
            old._finish(Finish(JobState.FAILED, "too many failed"))
    else:
        assert old.give_up("an internal error") is JobState.RUNNING
    assert [job.cancel_requested_at for job in world.jobs(sweep)] == [None, None]
    assert world.finish(new) is JobState.COMPLETED


def test_a_driver_that_slept_submits_nothing_into_a_sweep_that_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit(begun=False, limits={"total": 2, "concurrent": 2})
    slow = world.driver(sweep)
    carry_out = slow._carry_out

    def sleep_meanwhile(actions: Any) -> None:
        if actions:  # its plan is recorded, nothing is submitted
            quick = world.driver(sweep)
            world.store.request_cancel(sweep, by="ada")
            assert world.finish(quick) is JobState.CANCELED
        carry_out(actions)

    monkeypatch.setattr(slow, "_carry_out", sleep_meanwhile)
    with pytest.raises(TakenOverError):
        slow.turn()
    assert len(world.trials(sweep)) == 2
    assert world.jobs(sweep) == []


def test_a_job_that_was_submitted_but_not_recorded_is_found_again(world: World) -> None:
    sweep = world.submit(limits={"total": 1})
    [trial] = world.trials(sweep)
    claim = world.store.claim_sweep(sweep)
    assert claim is not None
    lost = dataclasses.replace(
        trial, state=TrialState.PLANNED, job_id=None, stop_requested=True, reason="no"
    )
    assert world.store.put_trials(sweep, claim=claim, trials=[row_of(lost)])
    # Without its job, a stop of this row would leave that job running forever.
    driver = world.driver(sweep)
    assert driver.state.trials[0].job_id == trial.job_id
    assert world.finish(driver) is JobState.FAILED
    assert [job.state for job in world.jobs(sweep)] == [JobState.CANCELED]


def test_only_the_newer_of_two_drivers_submits_a_trial(world: World) -> None:
    sweep = world.submit()
    slow = world.driver(sweep)
    trial = slow.state.trials[0]
    quick = world.driver(sweep)  # while the other one is between its row and its submit
    with pytest.raises(TakenOverError):
        slow._submit(trial)
    assert quick._submit(trial).id == trial.job_id  # by its key, the job that is there
    assert len(world.jobs(sweep)) == 2


class DyingStore:
    """Passes calls on to a store, and dies before or after some of them."""

    def __init__(self, store: Any, die: Any) -> None:
        self._store = store
        self._die = die

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "catalogue":  # a separate kind of store whose calls may die
            return DyingStore(found, self._die)

        def call(*given: Any, **more: Any) -> Any:
            self._die()
            result = found(*given, **more)
            self._die()
            return result

        return call


class Death(Exception):
    """The driver's process ends here."""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_drivers_that_die_anywhere_repeat_no_trial_and_lose_none(world: World, seed: int) -> None:
    dice = random.Random(seed)
    policy = {"type": "bandit", "slack_factor": 0.3} if seed % 2 else None
    changes: dict[str, Any] = {"policy": policy} if policy else {}
    sweep = world.submit(limits={"total": 12, "concurrent": 3}, **changes)
    deaths = 0

    def die() -> None:
        nonlocal deaths
        if dice.random() < 0.03:
            deaths += 1
            raise Death

    dying = dataclasses.replace(world.workspace, store=DyingStore(world.store, die))
    ended = None
    while ended is None:
        try:
            driver = Driver(dying, sweep)
            driver.take_up()
            while ended is None:
                ended = driver.turn()
                world.play()
        except Death:
            if world.store.job(sweep).state.is_final:  # it died after it recorded the end
                break
    trials, jobs = world.trials(sweep), world.jobs(sweep)
    assert deaths >= 2
    assert world.store.job(sweep).state is JobState.COMPLETED
    assert len(trials) == 12  # missing=0
    assert len(jobs) == len({job.id for job in jobs}) == 12  # repeated=0
    assert all(job.attempt == 1 for job in jobs)
    assert [trial.job_id for trial in trials] == [job.id for job in jobs]
    for trial, job in zip(trials, jobs, strict=True):
        assert str(trial.state) == str(job.state)
        assert trial.parameters["--x"] == float(parameters_of(job)["--x"])


@pytest.mark.long
def test_locked_store_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayjobs.tuning.driver.STORE_PAUSE_S", 0.0)
    monkeypatch.setattr("rayjobs.tuning.driver.POLL_S", 0.0)
    sweep = world.submit()
    refusals = iter(range(1, 10_000))
    played = world.store

    def refuse() -> None:
        if next(refusals) % 40 == 0:
            raise StoreBusyError("another process keeps the lock")

    class Playing(DyingStore):
        def job(self, job_id: str) -> Any:
            world.play()  # the target continues meanwhile
            return played.job(job_id)

    busy = dataclasses.replace(world.workspace, store=Playing(played, refuse))
    assert Driver(busy, sweep).run() is JobState.COMPLETED
    assert len(world.jobs(sweep)) == 6


def test_a_fault_is_kept_in_the_history_and_in_the_end_fails_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit()

    def broken(self: Driver) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(Driver, "turn", broken)
    for _ in range(MOST_FAULTS - 1):
        with pytest.raises(KeyError):
            drive(world.workspace, sweep, wake_target=lambda: None)
    assert drive(world.workspace, sweep, wake_target=lambda: None) == "Failed"
    parent = world.store.job(sweep)
    assert "a fault of ours" in parent.reason
    kinds = [event.kind for event in world.store.events(sweep)]
    assert kinds.count(DriverFault.KIND) == MOST_FAULTS
    assert all(job.state is JobState.CANCELED for job in world.jobs(sweep))


@pytest.mark.long
def test_faults_with_progress_between_them_never_end_a_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit(limits={"total": 2 * MOST_FAULTS, "concurrent": 1})
    turn = Driver.turn

    def fails_after_each_end(self: Driver) -> JobState | None:
        ended = sum(trial.is_final for trial in world.trials(sweep))
        world.play()
        done = turn(self)
        if done is None and sum(trial.is_final for trial in world.trials(sweep)) > ended:
            raise KeyError("a fault of ours")
        return done

    monkeypatch.setattr(Driver, "turn", fails_after_each_end)
    monkeypatch.setattr("rayjobs.tuning.driver.POLL_S", 0)
    for _ in range(2 * MOST_FAULTS - 1):  # after the last end, the sweep itself ends
        with pytest.raises(KeyError):
            drive(world.workspace, sweep, wake_target=lambda: None)
    assert drive(world.workspace, sweep, wake_target=lambda: None) == "Completed"


def test_busy_store_at_driver_start_is_not_a_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit(limits={"total": 1})
    world.finish(world.driver(sweep))
    calls, read = [0], world.store.sweep

    def busy(sweep_id: str) -> Any:
        calls[0] += 1
        if calls[0] < 2 * MOST_FAULTS:
            raise StoreBusyError("database is locked")
        return read(sweep_id)

    monkeypatch.setattr(world.store, "sweep", busy)
    monkeypatch.setattr("rayjobs.tuning.driver_actor.STORE_PAUSE_S", 0)
    assert drive(world.workspace, sweep, wake_target=lambda: None) == "Completed"
    assert calls[0] == 2 * MOST_FAULTS
    assert DriverFault.KIND not in {event.kind for event in world.store.events(sweep)}


def test_short_outage_of_the_results_datastore_does_not_fail_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit(limits={"total": 1})
    away, stored = iter(range(2 * MOST_FAULTS)), [0]

    def store_results(*_: object) -> None:
        for number in away:
            raise DatastoreUnavailable(f"S3 does not answer ({number})")
        stored[0] += 1

    monkeypatch.setattr("rayjobs.tuning.driver.store_results", store_results)
    monkeypatch.setattr("rayjobs.tuning.driver.STORE_PAUSE_S", 0.0)
    with pytest.raises(DatastoreUnavailable):
        world.finish(world.driver(sweep))
    assert drive(world.workspace, sweep, wake_target=lambda: None) == "Completed"
    assert stored == [1]


def test_long_outage_of_the_results_datastore_fails_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = world.submit(limits={"total": 1})

    def away(*_: object) -> None:
        raise DatastoreUnavailable("S3 does not answer")

    monkeypatch.setattr("rayjobs.tuning.driver.store_results", away)
    monkeypatch.setattr("rayjobs.tuning.driver.STORE_PAUSE_S", 0.0)
    monkeypatch.setattr("rayjobs.tuning.driver.OUTAGE_S", 0.0)
    with pytest.raises(DatastoreUnavailable):
        world.finish(world.driver(sweep))
    for _ in range(MOST_FAULTS - 1):
        with pytest.raises(DatastoreUnavailable):
            drive(world.workspace, sweep, wake_target=lambda: None)
    assert drive(world.workspace, sweep, wake_target=lambda: None) == "Failed"


# -- the submit ------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_sweep(world: World) -> None:
    spec = sweep_of(world.folder / "source")
    first = submit_sweep(world.workspace, spec, idempotency_key="k", wake=False)
    again = submit_sweep(world.workspace, spec, idempotency_key="k", wake=False)
    assert (first.created, again.created) == (True, False)
    assert first.sweep.job.id == again.sweep.job.id
    assert [sweep.job.id for sweep in world.store.sweeps()] == [first.sweep.job.id]


def test_the_same_key_with_an_edited_sweep_is_refused(world: World) -> None:
    source = world.folder / "source"
    unseeded = {"type": "random", "parameters": {"--x": ["uniform", [0.0, 1.0]]}}
    first = submit_sweep(
        world.workspace, sweep_of(source, sampling=unseeded), idempotency_key="k", wake=False
    )
    # Each reading of a file without a seed draws another one: still the same sweep.
    same = sweep_of(source, sampling=unseeded)
    assert not submit_sweep(world.workspace, same, idempotency_key="k", wake=False).created
    seeded = sweep_of(source, sampling={**unseeded, "seed": 5})
    metric = sweep_of(source, sampling=unseeded, limits={"total": 3})
    for edited, what in ((seeded, "sampling"), (metric, "limits")):
        with pytest.raises(SweepUsageError, match=f"differs in: {what}") as caught:
            submit_sweep(world.workspace, edited, idempotency_key="k", wake=False)
        assert first.sweep.job.id in caught.value.message
    (source / "train.py").write_text("print('edited')\n")
    with pytest.raises(SweepUsageError, match="source files"):
        submit_sweep(world.workspace, same, idempotency_key="k", wake=False)
    assert len(world.store.sweeps()) == 1


def test_job_problems_are_reported_with_their_path(world: World) -> None:
    with pytest.raises(SpecError) as caught:
        world.submit(job={"script": "train.py", "resources": {"gpu": 1}, "arguments": 3})
    assert [one.path for one in caught.value.problems] == ["job.arguments", "job.resources.gpu"]
    with pytest.raises(SpecError, match=r"job\.command: a command takes no arguments"):
        world.submit(job={"command": "python train.py"})
    missing = {"script": "absent.py", "source_directory": str(world.folder / "source")}
    with pytest.raises(RayjobsError, match=r"absent\.py"):
        world.submit(job=missing)
    assert world.store.sweeps() == []


def test_a_model_that_the_registry_refuses_leaves_the_sweep_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_more: Any) -> Any:
        raise StoreError("the registry cannot be reached")

    monkeypatch.setattr("rayjobs.tuning.registering.registry.register", refuse)
    sweep = world.submit(register_as="digits-best", limits={"total": 1})
    assert run(world, sweep) is JobState.COMPLETED
    parent = world.store.job(sweep)
    assert "was not registered as model 'digits-best'" in parent.reason
    assert [e.kind for e in world.store.events(sweep)].count("not_registered") == 1


@pytest.mark.long
def test_a_trial_without_a_model_is_noted_before_the_sweep_ends(world: World) -> None:
    sweep = world.submit(register_as="digits-best", limits={"total": 3, "concurrent": 1})
    driver = world.driver(sweep)
    assert driver.take_up()
    for _ in range(200):
        if any(trial.is_final for trial in world.trials(sweep)):
            break
        driver.turn()
        world.play()
    events = [event for event in world.store.events(sweep) if event.kind == "model_missing"]
    assert len(events) == 1
    assert "trial 0 completed without 'outputs'" in events[0].message
    assert world.finish(driver) is JobState.COMPLETED
    assert [event.kind for event in world.store.events(sweep)].count("model_missing") == 1
