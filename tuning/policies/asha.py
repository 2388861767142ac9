"""AshaPolicy: asynchronous successive halving, recommended for many short trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_number, is_whole
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop, shown


@dataclass(frozen=True, init=False)
class AshaPolicy(Policy):
    """Stop a trial that at a rung is not in the top ``1/reduction_factor`` of earlier arrivals.

    Rungs are the intervals ``grace_intervals * reduction_factor**k`` (rounded down) below
    `max_intervals`. At a rung the trial's report there is compared with the
    ``(1 - 1/reduction_factor)`` quantile, linearly interpolated, of the other trials' reports
    at the same rung. The first to arrive continues. No trial is stopped for reaching
    `max_intervals`: a script knows when it is done.

    Ray Tune's ``AsyncHyperBandScheduler`` with one bracket judges a sweep; `judge` is the same rule
    as a function of a history.

    Source: Li et al. 2018, "A System for Massively Parallel Hyperparameter Tuning", in its
    stopping variant.

    Raises:
        SweepError: a setting is out of range.
    """

    kind = "asha"

    max_intervals: int = 100
    grace_intervals: int = 1
    reduction_factor: float = 4

    def __init__(
        self,
        max_intervals: int = 100,
        grace_intervals: int = 1,
        reduction_factor: float = 4,
    ) -> None:
        object.__setattr__(self, "max_intervals", max_intervals)
        object.__setattr__(self, "grace_intervals", grace_intervals)
        object.__setattr__(self, "reduction_factor", reduction_factor)
        super().__init__()

    @property
    def rungs(self) -> tuple[int, ...]:
        """The intervals at which trials are compared."""
        return tuple(self._milestones())

    def milestone(self, interval: int) -> float | None:
        """Return ``grace * factor**k`` of the rung at an interval; None if it is not a rung."""
        return self._milestones().get(interval)

    def _milestones(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for k in itertools.count():
            milestone = self.grace_intervals * self.reduction_factor**k
            if milestone >= self.max_intervals:
                return found
            found.setdefault(int(milestone), milestone)
        raise AssertionError("the factor is above 1")

    def applies_at(self, interval: int) -> bool:
        """Return whether the interval is a rung."""
        return interval in self.rungs

    def problems(self) -> list[Problem]:
        """Return everything wrong with the settings."""
        found = []
        for name in ("max_intervals", "grace_intervals"):
            value = getattr(self, name)
            if not is_whole(value, at_least=1):
                found.append(
                    Problem(name, f"the value is {value!r}.", "Give a whole number of 1 or more.")
                )
        if not is_number(self.reduction_factor) or self.reduction_factor <= 1:
            found.append(
                Problem(
                    "reduction_factor",
                    f"the value is {self.reduction_factor!r}.",
                    "Give a number above 1; 4 keeps the best quarter.",
                )
            )
        if not found and self.grace_intervals >= self.max_intervals:
            found.append(
                Problem(
                    "grace_intervals",
                    f"grace_intervals is {self.grace_intervals}, not below max_intervals, "
                    f"{self.max_intervals}, so nothing would ever be stopped.",
                    "Lower it, or raise max_intervals to the reports of a whole trial.",
                )
            )
        return found

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON data that `parse_policy` reads back."""
        return {
            "type": self.kind,
            "max_intervals": self.max_intervals,
            "grace_intervals": self.grace_intervals,
            "reduction_factor": self.reduction_factor,
        }

    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        others = [
            values[interval - 1]
            for number, values in history.items()
            if number != trial and len(values) >= interval and math.isfinite(values[interval - 1])
        ]
        if not others:
            return None
        own = history[trial][interval - 1]
        if math.isfinite(own) and not goal.is_better(self._cutoff(others, goal), own):
            return None
        return self.stop(others, trial, interval, own, goal=goal)

    def stop(
        self,
        others: Sequence[float],
        trial: int,
        interval: int,
        own: float,
        *,
        goal: PrimaryMetricGoal,
    ) -> Stop:
        """Return the decision to stop `trial`, with its numbers.

        Args:
            others: The finite reports of other trials at this rung; at least one.
            own: Its report there, which may not be finite.
        """
        cutoff = self._cutoff(others, goal)
        share = f"the best 1/{shown(self.reduction_factor)} of {len(others)} others at this rung"
        sign = "<" if goal is PrimaryMetricGoal.MAXIMIZE else ">"
        value = (
            f"{shown(own)} {sign}"
            if math.isfinite(own)
            else f"{own} is not finite, so it does not meet"
        )
        numbers = f"{value} {shown(cutoff)}, the limit of {share}"
        return Stop(trial, interval, numbers, own if math.isfinite(own) else None, cutoff)

    def _cutoff(self, others: Sequence[float], goal: PrimaryMetricGoal) -> float:
        signed = [goal.sign * value for value in others]
        return goal.sign * quantile(signed, 1 - 1 / self.reduction_factor)


def quantile(values: list[float], share: float) -> float:
    """Return the `share` quantile (0 … 1) of `values`, with linear interpolation like numpy's."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
