"""GridParameterSampling: every combination of choices, in a stated order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from rayjobs.errors import Problem
from tuning.expressions import Choice
from tuning.goal import PrimaryMetricGoal
from tuning.samplers.base import Sampler, Sampling
from tuning.space import SearchSpace
from tuning.trials import TrialRecord


class GridParameterSampling(Sampling):
    """Try every combination of the choices once.

    Order: as nested loops over the parameters as given, the last one varying fastest. An
    option written twice in a choice is tried once.

    Source: ``azureml.train.hyperdrive.GridParameterSampling(parameter_space)``.
    """

    kind = "grid"

    @property
    def size(self) -> int:
        """The number of combinations."""
        return math.prod(len(options) for options in _axes(self.space).values())

    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a sampler; `goal` changes nothing, since nothing is learnt."""
        return GridSampler(self.space)

    def _misfits(self, space: SearchSpace) -> list[Problem]:
        return [
            Problem(
                key,
                f"a grid cannot be made of {expression.name}.",
                "Use choice(...) with the values to try, or random sampling.",
            )
            for key, expression in space.items()
            if not isinstance(expression, Choice)
        ]


class GridSampler:
    """A sampler without memory: the n-th trial is the n-th point."""

    def __init__(self, space: SearchSpace) -> None:
        self._axes = _axes(space)
        self._size = math.prod(len(options) for options in self._axes.values())

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the n-th point, None past the last one."""
        if not 0 <= trial_number < self._size:
            return None
        chosen: dict[str, Any] = {}
        rest = trial_number
        for key, options in reversed(self._axes.items()):
            rest, position = divmod(rest, len(options))
            chosen[key] = options[position]
        return {key: chosen[key] for key in self._axes}

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn nothing."""

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn nothing."""


def _axes(space: SearchSpace) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for key, expression in space.items():
        assert isinstance(expression, Choice)
        # By JSON text: 1, 1.0 and True are equal in Python and different to a script.
        axes[key] = list({json.dumps(option): option for option in expression.options}.values())
    return axes
