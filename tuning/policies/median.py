"""MedianStoppingPolicy: stop a trial whose best is worse than the median of running averages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Set

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop, shown, stop_diverged


@dataclass(frozen=True)
class MedianStoppingPolicy(Policy):
    """Stop a trial at interval N if its best value so far is worse than a median.

    It is the median of the running averages of all trials (including itself and ended ones) over
    their reports 1 … N; a trial with fewer reports counts with those it has, and a report that is
    not finite does not count.

    Source: ``azureml.train.hyperdrive.MedianStoppingPolicy(evaluation_interval=1,
    delay_evaluation=0)``.
    """

    kind = "median"
    POLICY_NAME = "MedianStopping"

    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        finite = (
            [value for value in values if math.isfinite(value)] for values in history.values()
        )
        averages = [_mean(values) for values in finite if values]
        if not averages:
            return None
        # Halved first: the sum of finite values may not be finite.
        median = statistics.median_low(averages) / 2 + statistics.median_high(averages) / 2
        own = goal.best(history[trial])
        if own is None:
            return stop_diverged(trial, interval, median, "the median of the running averages")
        if not goal.is_better(median, own):
            return None
        sign = "<" if goal is PrimaryMetricGoal.MAXIMIZE else ">"
        numbers = (
            f"{shown(own)} {sign} {shown(median)}, the median of {len(averages)} running averages"
        )
        return Stop(trial, interval, numbers, own, median)


def _mean(values: list[float]) -> float:
    try:
        return statistics.fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)
