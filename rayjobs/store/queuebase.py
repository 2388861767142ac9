"""What every store promises to the queue's users: arrays, holds, what was learned and foretold.

A part of `store.base.Store`, which says what holds for all of its methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from rayjobs.jobs.queue_records import Durations, Mark, Prediction, QueueRow, Usage
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec


class QueueStore(Protocol):
    """Arrays, and the queue's memory."""

    # -- arrays --------------------------------------------------------------------------------
    def submit_array(
        self,
        spec: JobSpec,
        *,
        experiment: str,
        snapshot: str | None,
        user: str,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        numbered: bool = False,
    ) -> tuple[Job, bool]:
        """Write an array and all its members durably (fsync), or none of them.

        Returns the array: a job of kind "array", Running from the start, which no target starts
        and which ends with its last member: Failed when one has, else Canceled when one was,
        else Completed. Its members are Queued jobs with its id as their parent. A key that
        exists gives that array and False, as `submit` does. `numbered` is as there.
        The `properties` are the members' too.
        """
        ...

    def member(self, array_id: str, index: int) -> Job:
        """Return an array's member. Raises NotFoundError."""
        ...

    def member_counts(self, parents: Iterable[str]) -> dict[str, Mapping[JobState, int]]:
        """Return how many children of each parent are in each state (none: left out)."""
        ...

    # -- the queue -----------------------------------------------------------------------------
    def change(self) -> tuple[int, int]:
        """Return what is another value after every change of the store, whoever made it.

        Quick. What is read after this call is no older than the value; a value is never the
        same again after a change, so what was read under it holds while it is.
        """
        ...

    def queue_marks(self, target: str) -> list[Mark]:
        """Return a mark of each job (kind "job") that is queued on a target."""
        ...

    def jobs_of(self, serials: Iterable[int]) -> list[Job]:
        """Return the jobs with these serials that are there, in order."""
        ...

    def job_states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return the state of each of these jobs that is there, by id.

        An array of which no member has had a place is Queued.
        """
        ...

    def correct_submitted(self, jobs: Mapping[str, datetime]) -> None:
        """Set when jobs were submitted, where their client's clock was wrong, with an event."""
        ...

    def checkpoint_times(self, jobs: Iterable[str]) -> dict[str, datetime]:
        """Return when the newest checkpoint of each job was stored, for those that have one."""
        ...

    def durations(
        self, entries: Iterable[tuple[str, str]], *, most: int = 100
    ) -> dict[tuple[str, str], Durations]:
        """Return how long the newest completed jobs of each (experiment, entry) ran.

        An attempt that went on from a checkpoint counts together with those before it.
        Entries without any are left out. Quick whatever the number of jobs.
        """
        ...

    def usual_durations(self, target: str) -> dict[tuple[str, str], Durations]:
        """Return `durations` for the entries of a target's jobs that have not ended.

        For those without any, of the same entry in any experiment (`Durations.is_of_any`).
        """
        ...

    def earlier_runs(self, jobs: Iterable[str]) -> dict[str, float]:
        """Return how many seconds attempts of each job ran that its own times do not tell of.

        A job's `started_at` is its last attempt's, and gone when it is queued again. Jobs without
        such attempts are left out.
        """
        ...

    def unseen_ends(self, jobs: Iterable[str]) -> frozenset[str]:
        """Return the jobs with an attempt that ended while nothing saw it.

        Its node, or the whole cluster, was lost: the time of its end is that of the discovery, so
        it ran at most so long.
        """
        ...

    def note_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Keep when waiting jobs are thought to start: of each its first and its last word.

        Ignored for jobs that have had a place.
        """
        ...

    def queue_history(
        self, *, since: datetime | None = None, target: str | None = None
    ) -> list[QueueRow]:
        """Return how the jobs submitted since then waited, in order of submission."""
        ...

    def usage(self, *, since: datetime | None = None, target: str | None = None) -> list[Usage]:
        """Return what attempts that had not ended before then held."""
        ...
