"""What a sweep does next: limits, stops, failures, and drivers that die at random points."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayjobs.jobs.states import JobState
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.results import best_trial
from rayjobs.tuning.state import Finish, Judged, PlanTrial, StopTrial, Submit, SweepState, conclude
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState
from rayjobs.tuning.tune.scheduling import TuneScheduler
from tests.unit.tuning.simulation import World, good, sweep


def actions_of(state: SweepState, spec: Any) -> tuple[Any, ...]:
    return state.next_actions(
        spec, spec.sampling.sampler(spec.goal), TuneScheduler(spec.policy, spec.goal)
    )


def running(number: int, *values: float, judged: int = 0) -> TrialRecord:
    return TrialRecord(
        number=number,
        parameters={"--x": 0.5},
        state=TrialState.RUNNING,
        job_id=f"j{number}",
        values=values,
        judged=judged,
    )


def ended(number: int, state: TrialState, *values: float) -> TrialRecord:
    return replace(running(number, *values), state=state)


def test_a_new_sweep_starts_as_many_trials_as_may_run_at_a_time() -> None:
    spec = sweep(limits={"total": 6, "concurrent": 2})
    actions = actions_of(SweepState(), spec)
    assert [type(action) for action in actions] == [PlanTrial, PlanTrial]
    assert [action.number for action in actions] == [0, 1]
    assert actions_of(SweepState(), spec) == actions  # a second call returns the same


def test_without_a_limit_all_run_at_a_time() -> None:
    assert len(actions_of(SweepState(), sweep(limits={"total": 6}))) == 6


def test_a_recorded_trial_without_a_job_is_submitted_again_and_not_planned_again() -> None:
    spec = sweep()
    state = SweepState((TrialRecord(number=0, parameters={"--x": 0.5}),))
    assert [type(action) for action in actions_of(state, spec)] == [Submit, PlanTrial]


def test_a_whole_sweep_ends_completed() -> None:
    world = World(sweep())
    finish = world.run()
    assert finish == Finish(JobState.COMPLETED, "6 completed, 0 stopped, 0 failed of 6 trials")
    assert world.most_at_once == 2
    assert [trial.state for trial in world.state.trials] == [TrialState.COMPLETED] * 6


def test_a_grid_smaller_than_the_total_ends_with_its_last_point() -> None:
    grid = {"type": "grid", "parameters": {"--x": ["choice", [[0.1, 0.2, 0.3]]]}}
    world = World(sweep(sampling=grid))
    assert world.run().state is JobState.COMPLETED
    assert [trial.parameters for trial in world.state.trials] == [
        {"--x": 0.1},
        {"--x": 0.2},
        {"--x": 0.3},
    ]


def test_the_policy_stops_a_trial_and_records_the_numbers() -> None:
    spec = sweep(policy={"type": "bandit", "slack_factor": 0.1})
    state = SweepState((running(0, 0.5, 0.701), running(1, 0.5, 0.612)))
    first, second = actions_of(state, spec)
    assert first == Judged(0, 2)
    reason = "stopped trial 1 at interval 2: 0.612 < 0.701/(1+0.1)"
    detail = "interval 2: 0.612 < 0.701/(1+0.1)"
    assert second == StopTrial(1, reason, 2, TrialCause.POLICY, detail)
    after = state.applied(first).applied(second)
    assert actions_of(after, spec) == ()  # the slot is taken until the job has really ended
    assert after.pending_stops == (second,)
    final = conclude(after.trials[1], JobState.CANCELED, spec)
    assert (final.state, final.reason) == (TrialState.CANCELED, reason)
    assert final.cause is TrialCause.POLICY and final.is_stopped_early


def test_an_interval_is_judged_once_however_much_is_reported_later() -> None:
    spec = sweep(policy={"type": "bandit", "slack_factor": 0.1})
    # Trial 1 passed interval 1 when it was alone; trial 0's first report came later.
    state = SweepState((running(0, 0.9, judged=1), running(1, 0.1, judged=1)))
    assert actions_of(state, spec) == ()
    # Its second report is good; judged again at its first, it would be stopped.
    state = state.with_trial(running(1, 0.1, 0.95, judged=1))
    assert actions_of(state, spec) == (Judged(1, 2),)


def test_reports_that_come_together_are_judged_one_by_one() -> None:
    spec = sweep(policy={"type": "bandit", "slack_factor": 0.1, "evaluation_interval": 2})
    state = SweepState((running(0, 0.5, 0.9, 0.9, judged=3), running(1, 0.5, 0.6, 0.95)))
    [stop] = actions_of(state, spec)
    reason = "stopped trial 1 at interval 2: 0.6 < 0.9/(1+0.1)"
    assert stop == StopTrial(1, reason, 2, TrialCause.POLICY, "interval 2: 0.6 < 0.9/(1+0.1)")


def test_misspelled_metric_fails_its_trials_and_the_sweep_continues() -> None:
    def script(parameters: Any) -> Any:
        reports, end, _ = good(parameters)
        bad = parameters["--x"] > 0.5
        return reports, end, ("acuracy", "loss") if bad else ("accuracy", "loss")

    world = World(sweep(), script)
    assert world.run().state is JobState.COMPLETED
    failed = [trial for trial in world.state.trials if trial.state is TrialState.FAILED]
    assert failed and len(failed) < 6
    assert failed[0].reason == (
        f"trial {failed[0].number} never reported the metric 'accuracy'; it reported: acuracy, "
        "loss. Did you mean 'acuracy'? Correct the sweep's metric, or the name in the script."
    )


def test_a_metric_that_no_trial_reports_ends_the_sweep_after_its_first_round() -> None:
    def script(parameters: Any) -> Any:
        return [], JobState.COMPLETED, ("acuracy", "loss")

    world = World(sweep(limits={"total": 50, "concurrent": 3}), script)
    finish = world.run()
    assert finish.state is JobState.FAILED
    assert finish.reason.startswith(
        "6 trials ran to their end, but none reported the metric 'accuracy' (they reported: "
        "acuracy, loss; did you mean 'acuracy'?), so they count as failed and the other "
        f"{50 - len(world.state.trials)} were not started: correct the sweep's metric, or the name "
        "in the script; 0 completed, "
    )
    assert len(world.state.trials) < 9


def test_finished_sweep_reports_no_remaining_trials() -> None:
    def script(parameters: Any) -> Any:
        return [], JobState.COMPLETED, ("acuracy",)

    finish = World(sweep(limits={"total": 6, "concurrent": 6}), script).run()
    assert finish.state is JobState.FAILED
    assert "so they count as failed: correct the sweep's metric" in finish.reason
    assert "not started" not in finish.reason
    assert finish.reason.endswith("0 completed, 0 stopped, 6 failed of 6 trials")


def lacking(number: int, *names: str) -> TrialRecord:
    trial = replace(running(number), metric_names=names)
    return conclude(trial, JobState.COMPLETED, sweep())


@pytest.mark.parametrize(
    ("logged", "others", "at_a_time", "is_over"),
    [
        (("loss",), [], 1, True),
        ((), [], 1, True),  # nothing at all was logged
        (("loss",), [], 6, False),  # not yet a round
        (("loss",), [running(5)], 5, True),
        (("loss",), [running(5, 0.5)], 1, False),
        (("loss",), [running(5, math.nan)], 1, False),
        (("loss",), [ended(5, TrialState.COMPLETED, 0.5)], 1, False),
        (("loss",), [ended(5, TrialState.CANCELED, 0.5)], 1, False),
        (("loss",), [ended(5, TrialState.FAILED, 0.5)], 1, False),
        (("loss",), [ended(5, TrialState.FAILED)], 6, False),  # a crash proves nothing
    ],
)
def test_when_a_missing_metric_ends_a_sweep(
    logged: tuple[str, ...], others: list[TrialRecord], at_a_time: int, is_over: bool
) -> None:
    spec = sweep(limits={"total": 50, "concurrent": at_a_time})
    five = [lacking(number, *logged) for number in range(5)]
    assert bool(SweepState((*five, *others)).halted(spec)) is is_over
    assert not SweepState(tuple(five[:4])).halted(spec)


def test_trial_without_reports_gets_a_remedy() -> None:
    trial = conclude(running(0), JobState.COMPLETED, sweep())
    assert trial.state is TrialState.FAILED
    assert "run.log('accuracy', value)" in trial.reason


def test_crashed_trials_are_counted_and_the_sweep_continues() -> None:
    def script(parameters: Any) -> Any:
        reports, _, names = good(parameters)
        crash = parameters["--x"] > 0.5
        return reports, JobState.FAILED if crash else JobState.COMPLETED, names

    world = World(sweep(limits={"total": 8, "concurrent": 3}), script)
    finish = world.run()
    assert finish.state is JobState.COMPLETED and len(world.state.trials) == 8
    best = best_trial(world.state.trials, PrimaryMetricGoal.MAXIMIZE)
    assert best is not None and best.parameters["--x"] <= 0.5


def test_exceeding_the_failure_limit_ends_the_sweep_and_its_trials() -> None:
    spec = sweep(limits={"total": 6, "concurrent": 2, "max_failures": 1})
    failed = (ended(0, TrialState.FAILED), ended(1, TrialState.FAILED))
    state = SweepState((*failed, running(2, 0.5)))
    reason = "stopped trial 2: 2 trials failed, more than max_failures, 1"
    detail = "2 trials failed, more than max_failures, 1"
    assert actions_of(state, spec) == (StopTrial(2, reason, 0, TrialCause.SWEEP_ENDED, detail),)
    over = state.with_trial(ended(2, TrialState.CANCELED))
    [finish] = actions_of(over, spec)
    assert finish.state is JobState.FAILED and "more than max_failures, 1" in finish.reason
    one = SweepState((ended(0, TrialState.FAILED), running(1)))
    assert [type(action) for action in actions_of(one, spec)] == [PlanTrial]


def test_a_sweep_in_which_no_trial_completes_fails() -> None:
    world = World(sweep(), lambda parameters: ([0.5], JobState.FAILED, ("accuracy",)))
    assert world.run() == Finish(JobState.FAILED, "0 completed, 0 stopped, 6 failed of 6 trials")


def test_when_the_time_is_up_running_trials_are_stopped_and_the_finished_ones_count() -> None:
    spec = sweep(limits={"total": 50, "concurrent": 2, "max_duration_s": 10})
    world = World(spec)
    finish = world.run()
    assert finish.state is JobState.COMPLETED and "the sweep's time is up" in finish.reason
    assert 2 <= len(world.state.trials) < 50
    assert all(trial.is_final for trial in world.state.trials)


def test_a_canceled_sweep_stops_everything_and_plans_nothing() -> None:
    planned = TrialRecord(number=1, parameters={"--x": 0.1})
    state = SweepState((running(0), planned), cancel_requested=True)
    spec = sweep()
    stops = actions_of(state, spec)
    assert [(type(stop), stop.number) for stop in stops] == [(StopTrial, 0), (StopTrial, 1)]
    for stop in stops:
        state = state.applied(stop)
    assert actions_of(state, spec) == ()
    state = state.with_trial(conclude(state.trials[0], JobState.CANCELED, spec))
    state = state.with_trial(conclude(state.trials[1], None, spec))
    [finish] = actions_of(state, spec)
    assert finish.state is JobState.CANCELED
    assert {trial.state for trial in state.trials} == {TrialState.CANCELED}
    assert {trial.cause for trial in state.trials} == {TrialCause.SWEEP_CANCELED}
    assert not any(trial.is_stopped_early for trial in state.trials)


def test_missing_metric_is_recognised_by_cause_not_by_wording() -> None:
    lacks = [replace(lacking(number), reason="in other words") for number in range(5)]
    spec = sweep(limits={"total": 50, "concurrent": 1})
    halt = SweepState(tuple(lacks)).halted(spec)
    assert halt is not None and halt.cause is TrialCause.SWEEP_ENDED
    crashed = [replace(one, cause=TrialCause.JOB, reason=lacking(3).reason) for one in lacks]
    assert SweepState(tuple(crashed)).halted(spec) is None


@pytest.mark.parametrize(
    ("state", "stopped_by", "message", "reason", "cause"),
    [
        (JobState.FAILED, None, "ValueError: no", "ValueError: no", TrialCause.JOB),
        (JobState.FAILED, None, "", "its job failed", TrialCause.JOB),
        (JobState.FAILED, TrialCause.POLICY, "ValueError: no", "ValueError: no", TrialCause.JOB),
        (JobState.FAILED, TrialCause.POLICY, "", "too slow", TrialCause.POLICY),
        (JobState.CANCELED, None, "canceled by ada", "canceled by ada", TrialCause.JOB),
        (JobState.CANCELED, None, "", "its job was canceled", TrialCause.JOB),
        (JobState.CANCELED, TrialCause.POLICY, "canceled", "too slow", TrialCause.POLICY),
        (None, TrialCause.SWEEP_ENDED, "", "too slow", TrialCause.SWEEP_ENDED),
        (JobState.COMPLETED, None, "", "", None),
    ],
)
def test_cause_and_reason_of_trial_describe_the_same_decision(
    state: JobState | None,
    stopped_by: TrialCause | None,
    message: str,
    reason: str,
    cause: TrialCause | None,
) -> None:
    trial = running(0, 0.5)
    if stopped_by is not None:
        trial = replace(trial, stop_requested=True, reason="too slow", cause=stopped_by)
    found = conclude(trial, state, sweep(), message=message)
    assert (found.reason, found.cause) == (reason, cause)


def test_a_trial_that_only_reported_nan_completes_and_is_never_the_best() -> None:
    world = World(sweep(), lambda p: ([math.nan, math.inf], JobState.COMPLETED, ("accuracy",)))
    assert world.run().state is JobState.COMPLETED
    assert best_trial(world.state.trials, PrimaryMetricGoal.MAXIMIZE) is None
    assert all(trial.diverged for trial in world.state.trials)


def test_a_final_trial_never_changes() -> None:
    state = SweepState((ended(0, TrialState.COMPLETED, 0.5),))
    with pytest.raises(SweepUsageError, match="never changes"):
        state.with_trial(running(0, 0.5))
    assert state.with_trial(state.trials[0]) == state


def test_a_table_with_a_gap_is_refused() -> None:
    with pytest.raises(SweepUsageError, match=r"holds \[0, 2\]"):
        SweepState((running(0), running(2)))


def test_unfinished_job_concludes_no_trial() -> None:
    with pytest.raises(SweepUsageError, match="wait for its end"):
        conclude(running(0), JobState.RUNNING, sweep())


samplings = st.sampled_from(
    [
        {"type": "random", "seed": 1, "parameters": {"--x": ["uniform", [0, 1]]}},
        {
            "type": "grid",
            "parameters": {"--x": ["choice", [[0.1, 0.3, 0.5, 0.7, 0.9]]], "y": ["choice", [1, 2]]},
        },
    ]
)
rules = st.sampled_from(
    [
        None,
        {"type": "bandit", "slack_factor": 0.2},
        {"type": "median"},
        {"type": "truncation", "truncation_percentage": 40},
        {"type": "asha", "max_intervals": 3, "reduction_factor": 2},
    ]
)


@settings(max_examples=25)
@given(
    samplings,
    rules,
    st.integers(1, 12),
    st.integers(1, 5),
    st.sets(st.integers(1, 250), max_size=12),
)
@pytest.mark.long
def test_after_any_crashes_no_finished_trial_is_repeated_and_none_is_lost(
    sampling: Any, policy: Any, total: int, concurrent: int, crashes: set[int]
) -> None:
    spec = sweep(
        sampling=sampling, policy=policy, limits={"total": total, "concurrent": concurrent}
    )
    world = World(spec, crashes=crashes)
    world.run()
    trials = world.state.trials
    assert len(trials) == spec.total  # missing=0
    assert all(trial.is_final for trial in trials)
    assert len(set(world.submissions)) == len(world.submissions) == spec.total  # repeated=0
    assert world.most_at_once <= concurrent
    sampler = spec.sampling.sampler(spec.goal)
    assert [trial.parameters for trial in trials] == [sampler.suggest(n) for n in range(spec.total)]
    for trial in trials:
        if trial.state is TrialState.COMPLETED:
            assert len(trial.values) == 3
        else:
            assert f"stopped trial {trial.number} at interval" in trial.reason
    if policy is None:
        assert all(trial.state is TrialState.COMPLETED for trial in trials)


@given(st.sets(st.integers(1, 80), max_size=8), st.integers(0, 2))
@pytest.mark.long
def test_crashes_do_not_affect_limits(crashes: set[int], allowed: int) -> None:
    spec = sweep(limits={"total": 9, "concurrent": 2, "max_failures": allowed})
    world = World(spec, lambda p: ([0.5], JobState.FAILED, ("accuracy",)), crashes)
    finish = world.run()
    assert finish.state is JobState.FAILED
    # Those that ran at the same time as the one too many may fail as well, no others.
    failed = world.state.count(TrialState.FAILED)
    assert allowed < failed <= allowed + 2
    assert len(world.submissions) == len(set(world.submissions)) <= allowed + 3


@pytest.mark.long
def test_a_bayesian_sweep_survives_two_crashes_without_repeating_a_trial() -> None:
    spec = sweep(
        sampling={"type": "bayesian", "seed": 3, "parameters": {"--x": ["uniform", [0, 1]]}},
        limits={"total": 12, "concurrent": 1},
    )
    calm, stormy = World(spec), World(spec, crashes={40, 90})
    calm.run()
    stormy.run()
    assert stormy.deaths == 2
    assert len(stormy.submissions) == len(set(stormy.submissions)) == 12
    chosen = [trial.parameters for trial in stormy.state.trials]
    assert chosen == [trial.parameters for trial in calm.state.trials]
    uninformed = spec.sampling.sampler(spec.goal)
    unlearnt = [uninformed.suggest(number) for number in range(12)]
    assert chosen[:10] == unlearnt[:10]  # Optuna's start-up trials are drawn at random
    assert all(parameters not in unlearnt for parameters in chosen[10:])
