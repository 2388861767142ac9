"""The contract of interactive runs, part of `Store`: see the docstring of `rayjobs.store.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rayjobs.core.failures import Failure
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.writers import Writer
from rayjobs.store.requests import NewRun


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
