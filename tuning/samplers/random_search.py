"""RandomParameterSampling: every trial is drawn independently."""

from __future__ import annotations

from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.samplers.base import Sampler, Sampling


class RandomParameterSampling(Sampling):
    """Draw each trial independently from the space; every expression may be used.

    The parameters of a trial depend only on the seed and its number. Ray Tune draws them.

    Source: ``azureml.train.hyperdrive.RandomParameterSampling(parameter_space, properties)``.
    """

    kind = "random"
    SAMPLING_NAME = "RANDOM"

    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a sampler; `goal` has no effect, since nothing is learned."""
        from rayjobs.tuning.tune import TuneSampler
        from rayjobs.tuning.tune.variants import RandomSearch

        return TuneSampler(RandomSearch(self.space, self.seed), goal=goal)
