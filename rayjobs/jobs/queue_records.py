"""What the queue learned, foretold and gave: frozen records for estimates and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rayjobs.core.text import counted, duration_text
from rayjobs.jobs.states import JobState

# Serial, attempt, priority, hold, not_before and changed_at of a queued job, times as stored:
# another mark says that the job must be read again.
Mark = tuple[int, int, int, str | None, str | None, str]

# Kind of the event of an attempt that began with a checkpoint.
RESUMED = "resumed"
# A command may be long; so much of it names it.
NAMED_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True)
class Durations:
    """How long the completed jobs of one entry ran, the newest ones.

    Attributes:
        count: Of how many.
        median_s, p90_s: Seconds that their attempts ran, all together that made one run: from
            the last that began from nothing, over those that went on from checkpoints, to the
            job's end.
        longest_s: The same of the longest of them.
        is_of_any: They are of any experiment, since the one asked for has none of them.
    """

    count: int
    median_s: float
    p90_s: float
    longest_s: float
    is_of_any: bool = False

    def runs_of(self, experiment: str, entry: str) -> str:
        """Say which runs these are: ``12 earlier runs of train.py in experiment mnist``."""
        return f"{counted(self.count, 'earlier run')} of {self._where(experiment, entry)}"

    def outrun_by(self, job_id: str, experiment: str, entry: str) -> str:
        """Say of a job that it has run longer than each of them."""
        which = "the only earlier run" if self.count == 1 else f"all {self.count} earlier runs"
        return (
            f"job {job_id} has already outrun {which} of {self._where(experiment, entry)} "
            f"(longest {duration_text(self.longest_s)})"
        )

    def _where(self, experiment: str, entry: str) -> str:
        if len(entry) > NAMED_CHARACTERS:
            entry = f"{entry[: NAMED_CHARACTERS - 1]}…"
        return f"{entry} in {'this workspace' if self.is_of_any else f'experiment {experiment}'}"


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
        placed_at: When it first got an allocation; None: it never did (so far).
        predicted_first: The first estimate that was shown; None where there was none.
        predicted_last: The last one before its allocation.
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
