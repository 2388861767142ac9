"""Time that tests can set: wall time for records, a monotonic clock for durations."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the wall time, timezone-aware and in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never steps back and counts suspended time."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall time, timezone-aware and in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds of CLOCK_BOOTTIME, which continues while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def to_text(at: datetime) -> str:
    """Return `at` as ISO 8601 in UTC with microseconds, which also sorts as text."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def from_text(text: str) -> datetime:
    """Return the time written by `to_text`."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
