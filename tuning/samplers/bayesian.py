"""BayesianParameterSampling: its settings; Optuna does the search, through Tune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_whole
from rayjobs.core.text import counted
from rayjobs.tuning.expressions import Choice, QUniform, Uniform
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.samplers.base import Sampler, Sampling
from rayjobs.tuning.space import SearchSpace

MAX_POINTS = 100_000  # points of one quniform
ALGORITHMS = ("tpe", "gp")


class BayesianParameterSampling(Sampling):
    """Learn from past trials which parameters are worth trying.

    Only choice (all text or all numbers), uniform and quniform (whole bounds, at most 100000
    points) may be used, and no early termination policy: a stopped trial teaches nothing.

    Properties: ``seed``; ``algorithm``, "tpe" (the default) or "gp", a Gaussian process, which
    imports torch.

    Source: ``azureml.train.hyperdrive.BayesianParameterSampling``.
    """

    kind = "bayesian"
    learns = True
    SAMPLING_NAME = "BayesianOptimization"
    known_properties = ("seed", "algorithm")

    @property
    def algorithm(self) -> str:
        """The searcher, "tpe" or "gp"."""
        return str(self.properties.get("algorithm", "tpe"))

    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a sampler.

        Raises:
            TuningDependencyError: Optuna (or, for "gp", scipy) is not installed.
        """
        from rayjobs.tuning.tune import TuneSampler
        from rayjobs.tuning.tune.bayesian import BayesianSearch

        search = BayesianSearch(self.space, goal=goal, seed=self.seed, algorithm=self.algorithm)
        return TuneSampler(search, goal=goal)

    def advice(self, total: int, concurrent: int) -> tuple[str, ...]:
        """Return Azure ML's two recommendations if the limits violate them."""
        found = []
        if total < 20 * len(self.space):
            found.append(
                f"Bayesian sampling of {counted(len(self.space), 'parameter')} needs about "
                f"{20 * len(self.space)} trials to be useful (20 for each parameter); this sweep "
                f"has {total}."
            )
        if concurrent > 20:
            found.append(
                f"with {concurrent} trials at a time Bayesian sampling learns little between "
                f"them; 20 or fewer are advised."
            )
        return tuple(found)

    def _misfits(self, space: SearchSpace) -> list[Problem]:
        found = []
        for key, expression in space.items():
            if isinstance(expression, Choice):
                options = expression.options
                text = all(isinstance(option, str) for option in options)
                if not text and not all(isinstance(option, int | float) for option in options):
                    found.append(
                        Problem(
                            key,
                            f"Bayesian sampling needs the options of a choice to be all text or "
                            f"all numbers, got {list(options)!r}.",
                            "Write all of them as text, or use random sampling.",
                        )
                    )
            elif isinstance(expression, QUniform):
                found.extend(_quniform_misfits(key, expression))
            elif type(expression) is not Uniform:
                found.append(
                    Problem(
                        key,
                        f"Bayesian sampling cannot use {expression.name}.",
                        "It supports choice, uniform and quniform; for a learning rate, search its "
                        "logarithm with uniform, or use random sampling.",
                    )
                )
        return found

    def _bad_properties(self, properties: Mapping[str, Any]) -> list[Problem]:
        algorithm = properties.get("algorithm", "tpe")
        if algorithm in ALGORITHMS:
            return []
        return [
            Problem(
                "properties.algorithm",
                f"there is no algorithm {algorithm!r}.",
                f"Use one of {', '.join(ALGORITHMS)}.",
            )
        ]


def _quniform_misfits(key: str, expression: QUniform) -> list[Problem]:
    bounds = (expression.min_value, expression.max_value)
    if not all(is_whole(bound) for bound in bounds):
        return [
            Problem(
                key,
                f"Bayesian sampling needs quniform's arguments to be whole numbers, "
                f"got {expression.args!r}.",
                "Round the bounds.",
            )
        ]
    low, high = expression.indices
    if high - low + 1 > MAX_POINTS:
        return [
            Problem(
                key,
                f"quniform has {high - low + 1} points; Bayesian sampling takes at most "
                f"{MAX_POINTS}.",
                "Raise q, narrow the bounds, or use uniform.",
            )
        ]
    return []
