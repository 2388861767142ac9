"""TruncationSelectionPolicy: at each evaluation, stop the worst X percent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_whole
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop, shown


@dataclass(frozen=True, init=False)
class TruncationSelectionPolicy(Policy):
    """Stop a trial that is among the worst `truncation_percentage` of its peers at interval N.

    Its peers are the trials with at least N reports, including itself, and also ended ones unless
    `exclude_finished_jobs`. Each counts with its best value over 1 … N; one without a finite value
    counts as the worst. Of n peers, the worst ``n * percentage // 100`` are stopped. Trials with
    equal values at the limit are all kept.

    Source: ``azureml.train.hyperdrive.TruncationSelectionPolicy``; `exclude_finished_jobs` is
    from its documentation.

    Raises:
        SweepError: `truncation_percentage` is not a whole number of 1 … 99.
    """

    kind = "truncation"
    POLICY_NAME = "TruncationSelection"

    truncation_percentage: int = 10
    exclude_finished_jobs: bool = False

    def __init__(
        self,
        truncation_percentage: int,
        evaluation_interval: int = 1,
        delay_evaluation: int = 0,
        exclude_finished_jobs: bool = False,
    ) -> None:
        object.__setattr__(self, "truncation_percentage", truncation_percentage)
        object.__setattr__(self, "exclude_finished_jobs", exclude_finished_jobs)
        super().__init__(evaluation_interval, delay_evaluation)

    def problems(self) -> list[Problem]:
        """Return everything wrong with the settings."""
        found = super().problems()
        share = self.truncation_percentage
        if not is_whole(share) or not 1 <= share <= 99:
            found.append(
                Problem(
                    "truncation_percentage",
                    f"the value is {share!r}.",
                    "Give a whole number of 1 … 99.",
                )
            )
        if self.exclude_finished_jobs not in (True, False):
            found.append(
                Problem(
                    "exclude_finished_jobs",
                    f"the value is {self.exclude_finished_jobs!r}.",
                    "Give true or false.",
                )
            )
        return found

    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        best: dict[int, float | None] = {
            number: goal.best(values)
            for number, values in history.items()
            if len(values) >= interval
            and (number == trial or not (self.exclude_finished_jobs and number in finished))
        }
        own = best[trial]
        condemned = len(best) * self.truncation_percentage // 100
        # The number of peers that are not better than this one, including itself.
        not_better = sum(1 for value in best.values() if _rank(value, goal) <= _rank(own, goal))
        if not_better > condemned:
            return None
        kept = sorted(_rank(value, goal) for value in best.values())[condemned]
        threshold = goal.sign * kept
        sign = "<" if goal is PrimaryMetricGoal.MAXIMIZE else ">"
        value = "no finite value" if own is None else f"{shown(own)} {sign} {shown(threshold)}"
        numbers = (
            f"{value}, among the worst {condemned} of {len(best)} ({self.truncation_percentage} %)"
        )
        return Stop(trial, interval, numbers, own, threshold)


def _rank(value: float | None, goal: PrimaryMetricGoal) -> float:
    return -math.inf if value is None else goal.sign * value
