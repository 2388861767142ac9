"""Optuna's TPE and Gaussian process through Ray Tune's OptunaSearch, made repeatable.

It imports Optuna, so it is only imported on first use. No cluster is needed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from rayjobs.tuning.errors import TuningDependencyError
from rayjobs.tuning.expressions import Choice, Expression, QUniform, Uniform
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.space import SearchSpace
from rayjobs.tuning.tune.searching import METRIC, mode_of

try:
    import optuna
    from ray.tune.search.optuna import OptunaSearch
except ImportError as exc:
    raise TuningDependencyError("Bayesian sampling", "optuna", "bayes") from exc

# Optuna writes a line to stderr for every study and trial, but a sweep's records have it all.
logging.getLogger("optuna").setLevel(logging.WARNING)


class BayesianSearch(OptunaSearch):
    """Tune's OptunaSearch, with suggestions that depend only on seed, number and earlier results.

    Every suggestion uses a new Optuna sampler with its own seed, and a recorded trial is adopted
    through the same calls with its recorded parameters. So a killed driver loses nothing.
    """

    def __init__(
        self, space: SearchSpace, *, goal: PrimaryMetricGoal, seed: int, algorithm: str
    ) -> None:
        self._own_space = space
        # Our own names: keys may contain "/", which OptunaSearch interprets as nesting.
        self._names = {f"p{position}": key for position, key in enumerate(space)}
        self._steered = _SteeredSampler(seed=seed, algorithm=algorithm)
        super().__init__(
            {name: _distribution(space[key]) for name, key in self._names.items()},
            metric=METRIC,
            mode=mode_of(goal),
            sampler=self._steered,
        )

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the trial's parameters."""
        self._steered.aim(trial_id, None)
        answer = super().suggest(trial_id)
        assert answer is not None
        return {
            key: _decoded(self._own_space[key], answer[name]) for name, key in self._names.items()
        }

    def adopt(self, trial_id: str, parameters: Mapping[str, Any]) -> None:
        """Take `parameters` as the earlier suggestion for this trial."""
        fixed = {
            name: _encoded(self._own_space[key], parameters[key])
            for name, key in self._names.items()
        }
        self._steered.aim(trial_id, fixed)
        super().suggest(trial_id)


class _SteeredSampler(optuna.samplers.BaseSampler):
    """Optuna's sampler with a new seed for every trial, or with given values."""

    def __init__(self, *, seed: int, algorithm: str) -> None:
        self._seed = seed
        self._algorithm = algorithm
        self._fixed: dict[str, Any] | None = None
        self._inner: Any = optuna.samplers.RandomSampler(seed=0)

    def aim(self, trial_id: str, fixed: dict[str, Any] | None) -> None:
        """Prepare the next `ask`: for a trial, with `fixed` values or chosen ones."""
        self._fixed = fixed
        digest = hashlib.sha256(f"{self._seed}/{trial_id}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        if fixed is not None:
            return
        if self._algorithm == "gp":
            self._inner = optuna.samplers.GPSampler(seed=seed)
        else:
            self._inner = optuna.samplers.TPESampler(seed=seed)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return the parameters that are chosen together; none if the values are given."""
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
        """Return one value, either chosen individually or given."""
        if self._fixed is not None:
            return self._fixed[name]
        return self._inner.sample_independent(study, trial, name, distribution)


def _distribution(expression: Expression) -> Any:
    # Options and multiples are passed by index: Optuna would treat 1, 1.0 and True as one option,
    # and its own steps start at the lower bound instead of at multiples of q.
    if isinstance(expression, Choice):
        return optuna.distributions.CategoricalDistribution(list(range(len(expression.different))))
    if isinstance(expression, QUniform):
        return optuna.distributions.IntDistribution(*expression.indices)
    assert isinstance(expression, Uniform)
    return optuna.distributions.FloatDistribution(expression.min_value, expression.max_value)


def _decoded(expression: Expression, value: Any) -> Any:
    if isinstance(expression, Choice):
        return expression.different[value]
    if isinstance(expression, QUniform):
        return value * expression.q
    return value


def _encoded(expression: Expression, value: Any) -> Any:
    if isinstance(expression, Choice):
        return [json.dumps(option) for option in expression.different].index(json.dumps(value))
    if isinstance(expression, QUniform):
        return value // expression.q
    return value
