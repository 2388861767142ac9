"""TuneSampler: any Ray Tune searcher as a Sampler, rebuilt from the trial table by replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ray.tune.search import Searcher

from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.trials import TrialRecord

METRIC = "objective"  # Tune's name for results; the sweep's own name may be any text


class ReplayedSearcher(Protocol):
    """A Tune searcher that can also adopt its earlier suggestions.

    A trial's id is its number as text; suggestions are a trial's parameters by given key.
    """

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """Return parameters, or `Searcher.FINISHED`."""
        ...

    def adopt(self, trial_id: str, parameters: Mapping[str, Any]) -> None:
        """Take `parameters` as the earlier suggestion for this trial."""
        ...

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn a result or its absence."""
        ...


class TuneSampler:
    """The `Sampler` of every sampling; see `rayjobs.tuning.samplers.Sampler`."""

    def __init__(self, searcher: ReplayedSearcher, *, goal: PrimaryMetricGoal) -> None:
        self._searcher = searcher
        self._goal = goal
        self._suggested: dict[int, dict[str, Any]] = {}
        self._completed: set[int] = set()

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial, None if there is nothing left to try."""
        if trial_number not in self._suggested:
            found = self._searcher.suggest(str(trial_number))
            if found is None or isinstance(found, str):
                assert found == Searcher.FINISHED, f"the searcher answered {found!r}"
                return None
            self._suggested[trial_number] = dict(found)
        return dict(self._suggested[trial_number])

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn a result; None, NaN and infinities count as a trial without one."""
        if trial_number in self._completed or self.suggest(trial_number) is None:
            return
        self._completed.add(trial_number)
        if value is None or not math.isfinite(value):
            self._searcher.on_trial_complete(str(trial_number), error=True)
        else:
            self._searcher.on_trial_complete(str(trial_number), {METRIC: value})

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn every recorded trial, in order of number."""
        listed = sorted(records, key=lambda record: record.number)
        for record in listed:
            if record.number not in self._suggested:
                self._searcher.adopt(str(record.number), record.parameters)
                self._suggested[record.number] = dict(record.parameters)
        for record in listed:
            if record.is_final:
                self.tell(record.number, record.result(self._goal))


def mode_of(goal: PrimaryMetricGoal) -> str:
    """Return Tune's word for a goal."""
    return "max" if goal is PrimaryMetricGoal.MAXIMIZE else "min"
