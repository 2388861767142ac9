"""The contract of the queue: what a target reads in order to decide.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from rayjobs.jobs.queue_records import Durations, Mark, Prediction, QueueRow, Usage, Waits
from rayjobs.store.requests import (
    Page,
)


class QueueStore(Protocol):
    """The queue: the target actor's reads in each turn, and statistics of the past."""

    def change(self) -> tuple[int, int]:
        """Return a token that changes with every commit of any process. This is cheap.

        Data that is read after this call is at least as new as the token. A token is never used
        again, so data that was read under it is current as long as it stays the same.
        """

    def queue_marks(self, target: str) -> list[Mark]:
        """Return a mark of each job (kind ``job``) that is queued on a target."""

    def correct_submitted(self, jobs: Mapping[str, datetime]) -> None:
        """Correct the submission times of jobs whose client's clock was wrong; record an event."""

    def checkpoint_times(self, jobs: Iterable[str]) -> dict[str, datetime]:
        """Return when the newest checkpoint of each job was stored; jobs without are left out."""

    def durations(
        self, entries: Iterable[tuple[str, str]], *, most: int = 100
    ) -> dict[tuple[str, str], Durations]:
        """Return how long the `most` newest completed jobs of each (experiment, entry) ran.

        An attempt that continued from a checkpoint counts together with the attempts before it.
        Entries without completed jobs are left out. The cost does not depend on the number of
        jobs.
        """

    def usual_durations(self, target: str) -> dict[tuple[str, str], Durations]:
        """Return `durations` for the entries of a target's unfinished jobs.

        An entry without completed jobs in its experiment gets those of any experiment
        (`Durations.is_of_any`).
        """

    def earlier_runs(self, jobs: Iterable[str]) -> dict[str, float]:
        """Return for how many seconds earlier attempts of each job ran.

        These are the attempts that the job's own times do not cover: `started_at` is that of the
        last attempt, and None while the job is queued again. Jobs without such attempts are left
        out.
        """

    def unseen_ends(self, jobs: Iterable[str]) -> frozenset[str]:
        """Return the jobs with an attempt whose end was not observed.

        Its node or its cluster was lost, so the recorded end is the time of the discovery.
        """

    def note_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Store the first and the newest predicted start of each waiting job.

        Jobs that have started before are ignored.
        """

    def queue_history(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[QueueRow]:
        """Return how the jobs submitted at or after `since` waited, by serial."""

    def waits(self, *, since: datetime, now: datetime, most: int) -> Waits:
        """Return how long jobs waited, and since when the oldest job of each target waits.

        Only the `most` newest placed jobs that were submitted at or after `since` are read. `now`
        decides which jobs may start already.
        """

    def usage(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[Usage]:
        """Return the resources of the attempts that ended at or after `since` or are still running.

        The result is ordered by the job's serial and the attempt.
        """
