"""The data of a sweep's events that its drivers read."""

from __future__ import annotations

from typing import ClassVar

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.events import EventData


@dataclass(frozen=True)
class MetricMissing(EventData):
    """Running trials report metrics, but not the sweep's.

    Attributes:
        near: The reported name most similar to the sweep's metric; null: none is similar.
    """

    KIND: ClassVar[str] = "metric_missing"

    near: str | None = None


@dataclass(frozen=True)
class DriverFault(EventData):
    """A driver of the sweep failed with an unforeseen error.

    Attributes:
        progress: The sweep's progress then, as numbers that change with everything a driver does.
    """

    KIND: ClassVar[str] = "driver_fault"

    progress: tuple[int, ...] = ()
