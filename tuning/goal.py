"""PrimaryMetricGoal: which of two values of the metric is better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum


class PrimaryMetricGoal(StrEnum):
    """Whether to maximize or minimize the primary metric.

    Source: ``azureml.train.hyperdrive.PrimaryMetricGoal``.
    """

    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"

    @classmethod
    def _missing_(cls, value: object) -> PrimaryMetricGoal | None:
        # Users write "maximize", "max" or "maximise" in a file.
        text = str(value).strip().lower()
        if text in {"maximize", "maximise", "max"}:
            return cls.MAXIMIZE
        if text in {"minimize", "minimise", "min"}:
            return cls.MINIMIZE
        return None

    @staticmethod
    def from_str(goal: str) -> PrimaryMetricGoal:
        """Return the goal that a text names, such as ``maximize``. Raises ValueError."""
        return PrimaryMetricGoal(goal)

    @property
    def sign(self) -> int:
        """1 if larger is better, -1 if smaller is: ``sign * value`` is always maximized."""
        return 1 if self is PrimaryMetricGoal.MAXIMIZE else -1

    def is_better(self, value: float, other: float) -> bool:
        """Return whether `value` is strictly better than `other` (both finite)."""
        return self.sign * value > self.sign * other

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best finite value, None without one (NaN and infinity never count)."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        return max(finite) if self is PrimaryMetricGoal.MAXIMIZE else min(finite)
