"""NoTerminationPolicy: every trial runs to its end."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies.base import Policy, Stop


@dataclass(frozen=True, init=False)
class NoTerminationPolicy(Policy):
    """Stop nothing.

    Source: ``azureml.train.hyperdrive.NoTerminationPolicy()``.
    """

    kind = "none"
    POLICY_NAME = "Default"

    def __init__(self) -> None:
        super().__init__()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"type": self.kind}

    def _decide(
        self,
        history: Mapping[int, list[float]],
        trial: int,
        interval: int,
        goal: PrimaryMetricGoal,
        finished: Set[int],
    ) -> Stop | None:
        return None
