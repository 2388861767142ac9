"""Policies as Ray Tune schedulers: the same decisions, each made once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies import (
    AshaPolicy,
    BanditPolicy,
    MedianStoppingPolicy,
    NoTerminationPolicy,
    Policy,
    TruncationSelectionPolicy,
)
from rayjobs.tuning.policies.asha import quantile
from rayjobs.tuning.trials import TrialRecord, TrialState
from rayjobs.tuning.tune.schedulers import scheduler_of
from rayjobs.tuning.tune.scheduling import TuneScheduler

MAX, MIN = PrimaryMetricGoal.MAXIMIZE, PrimaryMetricGoal.MINIMIZE

# interval      1     2     3     4
TABLE = {
    0: (0.50, 0.60, 0.65, 0.700),
    1: (0.40, 0.55, 0.66, 0.701),
    2: (0.30, 0.45, 0.58, 0.612),
    3: (0.52, 0.50, 0.51, 0.490),
}
POLICIES: list[Policy] = [
    BanditPolicy(slack_factor=0.1),
    BanditPolicy(2, slack_amount=0.1),
    MedianStoppingPolicy(),
    TruncationSelectionPolicy(50),
    AshaPolicy(9, 1, 3),
    NoTerminationPolicy(),
]


def running(number: int, *values: float, judged: int = 0, **changes: Any) -> TrialRecord:
    fields = {"state": TrialState.RUNNING, "values": values, "judged": judged, **changes}
    return TrialRecord(number=number, parameters={}, **fields)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_every_policy_is_a_scheduler_of_tunes(policy: Policy) -> None:
    assert isinstance(scheduler_of(policy, MAX), TrialScheduler)
    assert isinstance(scheduler_of(AshaPolicy(), MAX), AsyncHyperBandScheduler)


@pytest.mark.parametrize("policy", POLICIES[:4], ids=lambda policy: policy.kind)
@pytest.mark.parametrize("interval", [1, 2, 3, 4])
def test_tune_decision_matches_the_policy(policy: Policy, interval: int) -> None:
    # Every trial was continued before, so that each one is judged only at the interval.
    table = [
        running(number, *values[:interval], judged=interval - 1) for number, values in TABLE.items()
    ]
    decisions = {verdict.trial: verdict.stop for verdict in TuneScheduler(policy, MAX).judge(table)}
    history = {number: list(values) for number, values in TABLE.items()}
    assert decisions == {n: policy.judge(history, n, interval, goal=MAX) for n in TABLE}


def test_asha_stops_a_trial_that_comes_to_a_rung_below_its_limit() -> None:
    # In order of number.  rung 1: .50 first; .40 < .50; .30 < q(2/3 of .40 .50) = .4667;
    #                              .52 > q(.30 .40 .50) = .4333
    #                       rung 3: .65 first; .51 < .65
    scheduler = TuneScheduler(AshaPolicy(9, 1, 3), MAX)
    at_one = [running(number, values[0]) for number, values in TABLE.items()]
    first = scheduler.judge(at_one)
    assert [verdict.stop is not None for verdict in first] == [False, True, True, False]
    assert first[2].stop is not None
    assert first[2].stop.reason == (
        "stopped trial 2 at interval 1: 0.3 < 0.466667, the limit of the best 1/3 of 2 others "
        "at this rung"
    )
    assert scheduler.judge(at_one) == first
    stopped = {"stop_requested": True}
    at_three = [
        running(0, *TABLE[0][:3], judged=1),
        running(1, *TABLE[1][:1], judged=1, **stopped),
        running(2, *TABLE[2][:1], judged=1, **stopped),
        running(3, *TABLE[3][:3], judged=1),
    ]
    zero, three = scheduler.judge(at_three)
    assert (zero.trial, zero.stop, zero.intervals) == (0, None, 3)
    assert three.stop is not None and three.stop.interval == three.intervals == 3
    # A driver that takes over is given the table alone, and decides the same.
    assert TuneScheduler(AshaPolicy(9, 1, 3), MAX).judge(at_three) == (zero, three)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_a_judged_report_is_never_judged_again(policy: Policy) -> None:
    table = [running(number, *values, judged=4) for number, values in TABLE.items()]
    assert TuneScheduler(policy, MAX).judge(table) == ()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_trial_passed_by_an_earlier_driver_is_not_stopped_by_the_next(policy: Policy) -> None:
    # Trial 1 reported first and was continued; trial 0 came later and is better.
    table = [running(0, 0.9, judged=1), running(1, 0.1, 0.95, judged=1)]
    [verdict] = TuneScheduler(policy, MAX).judge(table)
    assert (verdict.trial, verdict.intervals, verdict.stop) == (1, 2, None)


def test_stateless_policies_judge_only_new_reports() -> None:
    calls: list[tuple[int, int]] = []

    class Counting(MedianStoppingPolicy):
        def judge(self, history: Any, trial: int, interval: int, **rest: Any) -> Any:
            calls.append((trial, interval))

    old = [running(n, *[0.5] * 50, judged=50) for n in range(20)]
    over = running(20, *[0.1] * 50, state=TrialState.COMPLETED)
    scheduler = TuneScheduler(Counting(), MAX)
    scheduler.judge([*old, over, running(21, *[0.4] * 51, judged=50)])
    assert calls == [(21, 51)]


def test_reports_of_ended_and_stopped_trials_count_and_are_not_judged() -> None:
    for changes in ({"state": TrialState.COMPLETED}, {"stop_requested": True}):
        old = running(0, 0.9, 0.9, **changes)
        for policy in (BanditPolicy(slack_factor=0.1), AshaPolicy(9, 1, 3)):
            [verdict] = TuneScheduler(policy, MAX).judge([old, running(1, 0.1)])
            assert (verdict.trial, verdict.intervals) == (1, 1)
            assert verdict.stop is not None and "interval 1: 0.1 <" in verdict.stop.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("goal", [MAX, MIN])
def test_non_finite_report_sets_no_rung_limit(goal: PrimaryMetricGoal, bad: float) -> None:
    first, second, third = TuneScheduler(AshaPolicy(9, 1, 3), goal).judge(
        [running(0, bad), running(1, 0.5), running(2, bad)]
    )
    assert first.stop is None and second.stop is None
    assert third.stop is not None and third.stop.own is None
    assert "does not meet 0.5" in third.stop.reason


@given(
    st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=9), min_size=1, max_size=8),
    st.sampled_from([2, 2.5, 3, 4]),
    st.sampled_from([MAX, MIN]),
)
@pytest.mark.long
def test_tunes_asha_is_the_policys_rule(
    reports: list[list[float]], factor: float, goal: PrimaryMetricGoal
) -> None:
    policy = AshaPolicy(9, 1, factor)
    scheduler = TuneScheduler(policy, goal)
    table: list[TrialRecord] = []
    for number, values in enumerate(reports):
        table.append(running(number, *values))
        [verdict] = scheduler.judge(table)
        history = {trial.number: trial.values for trial in table}
        expected = None
        for interval in policy.rungs:
            others = [
                goal.sign * one.values[interval - 1]
                for one in table[:-1]
                if len(one.values) >= interval
            ]
            if others and len(values) >= interval:
                gap = goal.sign * values[interval - 1] - quantile(others, 1 - 1 / factor)
                assume(abs(gap) > 1e-9)  # else rounding would decide
            expected = expected or policy.judge(history, number, interval, goal=goal)
        assert verdict.stop == expected
        judged = replace(table[-1], judged=len(values), stop_requested=expected is not None)
        table[-1] = judged
