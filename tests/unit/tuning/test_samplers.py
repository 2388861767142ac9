"""Samplers: what they accept, their order, and that a restart changes nothing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.expressions import choice, loguniform, normal, quniform, randint, uniform
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.samplers import (
    BayesianParameterSampling,
    GridParameterSampling,
    RandomParameterSampling,
    Sampler,
    Sampling,
    parse_sampling,
)
from rayjobs.tuning.trials import TrialRecord, TrialState

MAX, MIN = PrimaryMetricGoal.MAXIMIZE, PrimaryMetricGoal.MINIMIZE
RANDOM_SPACE = {
    "--lr": loguniform(-9, -2),
    "batch-size": choice(16, 32),
    "--x": randint(5),
}
BAYESIAN_SPACE = {"--x": uniform(-4, 4), "n": quniform(1, 10, 3), "opt": choice("a", "b")}


def done(number: int, parameters: dict[str, Any], value: float) -> TrialRecord:
    return TrialRecord(
        number=number, parameters=parameters, state=TrialState.COMPLETED, values=(value,)
    )


@pytest.mark.parametrize(
    "sampling",
    [
        RandomParameterSampling({"--lr": loguniform(-9, -2)}, {"seed": 4}),
        GridParameterSampling({"a": choice(1, 2), "b": choice("x", "y")}),
        BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 1, "algorithm": "gp"}),
    ],
)
def test_a_sampling_survives_json_and_pickle(sampling: Sampling) -> None:
    assert parse_sampling(json.loads(json.dumps(sampling.to_dict()))) == sampling
    assert pickle.loads(pickle.dumps(sampling)) == sampling


def test_a_seed_is_drawn_once_and_recorded() -> None:
    sampling = RandomParameterSampling({"x": uniform(0, 1)})
    assert sampling.to_dict()["seed"] == sampling.seed
    again = parse_sampling(sampling.to_dict())
    assert again.sampler(MAX).suggest(5) == sampling.sampler(MAX).suggest(5)


def test_a_trials_parameters_depend_on_seed_and_number_alone() -> None:
    sampling = RandomParameterSampling(RANDOM_SPACE, {"seed": 3})
    forward = [sampling.sampler(MAX).suggest(number) for number in range(20)]
    backwards = sampling.sampler(MAX)
    assert forward == [backwards.suggest(number) for number in reversed(range(20))][::-1]
    assert len({str(parameters) for parameters in forward}) == 20
    other = RandomParameterSampling(RANDOM_SPACE, {"seed": 4})
    assert other.sampler(MAX).suggest(0) != forward[0]


def test_a_parameter_added_later_leaves_the_others_as_they_were() -> None:
    before = RandomParameterSampling(RANDOM_SPACE, {"seed": 3}).sampler(MAX).suggest(2)
    more = RandomParameterSampling({"new": uniform(0, 1), **RANDOM_SPACE}, {"seed": 3})
    after = more.sampler(MAX).suggest(2)
    assert before and after and {key: after[key] for key in before} == before


@pytest.mark.long
def test_draws_are_the_same_in_another_process() -> None:
    code = (
        "from rayjobs.tuning import PrimaryMetricGoal, RandomParameterSampling, loguniform;"
        "sampling = RandomParameterSampling({'--lr': loguniform(-9, -2)}, {'seed': 3});"
        "print(sampling.sampler(PrimaryMetricGoal.MAXIMIZE).suggest(1))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    ).stdout
    here = RandomParameterSampling({"--lr": loguniform(-9, -2)}, {"seed": 3})
    assert printed.strip().endswith(str(here.sampler(MAX).suggest(1)))


def test_a_grid_larger_than_memory_is_begun_at_once() -> None:
    space = {f"p{number}": choice(range(50)) for number in range(12)}
    sampling = GridParameterSampling(space)
    assert sampling.size == 50**12
    assert list((sampling.sampler(MAX).suggest(51) or {}).values())[-3:] == [0, 1, 1]


def test_a_grid_goes_through_every_point_once_last_parameter_fastest() -> None:
    sampling = GridParameterSampling({"a": choice(1, 2), "--b": choice("x", "y", "z")})
    sampler = sampling.sampler(MAX)
    points = [sampler.suggest(number) for number in range(6)]
    assert [tuple(point.values()) for point in points if point] == [
        (1, "x"),
        (1, "y"),
        (1, "z"),
        (2, "x"),
        (2, "y"),
        (2, "z"),
    ]
    assert list(points[0] or {}) == ["a", "--b"]
    assert sampling.size == 6
    assert sampler.suggest(6) is None


def test_a_grid_tries_a_repeated_option_once_and_keeps_1_and_true_apart() -> None:
    sampling = GridParameterSampling({"a": choice(1, 1, True, 1.0)})
    sampler = sampling.sampler(MAX)
    assert [repr(sampler.suggest(number)) for number in range(4)] == [
        "{'a': 1}",
        "{'a': True}",
        "{'a': 1.0}",
        "None",
    ]


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        (lambda: GridParameterSampling({"lr": uniform(0, 1)}), "parameters.lr", "grid"),
        (lambda: BayesianParameterSampling({"s": normal(0, 1)}), "parameters.s", "normal"),
        (lambda: BayesianParameterSampling({"s": loguniform(0, 1)}), "parameters.s", "loguniform"),
        (lambda: BayesianParameterSampling({"c": choice(1, "a")}), "parameters.c", "all text or"),
        (lambda: BayesianParameterSampling({"c": choice([[1]])}), "parameters.c", "all text or"),
        (lambda: BayesianParameterSampling({"q": quniform(0.5, 3, 1)}), "parameters.q", "whole"),
        (
            lambda: BayesianParameterSampling({"q": quniform(0, 100_000, 1)}),
            "parameters.q",
            "100001 points",
        ),
        (
            lambda: BayesianParameterSampling({"x": uniform(0, 1)}, {"algorithm": "magic"}),
            "properties.algorithm",
            "tpe, gp",
        ),
        (lambda: RandomParameterSampling({}), "parameters", "empty"),
        (lambda: RandomParameterSampling({"x": 1}, {"seed": -1}), "properties.seed", "≥ 0"),
        (
            lambda: RandomParameterSampling({"x": uniform(0, 1)}, {"sobol": True}),
            "properties.sobol",
            "no property",
        ),
    ],
)
def test_invalid_sampling_settings_are_refused(make: Any, path: str, message: str) -> None:
    with pytest.raises(SweepError, match=message) as caught:
        make()
    assert path in [problem.path for problem in caught.value.problems]


def test_a_quniform_of_exactly_100000_points_is_taken() -> None:
    assert BayesianParameterSampling({"q": quniform(0, 99_999, 1)}).kind == "bayesian"


def test_bayesian_sampling_advises_enough_trials_and_few_at_a_time() -> None:
    sampling = BayesianParameterSampling({"x": uniform(0, 1), "y": uniform(0, 1)})
    assert sampling.advice(40, 20) == ()
    few, many = sampling.advice(39, 21)
    assert "40 trials" in few and "21 trials" in many


class TestBayesian:
    """Optuna through Tune's searcher, without a cluster."""

    def run(self, sampler: Sampler, records: list[TrialRecord], count: int) -> None:
        """Continue from `records`, two trials at a time, with a known function; append to them."""
        while len(records) < count:
            numbers = range(len(records), min(len(records) + 2, count))
            suggested = {number: sampler.suggest(number) for number in numbers}
            for number, parameters in suggested.items():
                assert parameters is not None
                value = -((parameters["--x"] - 1) ** 2)
                records.append(done(number, parameters, value))
                sampler.tell(number, value)

    @pytest.mark.long
    def test_a_restart_at_any_point_changes_no_suggestion(self) -> None:
        sampling = BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 5})
        whole: list[TrialRecord] = []
        self.run(sampling.sampler(MAX), whole, 18)
        for cut in (2, 12, 16):
            records = whole[:cut]
            fresh = sampling.sampler(MAX)
            fresh.replay(json_round_trip(records))
            self.run(fresh, records, 18)
            assert [r.parameters for r in records] == [r.parameters for r in whole]

    def test_trials_that_start_together_differ(self) -> None:
        sampler = BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 5}).sampler(MAX)
        first = {number: sampler.suggest(number) for number in range(20)}
        assert len({str(parameters) for parameters in first.values()}) == 20
        assert {number: sampler.suggest(number) for number in range(20)} == first

    def test_a_running_trial_is_replayed_too(self) -> None:
        sampling = BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 6})
        sampler = sampling.sampler(MAX)
        records: list[TrialRecord] = []
        self.run(sampler, records, 12)
        running = TrialRecord(
            number=12, parameters=sampler.suggest(12) or {}, state=TrialState.RUNNING
        )
        fresh = sampling.sampler(MAX)
        fresh.replay([*records, running])
        assert fresh.suggest(12) == running.parameters
        assert fresh.suggest(13) == sampler.suggest(13)

    @pytest.mark.long
    def test_sampler_learns_and_stays_within_the_space(self) -> None:
        records: list[TrialRecord] = []
        sampling = BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 2})
        self.run(sampling.sampler(MAX), records, 40)
        assert all(set(r.parameters) == set(BAYESIAN_SPACE) for r in records)
        assert {r.parameters["n"] for r in records} <= {0, 3, 6, 9}
        assert {r.parameters["opt"] for r in records} == {"a", "b"}
        early = [abs(r.parameters["--x"] - 1) for r in records[:10]]
        late = [abs(r.parameters["--x"] - 1) for r in records[-10:]]
        assert sum(late) < sum(early)

    def test_trials_without_a_result_and_nan_are_reported_and_harm_nothing(self) -> None:
        sampling = BayesianParameterSampling({"a/b": uniform(0, 1)}, {"seed": 3})
        sampler = sampling.sampler(MIN)
        for number, value in enumerate([None, float("nan"), float("inf"), 0.5]):
            assert sampler.suggest(number)
            sampler.tell(number, value)
            sampler.tell(number, 0.1)  # reported again: nothing changes
        assert set(sampler.suggest(4) or {}) == {"a/b"}

    @pytest.mark.long
    def test_the_gaussian_process_is_reproducible_as_well(self) -> None:
        sampling = BayesianParameterSampling(BAYESIAN_SPACE, {"seed": 5, "algorithm": "gp"})
        records: list[TrialRecord] = []
        sampler = sampling.sampler(MAX)
        self.run(sampler, records, 11)
        fresh = sampling.sampler(MAX)
        fresh.replay(records)
        assert fresh.suggest(11) == sampler.suggest(11)


def json_round_trip(records: list[TrialRecord]) -> list[TrialRecord]:
    """Return the records with parameters as a store would return them."""
    return [
        done(r.number, json.loads(json.dumps(dict(r.parameters))), r.values[0]) for r in records
    ]
