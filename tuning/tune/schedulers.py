"""Early termination policies as Ray Tune schedulers, which get results and answer STOP."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.asha import AshaPolicy
from rayjobs.tuning.policies.base import Policy, Stop
from rayjobs.tuning.policies.none import NoTerminationPolicy
from rayjobs.tuning.tune.searching import mode_of

VALUE = "value"
INTERVAL = "interval"
MILESTONE = "milestone"


@dataclass(frozen=True)
class TrialView:
    """A trial as a scheduler sees it; Tune's schedulers identify it by its id.

    Attributes:
        values: All of its reports, including those not yet passed to a scheduler.
    """

    number: int
    values: Sequence[float]
    is_final: bool

    @property
    def trial_id(self) -> str:
        """The trial's number as text."""
        return str(self.number)


@dataclass(frozen=True)
class TableView:
    """Takes the place of Tune's controller: the whole trial table at this moment."""

    trials: Sequence[TrialView]

    def get_trials(self) -> Sequence[TrialView]:
        """Return every trial, in order of number."""
        return self.trials


class EndlessScheduler(FIFOScheduler):
    """Tune's own scheduler: every trial runs to its end."""

    remembers = False


class AzureScheduler(FIFOScheduler):
    """One of HyperDrive's policies, defined by us as a function of the table only.

    Attributes:
        remembers: Whether it needs earlier results.
        stops: Why each trial was stopped, by its number.
    """

    remembers = False

    def __init__(self, policy: Policy, goal: PrimaryMetricGoal) -> None:
        super().__init__()
        self._policy = policy
        self._goal = goal
        self.stops: dict[int, Stop] = {}

    def on_trial_result(
        self, tune_controller: TableView, trial: TrialView, result: Mapping[str, Any]
    ) -> str:
        """Return STOP or CONTINUE for a trial's report."""
        interval = result[INTERVAL]
        if not self._policy.applies_at(interval):
            return str(TrialScheduler.CONTINUE)
        table = tune_controller.get_trials()
        finished: Set[int] = frozenset(one.number for one in table if one.is_final)
        history = {one.number: one.values for one in table}
        stop = self._policy.judge(
            history, trial.number, interval, goal=self._goal, finished=finished
        )
        if stop is None:
            return str(TrialScheduler.CONTINUE)
        self.stops[trial.number] = stop
        return str(TrialScheduler.STOP)


class AshaScheduler(AsyncHyperBandScheduler):
    """Tune's ASHA with one bracket; each of its decisions states its numbers.

    Tune measures a trial's age by `MILESTONE`: at the k-th rung it is ``grace * factor**k``, which
    need not be an integer; other reports have none, and Tune skips them.

    Attributes:
        remembers: Whether it needs earlier results.
        stops: Why each trial was stopped, by its number.
    """

    remembers = True

    def __init__(self, policy: AshaPolicy, goal: PrimaryMetricGoal) -> None:
        super().__init__(
            time_attr=MILESTONE,
            metric=VALUE,
            mode=mode_of(goal),
            max_t=policy.max_intervals,
            grace_period=policy.grace_intervals,
            reduction_factor=policy.reduction_factor,
            brackets=1,
            stop_last_trials=False,  # a script knows when it is done
        )
        self._policy = policy
        self._goal = goal
        self._at_rungs: dict[int, dict[int, float]] = {rung: {} for rung in policy.rungs}
        self.stops: dict[int, Stop] = {}

    def on_trial_result(
        self, tune_controller: TableView, trial: TrialView, result: Mapping[str, Any]
    ) -> str:
        """Return STOP or CONTINUE for a trial's report."""
        interval, value = result[INTERVAL], result[VALUE]
        milestone = self._policy.milestone(interval)
        if milestone is None:
            return str(super().on_trial_result(tune_controller, trial, dict(result)))
        others = list(self._at_rungs[interval].values())
        if math.isfinite(value):
            extended = {**result, MILESTONE: milestone}
            decision = str(super().on_trial_result(tune_controller, trial, extended))
            self._at_rungs[interval][trial.number] = value
        else:  # Tune would accept NaN as good enough, and infinity as a value
            decision = str(TrialScheduler.STOP if others else TrialScheduler.CONTINUE)
        if decision == TrialScheduler.STOP:
            self.stops[trial.number] = self._policy.stop(
                others, trial.number, interval, value, goal=self._goal
            )
        return decision


def scheduler_of(policy: Policy, goal: PrimaryMetricGoal) -> Any:
    """Return Tune's scheduler for a policy, without any trials."""
    if isinstance(policy, NoTerminationPolicy):
        return EndlessScheduler()
    if isinstance(policy, AshaPolicy):
        return AshaScheduler(policy, goal)
    return AzureScheduler(policy, goal)
