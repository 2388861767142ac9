"""The interface of early termination policies."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar, Protocol

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_whole
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.trials import TrialRecord

# trial number → its reports of the primary metric, oldest first; the n-th is interval n.
History = Mapping[int, Sequence[float]]


@dataclass(frozen=True)
class Stop:
    """A decision to end a trial early.

    Attributes:
        numbers: The comparison, e.g. ``0.612 < 0.701/(1+0.1)``.
        own: The trial's value that was compared; None if it had no finite one.
        threshold: The value it was compared with.
    """

    trial: int
    interval: int
    numbers: str
    own: float | None
    threshold: float

    @property
    def detail(self) -> str:
        """The interval and the numbers, for a table."""
        return f"interval {self.interval}: {self.numbers}"

    @property
    def reason(self) -> str:
        """One line, e.g. ``stopped trial 7 at interval 4: 0.612 < 0.701/(1+0.1)``."""
        return f"stopped trial {self.trial} at {self.detail}"


@dataclass(frozen=True)
class Verdict:
    """A scheduler's decision on a trial's new reports.

    Attributes:
        intervals: How many of its reports are now judged.
        stop: The decision to end it at its report `intervals`; None if it continues.
    """

    trial: int
    intervals: int
    stop: Stop | None


class Scheduler(Protocol):
    """Judges trials as they report. All its state can be rebuilt from the trial table.

    Not thread-safe: one driver owns it.
    """

    def judge(self, trials: Sequence[TrialRecord]) -> tuple[Verdict, ...]:
        """Return a verdict for every running trial with unjudged reports.

        A second call with the same table returns the same.

        Args:
            trials: The whole table, in order of number.
        """
        ...


@dataclass(frozen=True)
class Policy(ABC):
    """Decides whether a trial ends early. Immutable; `judge` is a pure function.

    An interval is one report of the primary metric, whatever its value or the time it took.
    The policy is applied at intervals that are multiples of `evaluation_interval` and not
    below `delay_evaluation`.
    """

    kind: ClassVar[str]

    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise SweepError(problems=problems)

    def judge(
        self,
        history: History,
        trial: int,
        interval: int,
        *,
        goal: PrimaryMetricGoal,
        finished: Set[int] = frozenset(),
    ) -> Stop | None:
        """Return the decision to stop `trial` at `interval`, None if it continues.

        Values after `interval` are ignored, both its own and those of other trials, so a young
        trial is compared with the older ones at the same point.

        Args:
            history: Every trial's reports, including those of ended ones.
            finished: Numbers of the trials that have ended (for policies that exclude them).
        """
        own = history.get(trial, ())
        if interval < 1 or interval > len(own) or not self.applies_at(interval):
            return None
        cut = {number: list(values[:interval]) for number, values in history.items()}
        return self._decide(cut, trial, interval, goal, finished)

    def applies_at(self, interval: int) -> bool:
        """Return whether the policy judges this interval."""
        return interval % self.evaluation_interval == 0 and interval >= self.delay_evaluation

    def problems(self) -> list[Problem]:
        """Return everything wrong with the settings."""
        found = []
        if not is_whole(self.evaluation_interval, at_least=1):
            found.append(
                Problem(
                    "evaluation_interval",
                    f"the value is {self.evaluation_interval!r}.",
                    "Give a whole number of reports, 1 or more.",
                )
            )
        if not is_whole(self.delay_evaluation, at_least=0):
            found.append(
                Problem(
                    "delay_evaluation",
                    f"the value is {self.delay_evaluation!r}.",
                    "Give a whole number of reports, 0 or more.",
                )
            )
        return found

    def to_json(self) -> str:
        """Return the policy as JSON text."""
        return json.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that `parse_policy` reads back."""
        return {"type": self.kind, **dataclasses.asdict(self)}

    @abstractmethod
    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        """Decide with a history that ends at `interval`."""


def shown(value: float) -> str:
    """Return a number for use in a reason: short, with enough digits to check it by hand."""
    return f"{value:.6g}"


def stop_diverged(trial: int, interval: int, threshold: float, than: str) -> Stop:
    """Return the decision for a trial without finite reports while others have some."""
    return Stop(
        trial,
        interval,
        f"none of its {interval} reports is a finite number; {than} is {shown(threshold)}",
        None,
        threshold,
    )
