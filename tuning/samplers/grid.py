"""GridParameterSampling: every combination of choices, in a stated order."""

from __future__ import annotations

import math

from rayjobs.core.errors import Problem
from rayjobs.tuning.expressions import Choice
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.samplers.base import Sampler, Sampling
from rayjobs.tuning.space import SearchSpace


class GridParameterSampling(Sampling):
    """Try every combination of the choices once.

    The order is that of nested loops over the parameters as given, with the last one varying
    fastest. An option written twice in a choice is tried once.

    Source: ``azureml.train.hyperdrive.GridParameterSampling(parameter_space)``.
    """

    kind = "grid"
    SAMPLING_NAME = "GRID"

    @property
    def size(self) -> int:
        """The number of combinations."""
        axes = [one.different for one in self.space.values() if isinstance(one, Choice)]
        return math.prod(len(options) for options in axes)

    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a sampler; `goal` has no effect, since nothing is learned."""
        from rayjobs.tuning.tune import TuneSampler
        from rayjobs.tuning.tune.variants import GridSearch

        return TuneSampler(GridSearch(self.space), goal=goal)

    def _misfits(self, space: SearchSpace) -> list[Problem]:
        return [
            Problem(
                key,
                f"a grid cannot be built from {expression.name}.",
                "Use choice(...) with the values to try, or random sampling.",
            )
            for key, expression in space.items()
            if not isinstance(expression, Choice)
        ]
