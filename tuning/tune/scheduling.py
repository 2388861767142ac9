"""TuneScheduler: drives a Ray Tune scheduler with the rows of the trial table."""

from __future__ import annotations

from collections.abc import Sequence

from ray.tune.schedulers import TrialScheduler

from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop, Verdict
from rayjobs.tuning.trials import TrialRecord
from rayjobs.tuning.tune.schedulers import INTERVAL, VALUE, TableView, TrialView, scheduler_of


class TuneScheduler:
    """The `Scheduler` of every policy; see `rayjobs.tuning.policies.Scheduler`.

    Each report is passed to Tune's scheduler once, in order of number within a table. If this
    driver or an earlier one has judged a report, or its trial has ended, Tune's answer has no
    effect; a scheduler without memory is not even asked.
    """

    def __init__(
        self, policy: Policy, goal: PrimaryMetricGoal, earlier: Sequence[TrialRecord] = ()
    ) -> None:
        """Create the scheduler of a policy.

        Args:
            policy: The policy that decides.
            goal: Whether higher or lower values are better.
            earlier: Ended trials of earlier sweeps, with numbers below 0, used for comparison.
        """
        self._scheduler = scheduler_of(policy, goal)
        self._earlier = tuple(earlier)
        self._passed_on: dict[int, int] = {}  # number → number of reports passed on
        self._ended: set[int] = set()
        self._stops: dict[int, Stop] = {}  # number → the first STOP on an unjudged report

    def judge(self, trials: Sequence[TrialRecord]) -> tuple[Verdict, ...]:
        """Return the decisions on unjudged reports; a second call returns the same."""
        if not any(_is_open(trial) for trial in trials):
            return ()
        trials = (*self._earlier, *trials)
        table = TableView(
            tuple(TrialView(trial.number, trial.values, trial.is_final) for trial in trials)
        )
        if self._scheduler.remembers:
            # Old reports first: new ones are compared with the judged ones.
            for trial, view in zip(trials, table.trials, strict=True):
                self._tell(table, view, trial, upto=_judged(trial))
        found = []
        for trial, view in zip(trials, table.trials, strict=True):
            if trial.is_final:
                self._end(table, view)
            if not _is_open(trial):
                continue
            count = len(trial.values)
            self._tell(table, view, trial, upto=count)
            stop = self._stops.get(trial.number)
            reached = count if stop is None else stop.interval
            found.append(Verdict(trial.number, reached, stop))
        return tuple(found)

    def _tell(self, table: TableView, view: TrialView, trial: TrialRecord, *, upto: int) -> None:
        if view.number not in self._passed_on:
            self._scheduler.on_trial_add(table, view)
        first = self._passed_on.setdefault(view.number, 0) + 1
        if not self._scheduler.remembers:
            first = max(first, _judged(trial) + 1)
        for interval in range(first, upto + 1):
            result = {VALUE: view.values[interval - 1], INTERVAL: interval}
            decision = self._scheduler.on_trial_result(table, view, result)
            self._passed_on[view.number] = interval
            if decision == TrialScheduler.STOP and interval > _judged(trial):
                self._stops.setdefault(view.number, self._scheduler.stops[view.number])

    def _end(self, table: TableView, view: TrialView) -> None:
        if view.number in self._passed_on and view.number not in self._ended:
            self._ended.add(view.number)
            self._scheduler.on_trial_complete(table, view, {})


def _is_open(trial: TrialRecord) -> bool:
    """Return whether a trial has undecided reports."""
    return _judged(trial) < len(trial.values)


def _judged(trial: TrialRecord) -> int:
    """Return how many of a trial's reports are decided."""
    return len(trial.values) if trial.is_final or trial.stop_requested else trial.judged
