"""Durations, predictions and use of resources: frozen records for estimates and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rayjobs.core.text import counted, duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.states import JobState

# Serial, attempt, priority, hold, not_before and changed_at of a queued job, with stored times: if
# it differs, the job must be reread.
Mark = tuple[int, int, int, str | None, str | None, str]

# How many characters of a long command serve as its name.
NAMED_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True)
class Durations:
    """The durations of the newest completed jobs of one entry.

    Attributes:
        count: The number of jobs.
        median_s, p90_s: Total seconds of the attempts of one run: from the last attempt without a
            checkpoint, through those that resumed, to the job's end.
        longest_s: The same for the longest of them.
        is_of_any: Whether they are from other experiments, since the requested one has none.
    """

    count: int
    median_s: float
    p90_s: float
    longest_s: float
    is_of_any: bool = False

    def runs_of(self, experiment: str, entry: str) -> str:
        """Describe these runs: ``12 earlier runs of train.py in experiment mnist``."""
        return f"{counted(self.count, 'earlier run')} of {self._where(experiment, entry)}"

    def outrun_by(self, job_id: str, experiment: str, entry: str) -> str:
        """Return the sentence that a job has run longer than each of them."""
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
    """The predicted start of a waiting job.

    Attributes:
        basis: The basis of the estimate, in the policy's terms.
        made_at: When it was made; None if it is not stored yet.
    """

    job: str
    starts_at: datetime
    basis: str
    made_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """The waiting time of one job.

    Attributes:
        serial: The job's.
        placed_at: When it first got an allocation; None: not yet.
        predicted_first: The first estimate; None if there was none.
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
    serial: int = 0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources of one attempt, and how long it used them.

    Attributes:
        serial: The job's.
        until: None while it continues.
        shape: Its allocation's shape, see `Allocation`.
    """

    job: str
    user: str
    target: str
    since: datetime
    until: datetime | None
    shape: Mapping[str, Any]
    serial: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Waits:
    """How long jobs waited, and wait now.

    Attributes:
        placed: Target and seconds of jobs that got an allocation.
        since: Target → submission time of its oldest job that waits only for resources: it is not
            held, and waits neither for a later time nor for other jobs.
    """

    placed: Sequence[tuple[str, float]]
    since: Mapping[str, datetime]
