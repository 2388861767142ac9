"""What the queue learned, foretold and gave: frozen records for estimates and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rayjobs.states import JobState

# Serial, attempt, priority, hold, not_before and changed_at of a queued job, times as stored:
# another mark says that the job must be read again.
Mark = tuple[int, int, int, str | None, str | None, str]

# Kind of the event of an attempt that began with a checkpoint.
RESUMED = "resumed"


@dataclass(frozen=True, kw_only=True)
class Durations:
    """How long the completed jobs of one entry ran, the newest ones.

    Attributes:
        count: Of how many.
        median_s, p90_s: Seconds that their attempts ran, all together that made one run: from
            the last that began from nothing, over those that went on from checkpoints, to the
            job's end.
        is_of_any: They are of any experiment, since the one asked for has none of them.
    """

    count: int
    median_s: float
    p90_s: float
    is_of_any: bool = False


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """When a waiting job was thought to start.

    Attributes:
        basis: What the estimate rests on, in the policy's words.
        made_at: When; None for one that is not stored yet.
    """

    job: str
    starts_at: datetime
    basis: str
    made_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """How one job waited.

    Attributes:
        placed_at: When it first got a place; None for one that never did (so far).
        predicted_first: The first estimate that was shown; None where there was none.
        predicted_last: The last one before its place.
    """

    job: str
    name: str
    user: str
    priority: int
    parent: str | None
    target: str
    state: JobState
    submitted_at: datetime
    placed_at: datetime | None
    ended_at: datetime | None
    predicted_first: Prediction | None
    predicted_last: Prediction | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one attempt held, and how long.

    Attributes:
        until: None while it goes on.
        shape: Of its allocation, see `Allocation`.
    """

    job: str
    user: str
    target: str
    since: datetime
    until: datetime | None
    shape: Mapping[str, float]
