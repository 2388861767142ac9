"""Early termination policies against tables computed by hand, and what holds for all of them."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies import (
    AshaPolicy,
    BanditPolicy,
    MedianStoppingPolicy,
    NoTerminationPolicy,
    Policy,
    TruncationSelectionPolicy,
    parse_policy,
)
from rayjobs.tuning.policies.asha import quantile

MAX, MIN = PrimaryMetricGoal.MAXIMIZE, PrimaryMetricGoal.MINIMIZE
NAN, INF = math.nan, math.inf

# interval      1     2     3     4
TABLE = {
    0: [0.50, 0.60, 0.65, 0.700],
    1: [0.40, 0.55, 0.66, 0.701],
    2: [0.30, 0.45, 0.58, 0.612],
    3: [0.52, 0.50, 0.51, 0.490],
}
LOSSES = {0: [1.00, 0.80, 0.60], 1: [1.05, 0.90, 0.67], 2: [1.20, 0.85, 0.65]}


def stopped(
    policy: Policy,
    history: dict[int, list[float]],
    goal: PrimaryMetricGoal = MAX,
    finished: frozenset[int] = frozenset(),
) -> dict[int, set[int]]:
    """Return interval → trials that the policy stops there."""
    longest = max(len(values) for values in history.values())
    return {
        interval: {
            trial
            for trial in history
            if policy.judge(history, trial, interval, goal=goal, finished=finished)
        }
        for interval in range(1, longest + 1)
    }


def test_bandit_with_a_factor() -> None:
    # leader      0.52  0.60  0.66  0.701
    # /1.1        0.473 0.545 0.600 0.637
    # best of 2   0.30  0.45  0.58  0.612;  of 3: 0.52 throughout;  of 1: 0.40 0.55 …
    assert stopped(BanditPolicy(slack_factor=0.1), TABLE) == {
        1: {1, 2},
        2: {2, 3},
        3: {2, 3},
        4: {2, 3},
    }


def test_bandit_with_an_amount() -> None:
    # leader-0.1  0.42  0.50  0.56  0.601
    assert stopped(BanditPolicy(slack_amount=0.1), TABLE) == {1: {1, 2}, 2: {2}, 3: {3}, 4: {3}}


def test_bandit_mirrors_for_minimising() -> None:
    # leader      1.00  0.80  0.60;   *1.1: 1.10 0.88 0.66;   +0.06: 1.06 0.86 0.66
    assert stopped(BanditPolicy(slack_factor=0.1), LOSSES, MIN) == {1: {2}, 2: {1}, 3: {1}}
    assert stopped(BanditPolicy(slack_amount=0.06), LOSSES, MIN) == {1: {2}, 2: {1}, 3: {1}}


def test_bandits_slack_is_on_the_worse_side_of_a_negative_leader() -> None:
    history = {0: [-1.0], 1: [-1.05], 2: [-1.2]}
    assert stopped(BanditPolicy(slack_factor=0.1), history, MAX) == {1: {2}}
    stop = BanditPolicy(slack_factor=0.1).judge(history, 2, 1, goal=MAX)
    assert stop and stop.reason == "stopped trial 2 at interval 1: -1.2 < -1*(1+0.1)"
    history = {0: [-1.0], 1: [-0.95], 2: [-0.9]}  # -1/1.1 = -0.909
    assert stopped(BanditPolicy(slack_factor=0.1), history, MIN) == {1: {2}}


def test_value_exactly_at_the_bandit_limit_continues() -> None:
    assert stopped(BanditPolicy(slack_amount=0.25), {0: [1.0], 1: [0.75]}) == {1: set()}
    assert stopped(BanditPolicy(slack_factor=0), {0: [1.0], 1: [1.0]}) == {1: set()}


def test_reasons_contain_the_numbers() -> None:
    history = {1: TABLE[1], 7: TABLE[2]}
    stop = BanditPolicy(slack_factor=0.1).judge(history, 7, 4, goal=MAX)
    assert stop and stop.reason == "stopped trial 7 at interval 4: 0.612 < 0.701/(1+0.1)"
    assert stop.own == 0.612 and stop.threshold == pytest.approx(0.637, abs=1e-3)
    stop = BanditPolicy(slack_amount=0.05).judge(LOSSES, 1, 3, goal=MIN)
    assert stop and stop.reason == "stopped trial 1 at interval 3: 0.67 > 0.6+0.05"
    stop = MedianStoppingPolicy().judge(TABLE, 3, 4, goal=MAX)
    assert stop and stop.reason == (
        "stopped trial 3 at interval 4: 0.52 < 0.541375, the median of 4 running averages"
    )
    stop = TruncationSelectionPolicy(25).judge(TABLE, 3, 4, goal=MAX)
    assert stop and stop.reason == (
        "stopped trial 3 at interval 4: 0.52 < 0.612, among the worst 1 of 4 (25 %)"
    )
    stop = AshaPolicy(9, 1, 3).judge(TABLE, 2, 1, goal=MAX)
    assert stop and stop.reason == (
        "stopped trial 2 at interval 1: 0.3 < 0.506667, the limit of the best 1/3 of 3 others "
        "at this rung"
    )


def test_median_compares_the_best_with_the_median_of_running_averages() -> None:
    # running averages over 1…N           sorted median
    # 1: 0.5    0.4     0.3     0.52      0.45
    # 2: 0.55   0.475   0.375   0.51      0.4925
    # 3: 0.5833 0.5367  0.4433  0.51      0.5233
    # 4: 0.6125 0.57775 0.4855  0.505     0.541375
    assert stopped(MedianStoppingPolicy(), TABLE) == {1: {1, 2}, 2: {2}, 3: {3}, 4: {3}}


def test_median_mirrors_for_minimising() -> None:
    negated = {trial: [-value for value in values] for trial, values in TABLE.items()}
    assert stopped(MedianStoppingPolicy(), negated, MIN) == stopped(MedianStoppingPolicy(), TABLE)


def test_median_counts_a_younger_trial_with_the_reports_it_has() -> None:
    # averages 0.55 and 0.9, median 0.725; trial 0's best is 0.6
    assert MedianStoppingPolicy().judge({0: [0.5, 0.6], 1: [0.9]}, 0, 2, goal=MAX)
    assert not MedianStoppingPolicy().judge({0: [0.5, 0.6], 1: []}, 0, 2, goal=MAX)


def test_truncation_stops_the_worst_share() -> None:
    # best so far   1: .50 .40 .30 .52     2: .60 .55 .45 .52
    #               3: .65 .66 .58 .52     4: .70 .701 .612 .52
    quarter = {1: {2}, 2: {2}, 3: {3}, 4: {3}}
    half = {1: {1, 2}, 2: {2, 3}, 3: {2, 3}, 4: {2, 3}}
    assert stopped(TruncationSelectionPolicy(25), TABLE) == quarter
    assert stopped(TruncationSelectionPolicy(50), TABLE) == half
    # 20 % of 4 is less than one trial
    assert stopped(TruncationSelectionPolicy(20), TABLE) == {1: set(), 2: set(), 3: set(), 4: set()}


def test_truncation_mirrors_for_minimising() -> None:
    # best so far  1: 1.00 1.05 1.20    2: 0.80 0.90 0.85    3: 0.60 0.67 0.65;  34 % of 3 is one
    assert stopped(TruncationSelectionPolicy(34), LOSSES, MIN) == {1: {2}, 2: {1}, 3: {1}}


def test_truncation_compares_a_young_trial_with_the_others_at_its_age() -> None:
    old = {0: [0.1, 0.9], 1: [0.2, 0.8], 2: [0.3, 0.7], 3: [0.4, 0.6]}
    assert not TruncationSelectionPolicy(20).judge({**old, 4: [0.15]}, 4, 1, goal=MAX)
    assert TruncationSelectionPolicy(20).judge({**old, 4: [0.05]}, 4, 1, goal=MAX)
    # Trials with fewer reports are not peers: two remain, and 20 % of two is none.
    few = {0: [0.1], 1: [0.2], 2: [0.3], 3: [0.4, 0.9], 4: [0.1, 0.1]}
    assert not TruncationSelectionPolicy(20).judge(few, 4, 2, goal=MAX)


def test_truncation_can_leave_finished_trials_out() -> None:
    policy = TruncationSelectionPolicy(50, exclude_finished_jobs=True)
    assert stopped(policy, {t: TABLE[t] for t in (0, 1, 2)}, MAX, frozenset({0})) == {
        1: {2},
        2: {2},
        3: {2},
        4: {2},
    }
    both = TruncationSelectionPolicy(50).judge(TABLE, 2, 4, goal=MAX, finished=frozenset({3}))
    without = policy.judge(TABLE, 2, 4, goal=MAX, finished=frozenset({3}))
    assert both and "the worst 2 of 4" in both.reason
    assert without and "the worst 1 of 3" in without.reason


def test_truncation_keeps_trials_that_share_the_value_at_the_limit() -> None:
    equal = {number: [0.5] for number in range(4)}
    assert stopped(TruncationSelectionPolicy(50), equal) == {1: set()}


def test_asha_compares_at_rungs_only() -> None:
    # rung 1, the others' 2/3 quantile: trial 0: .44, 1: .5067, 2: .5067, 3: .4333
    # rung 3: trial 0: .6067 of (.51 .58 .66), 1: .6033, 2: .6533, 3: .6533
    policy = AshaPolicy(max_intervals=9, grace_intervals=1, reduction_factor=3)
    assert policy.rungs == (1, 3)
    assert stopped(policy, TABLE) == {1: {1, 2}, 2: set(), 3: {2, 3}, 4: set()}


def test_asha_continues_the_first_arrival_and_ends_no_trial_at_the_maximum() -> None:
    policy = AshaPolicy(max_intervals=4, grace_intervals=2, reduction_factor=2)
    assert policy.rungs == (2,)
    assert not policy.judge({0: [0.1, 0.1], 1: [0.9]}, 0, 2, goal=MAX)
    assert not policy.judge({0: [0.1] * 4, 1: [0.9] * 4}, 0, 4, goal=MAX)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.floats(0, 1))
@pytest.mark.long
def test_ashas_quantile_is_numpys(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(
        float(numpy.percentile(values, share * 100)), abs=1e-9
    )


def test_no_termination_stops_nothing() -> None:
    assert not any(stopped(NoTerminationPolicy(), TABLE).values())


@pytest.mark.parametrize(
    ("every", "delay", "at"),
    [
        (1, 0, {1, 2, 3, 4, 5, 6}),
        (2, 0, {2, 4, 6}),
        (1, 5, {5, 6}),
        (2, 3, {4, 6}),
        (2, 4, {4, 6}),
    ],
)
def test_policies_apply_at_multiples_from_the_delay_on(
    every: int, delay: int, at: set[int]
) -> None:
    history = {0: [0.9] * 6, 1: [0.1] * 6}
    for policy in (
        BanditPolicy(every, slack_factor=0.1, delay_evaluation=delay),
        MedianStoppingPolicy(every, delay),
        TruncationSelectionPolicy(50, every, delay),
    ):
        found = stopped(policy, history)
        assert {interval for interval, trials in found.items() if trials} == at


def test_constructors_take_azure_mls_positions() -> None:
    assert BanditPolicy(2, 0.1) == BanditPolicy(evaluation_interval=2, slack_factor=0.1)
    assert BanditPolicy(2, None, 0.1, 5).delay_evaluation == 5
    assert MedianStoppingPolicy(1, 5).delay_evaluation == 5
    assert TruncationSelectionPolicy(20, 1, 5).truncation_percentage == 20


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "policy",
    [
        BanditPolicy(slack_factor=0.1),
        MedianStoppingPolicy(),
        TruncationSelectionPolicy(50),
        AshaPolicy(9, 1, 3),
    ],
)
def test_a_report_that_is_not_finite_never_leads_and_a_diverged_trial_is_stopped(
    policy: Policy, bad: float
) -> None:
    for goal in (MAX, MIN):
        history = {0: [0.5], 1: [bad]}
        assert not policy.judge(history, 0, 1, goal=goal)
        stop = policy.judge(history, 1, 1, goal=goal)
        assert stop and stop.own is None and "stopped trial 1 at interval 1" in stop.reason
        assert not policy.judge({0: [bad], 1: [bad]}, 0, 1, goal=goal)
        assert not policy.judge({0: [bad]}, 0, 1, goal=goal)


def test_one_nan_between_good_reports_costs_nothing() -> None:
    history = {0: [0.5, 0.6, 0.7], 1: [0.5, NAN, 0.69]}
    assert not BanditPolicy(slack_factor=0.1).judge(history, 1, 3, goal=MAX)
    assert not MedianStoppingPolicy().judge(history, 1, 3, goal=MAX)
    # It still is a report: interval 3 is its third one.
    assert not BanditPolicy(slack_factor=0.1).judge(history, 1, 4, goal=MAX)


values = st.floats(allow_nan=True, allow_infinity=True, width=32)
histories = st.dictionaries(st.integers(0, 6), st.lists(values, max_size=6), min_size=1, max_size=6)
policies: st.SearchStrategy[Policy] = st.one_of(
    st.builds(BanditPolicy, st.integers(1, 3), slack_factor=st.floats(0, 2)),
    st.builds(BanditPolicy, st.integers(1, 3), slack_amount=st.floats(0, 2)),
    st.builds(MedianStoppingPolicy, st.integers(1, 3), st.integers(0, 3)),
    st.builds(TruncationSelectionPolicy, st.integers(1, 99), st.integers(1, 3)),
    st.builds(AshaPolicy, st.integers(4, 9), st.integers(1, 3), st.integers(2, 4)),
)


@given(policies, histories, st.sampled_from([MAX, MIN]), st.integers(1, 6))
@pytest.mark.long
def test_some_trial_always_continues_and_later_reports_change_nothing(
    policy: Policy, history: dict[int, list[float]], goal: PrimaryMetricGoal, interval: int
) -> None:
    judged = {trial: policy.judge(history, trial, interval, goal=goal) for trial in history}
    cut = {trial: reports[:interval] for trial, reports in history.items()}
    for trial, stop in judged.items():
        assert policy.judge(cut, trial, interval, goal=goal) == stop
        if stop:
            assert f"trial {trial} at interval {interval}:" in stop.reason
    if isinstance(policy, BanditPolicy | TruncationSelectionPolicy):
        ranked = [(goal.best(reports), trial) for trial, reports in cut.items()]
        best = goal.best(value for value, _ in ranked if value is not None)
        assert not any(judged[trial] for value, trial in ranked if value == best)


@given(policies)
@pytest.mark.long
def test_a_policy_survives_json_and_pickle(policy: Policy) -> None:
    assert parse_policy(json.loads(json.dumps(policy.to_dict()))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"type": "bandit"}, "slack_factor", "neither"),
        ({"type": "bandit", "slack_factor": 1, "slack_amount": 1}, "slack_factor", "both"),
        ({"type": "bandit", "slack_factor": -0.1}, "slack_factor", "0 or more"),
        ({"type": "bandit", "slack_factor": "0.1"}, "slack_factor", "Give a number"),
        ({"type": "median", "evaluation_interval": 0}, "evaluation_interval", "1 or more"),
        ({"type": "median", "delay_evaluation": -1}, "delay_evaluation", "0 or more"),
        ({"type": "truncation"}, "truncation_percentage", "needs"),
        ({"type": "truncation", "truncation_percentage": 0}, "truncation_percentage", "1 … 99"),
        ({"type": "truncation", "truncation_percentage": 100}, "truncation_percentage", "1 … 99"),
        ({"type": "truncation", "truncation_percentage": 2.5}, "truncation_percentage", "1 … 99"),
        ({"type": "asha", "reduction_factor": 1}, "reduction_factor", "above 1"),
        ({"type": "asha", "max_intervals": 2, "grace_intervals": 2}, "grace_intervals", "nothing"),
        ({"type": "median", "slack": 1}, "slack", "no setting"),
        ({"type": "medain"}, "type", "Did you mean 'median'"),
        (3, "", "mapping"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(data: Any, path: str, message: str) -> None:
    with pytest.raises(SweepError, match=message) as caught:
        parse_policy(data)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_no_policy_means_no_termination() -> None:
    assert parse_policy(None) == parse_policy("none") == NoTerminationPolicy()


def test_median_of_values_whose_sum_is_not_finite() -> None:
    table = {0: [1.0, 1.0], 1: [1e308, 1.5e308]}
    stop = MedianStoppingPolicy().judge(table, 1, 2, goal=MIN)
    assert stop is not None and math.isfinite(stop.threshold)
    assert MedianStoppingPolicy().judge(table, 0, 2, goal=MIN) is None
    both = {0: [1e308, 1e308], 1: [1.2e308, 1.2e308]}
    stop = MedianStoppingPolicy().judge(both, 1, 2, goal=MIN)
    assert stop is not None and stop.threshold == 1.1e308
