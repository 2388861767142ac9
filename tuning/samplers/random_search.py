"""RandomParameterSampling: every trial drawn on its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuning.goal import PrimaryMetricGoal
from tuning.samplers.base import Sampler, Sampling
from tuning.space import SearchSpace
from tuning.trials import TrialRecord


class RandomParameterSampling(Sampling):
    """Draw each trial independently from the space; every expression may be used.

    The parameters of a trial depend on the seed and its number alone.

    Source: ``azureml.train.hyperdrive.RandomParameterSampling(parameter_space, properties)``.
    """

    kind = "random"

    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a sampler; `goal` changes nothing, since nothing is learnt."""
        return RandomSampler(self.space, self.seed)


class RandomSampler:
    """A sampler without memory."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._seed = seed

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial; never None."""
        return self._space.sample(seed=self._seed, number=trial_number)

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn nothing."""

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn nothing."""
