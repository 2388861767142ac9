"""Optuna's TPE and Gaussian process through Ray Tune's OptunaSearch, made repeatable.

Imports Ray Tune and Optuna, so it is imported on first use alone. No cluster is needed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tuning.errors import TuningDependencyError
from tuning.expressions import Choice, Expression, QUniform, Uniform
from tuning.goal import PrimaryMetricGoal
from tuning.space import SearchSpace
from tuning.trials import TrialRecord

try:
    import optuna
    from ray.tune.search.optuna import OptunaSearch
except ImportError as exc:
    raise TuningDependencyError("Bayesian sampling", "optuna", "bayes") from exc

_METRIC = "objective"

# Optuna writes a line to stderr for every study and trial; a sweep's records say it all.
logging.getLogger("optuna").setLevel(logging.WARNING)


class OptunaSampler:
    """The `Sampler` of `BayesianParameterSampling`.

    A suggestion is a function of the seed, the trial's number and what was told before: for
    every suggestion Optuna's sampler is made anew with a seed of its own, and a recorded trial
    is replayed through the same calls with its recorded parameters put in. So a driver that
    was killed loses nothing.
    """

    def __init__(
        self, space: SearchSpace, *, goal: PrimaryMetricGoal, seed: int, algorithm: str
    ) -> None:
        self._space = space
        self._goal = goal
        # Names of our own: keys may hold "/", which OptunaSearch takes for nesting.
        self._names = {f"p{position}": key for position, key in enumerate(space)}
        self._steered = _SteeredSampler(seed=seed, algorithm=algorithm)
        self._search = OptunaSearch(
            {name: _distribution(space[key]) for name, key in self._names.items()},
            metric=_METRIC,
            mode="max" if goal is PrimaryMetricGoal.MAXIMIZE else "min",
            sampler=self._steered,
        )
        self._suggested: dict[int, dict[str, Any]] = {}
        self._told: set[int] = set()

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial; never None."""
        if trial_number not in self._suggested:
            self._ask(trial_number, None)
        return dict(self._suggested[trial_number])

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn a result; None, NaN and infinities count as a trial without one."""
        if trial_number in self._told:
            return
        if trial_number not in self._suggested:
            self._ask(trial_number, None)
        self._told.add(trial_number)
        identity = str(trial_number)
        if value is None or not math.isfinite(value):
            self._search.on_trial_complete(identity, error=True)
        else:
            self._search.on_trial_complete(identity, {_METRIC: value})

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn every recorded trial, in order of number."""
        listed = sorted(records, key=lambda record: record.number)
        for record in listed:
            if record.number not in self._suggested:
                self._ask(record.number, record.parameters)
        for record in listed:
            if record.is_final:
                self.tell(record.number, record.told(self._goal))

    def _ask(self, number: int, recorded: Mapping[str, Any] | None) -> None:
        fixed = None
        if recorded is not None:
            fixed = {
                name: _encoded(self._space[key], recorded[key]) for name, key in self._names.items()
            }
        self._steered.aim(number, fixed)
        answer = self._search.suggest(str(number))
        assert answer is not None
        if recorded is None:
            recorded = {
                key: _decoded(self._space[key], answer[name]) for name, key in self._names.items()
            }
        self._suggested[number] = dict(recorded)


class _SteeredSampler(optuna.samplers.BaseSampler):
    """Optuna's sampler with a fresh seed for every trial, or with given values."""

    def __init__(self, *, seed: int, algorithm: str) -> None:
        self._seed = seed
        self._algorithm = algorithm
        self._fixed: dict[str, Any] | None = None
        self._inner: Any = optuna.samplers.RandomSampler(seed=0)

    def aim(self, number: int, fixed: dict[str, Any] | None) -> None:
        """Prepare the next `ask`: for trial `number`, with `fixed` values or chosen ones."""
        self._fixed = fixed
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        if fixed is not None:
            return
        if self._algorithm == "gp":
            self._inner = optuna.samplers.GPSampler(seed=seed)
        else:
            self._inner = optuna.samplers.TPESampler(seed=seed)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return what is chosen together; nothing where the values are given."""
        if self._fixed is not None:
            return {}
        found: dict[str, Any] = self._inner.infer_relative_search_space(study, trial)
        return found

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return the values that are chosen together."""
        if self._fixed is not None:
            return {}
        found: dict[str, Any] = self._inner.sample_relative(study, trial, search_space)
        return found

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        """Return one value, chosen alone or given."""
        if self._fixed is not None:
            return self._fixed[name]
        return self._inner.sample_independent(study, trial, name, distribution)


def _distribution(expression: Expression) -> Any:
    # Options and multiples go by index: Optuna would take 1, 1.0 and True for one option, and
    # its own steps start at the lower bound instead of at multiples of q.
    if isinstance(expression, Choice):
        return optuna.distributions.CategoricalDistribution(list(range(len(_options(expression)))))
    if isinstance(expression, QUniform):
        return optuna.distributions.IntDistribution(*expression.indices)
    assert isinstance(expression, Uniform)
    return optuna.distributions.FloatDistribution(expression.min_value, expression.max_value)


def _decoded(expression: Expression, value: Any) -> Any:
    if isinstance(expression, Choice):
        return _options(expression)[value]
    if isinstance(expression, QUniform):
        return value * expression.q
    return value


def _encoded(expression: Expression, value: Any) -> Any:
    if isinstance(expression, Choice):
        return [json.dumps(option) for option in _options(expression)].index(json.dumps(value))
    if isinstance(expression, QUniform):
        return value // expression.q
    return value


def _options(expression: Choice) -> list[Any]:
    # Without repeats, so that a recorded value has one index.
    return list({json.dumps(option): option for option in expression.options}.values())
