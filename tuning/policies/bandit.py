"""BanditPolicy: stop a trial that is too far behind the leader."""

from __future__ import annotations

from collections.abc import Mapping, Set

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_number
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop, shown, stop_diverged


@dataclass(frozen=True, init=False)
class BanditPolicy(Policy):
    """Stop a trial whose best value so far is not within a slack of the leader's.

    The leader's value is the best that any trial had up to the same interval. If the metric is
    maximized, a trial is stopped if its best is below ``leader/(1+slack_factor)`` or
    ``leader-slack_amount``; if it is minimized, above ``leader*(1+slack_factor)`` or
    ``leader+slack_amount``. For a leader below zero, multiplication and division are swapped, so
    that the slack is always on the worse side of the leader (literally applied, the rule would stop
    the leader itself).

    Source: ``azureml.train.hyperdrive.BanditPolicy``.

    Raises:
        SweepError: not exactly one of `slack_factor` and `slack_amount`, or a negative one.
    """

    kind = "bandit"
    POLICY_NAME = "Bandit"

    slack_factor: float | None = None
    slack_amount: float | None = None

    # The order of Azure ML's constructor, which programs call with positional arguments.
    def __init__(
        self,
        evaluation_interval: int = 1,
        slack_factor: float | None = None,
        slack_amount: float | None = None,
        delay_evaluation: int = 0,
    ) -> None:
        object.__setattr__(self, "slack_factor", slack_factor)
        object.__setattr__(self, "slack_amount", slack_amount)
        super().__init__(evaluation_interval, delay_evaluation)

    def problems(self) -> list[Problem]:
        """Return everything wrong with the settings."""
        found = super().problems()
        if (self.slack_factor is None) == (self.slack_amount is None):
            found.append(
                Problem(
                    "slack_factor",
                    "bandit needs exactly one of slack_factor and slack_amount, and has "
                    f"{'neither' if self.slack_factor is None else 'both'}.",
                    "Write e.g. slack_factor: 0.1 (10 % behind the leader).",
                )
            )
        for name in ("slack_factor", "slack_amount"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value < 0):
                found.append(Problem(name, f"the value is {value!r}.", "Give a number, 0 or more."))
        return found

    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        leader = goal.best(value for values in history.values() for value in values)
        if leader is None:
            return None
        own = goal.best(history[trial])
        if own is None:
            return stop_diverged(trial, interval, leader, "the leader's best")
        threshold, written = self._threshold(leader, goal)
        if not goal.is_better(threshold, own):
            return None
        sign = "<" if goal is PrimaryMetricGoal.MAXIMIZE else ">"
        return Stop(trial, interval, f"{shown(own)} {sign} {written}", own, threshold)

    def _threshold(self, leader: float, goal: PrimaryMetricGoal) -> tuple[float, str]:
        maximize = goal is PrimaryMetricGoal.MAXIMIZE
        if self.slack_factor is not None:
            factor = 1 + self.slack_factor
            # Away from the leader, towards the worse side, whatever its sign.
            if maximize == (leader >= 0):
                return leader / factor, f"{shown(leader)}/(1+{shown(self.slack_factor)})"
            return leader * factor, f"{shown(leader)}*(1+{shown(self.slack_factor)})"
        assert self.slack_amount is not None
        if maximize:
            return leader - self.slack_amount, f"{shown(leader)}-{shown(self.slack_amount)}"
        return leader + self.slack_amount, f"{shown(leader)}+{shown(self.slack_amount)}"
