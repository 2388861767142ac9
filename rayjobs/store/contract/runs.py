"""The contract of runs: what submitted and interactive runs log and store.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rayjobs.core.failures import Failure
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import (
    Event,
    Job,
    MetricPoint,
    StoredFile,
)
from rayjobs.jobs.writers import Writer
from rayjobs.store.requests import (
    NewRun,
    Page,
)


class RunStore(Protocol):
    """The results of a run: its history, its metrics and its files."""

    def add_event(
        self,
        job_id: str,
        kind: str,
        message: str,
        *,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event to a job's history. State changes add their own."""

    def events(self, job_id: str, *, after: int = 0, page: Page | None = None) -> list[Event]:
        """Return a job's events with a serial above `after`, oldest first."""

    def history(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of all jobs with a serial above `after`, oldest first.

        An event that is written later has a higher serial than all events that were read before.
        """

    def add_metrics(self, job_id: str, points: Sequence[MetricPoint]) -> int:
        """Store a batch of points; return how many were new. Repeated keys are ignored.

        Points that arrive after a newer attempt has started are kept, but `metrics` never shows
        them.
        """

    def metrics(
        self,
        job_id: str,
        *,
        name: str | None = None,
        all_attempts: bool = False,
        page: Page | None = None,
    ) -> list[MetricPoint]:
        """Return points in the order in which they were logged (attempt, rank, sequence).

        Unless `all_attempts`, points that a newer attempt replaces are left out: of points with a
        step, those from the newer attempt's first step of that name on; of points without one,
        all, once a newer attempt that started from the beginning has logged something or has
        completed the job.
        """

    def last_metrics(self, names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """Return the newest value of each of these metrics, by the job's serial, then by name.

        The value is from the newest attempt that logged the name, and from its lowest rank. The
        cost does not depend on the number of points. Values are as in `MetricPoint.value`.
        """

    def metric_names(self, *, most: int = 1000) -> list[str]:
        """Return the names of at most `most` metrics that jobs have logged, in order."""

    def publish_files(self, job_id: str, *, attempt: int, files: Sequence[StoredFile]) -> bool:
        """Make files visible, unless the job has ended or has a newer attempt.

        A file of the same name is replaced (a newer attempt's file, a longer log). A log of an
        earlier attempt stays, as ``azureml-logs/attempt-<n>/…``.
        """

    def drop_files(self, job_id: str, *, attempt: int, names: Sequence[str]) -> bool:
        """Hide files that `attempt` published, on the conditions of `publish_files`.

        Files of other attempts stay, even under the same names. The next prune frees the bytes.
        """

    def files(self, job_id: str, *, page: Page | None = None) -> list[StoredFile]:
        """Return a run's visible files, by name."""


class InteractiveStore(Protocol):
    """Interactive runs: a process, or the script of a job, logs into them; no target starts them.

    Such a run is a job of kind ``interactive``. It is Running from the start, with attempt 1.
    """

    def start_run(self, new: NewRun) -> tuple[Job, bool]:
        """Write an interactive run durably; return it and whether it is new.

        An existing interactive run with this id and parent is returned unchanged, and the flag is
        False, so that a call whose answer was lost can be repeated.

        Raises:
            NotFoundError: there is no such parent.
            UsageError: the id is taken; its writer is an attempt that has ended; the parent is a
                pipeline run.
        """

    def end_run(
        self,
        run_id: str,
        *,
        outcome: Outcome,
        reason: str = "",
        failure: Failure | None = None,
    ) -> bool:
        """Write the one final state of an interactive run durably; False if it has already ended.

        Args:
            run_id: The run.
            outcome: Completed, Failed or Canceled; the state follows from it.
            reason: One sentence, for people.
            failure: What went wrong.

        Raises:
            UsageError: it is not an interactive run.
        """

    def run_writers(self) -> list[tuple[str, Writer]]:
        """Return the unfinished interactive runs, oldest first, each with its writer."""

    def end_orphans(self, runs: Sequence[str], *, reasons: Mapping[str, str]) -> tuple[str, ...]:
        """End runs whose process is gone, in this order; return those that had not yet ended.

        A run whose parent has ended ends like its parent, any other is Failed.

        Args:
            runs: Ids, parents before their children.
            reasons: What happened to each run's process, by run.
        """

    def set_run_snapshot(self, run_id: str, snapshot: str) -> bool:
        """Give an interactive run the digest of its code; False if it has one."""
