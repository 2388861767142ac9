"""What all parts of the SQL store share: the database, the clock, history lines."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import Clock, to_text
from rayjobs.core.errors import NotFoundError
from rayjobs.core.failures import Failure
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.events import CancelRequested, SpecRevised, StateChanged
from rayjobs.jobs.states import JobState
from rayjobs.store.rows import cancellation_text, event_of, failure_text, to_json
from rayjobs.store.transitions import ENDS, INSERT_EVENT, MOVE_TO_FINALIZING

if TYPE_CHECKING:
    from rayjobs.store.database import StoreDatabase

# The newest request to end a job while it was running.
CANCELED_BY = """
SELECT * FROM events WHERE job = :job AND kind = :kind ORDER BY serial DESC LIMIT 1
"""
LAST_SUBMIT = "SELECT submitted_at FROM jobs ORDER BY serial DESC LIMIT 1"

FIRST_REVISION = """
SELECT * FROM events WHERE job = :job AND kind = :kind ORDER BY serial LIMIT 1
"""


def first_spec(connection: sqlite3.Connection, row: sqlite3.Row) -> str:
    """Return the spec that a job was submitted with."""
    values = {"job": row["id"], "kind": SpecRevised.KIND}
    found = connection.execute(FIRST_REVISION, values).fetchone()
    revised = None if found is None else SpecRevised.of(event_of(found))
    return str(row["spec"]) if revised is None else revised.before


class Part:
    """Base of the store's parts."""

    _database: StoreDatabase
    _clock: Clock

    def _now(self) -> str:
        return to_text(self._clock.now())

    def _submitted(self, connection: sqlite3.Connection, now: str) -> str:
        """Return the submission time of a job that is written now.

        It is never before that of the last submitted job: clients have their own clocks, and the
        order of the serials is the order of arrival.
        """
        row = connection.execute(LAST_SUBMIT).fetchone()
        return now if row is None else max(now, str(row[0]))

    def _event(
        self,
        connection: sqlite3.Connection,
        job_id: str,
        kind: str,
        message: str,
        *,
        now: str,
        attempt: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        connection.execute(
            INSERT_EVENT,
            {
                "job": job_id,
                "now": now,
                "kind": kind,
                "message": message,
                "attempt": attempt,
                "data": "{}" if not data else to_json(data),
            },
        )

    def _state_event(
        self,
        connection: sqlite3.Connection,
        job_id: str,
        old: JobState | None,
        new: JobState,
        *,
        now: str,
        attempt: int,
        reason: str = "",
    ) -> None:
        step = str(new) if old is None else f"{old} → {new}"
        self._event(
            connection,
            job_id,
            StateChanged.KIND,
            f"{step}: {reason}" if reason else step,
            now=now,
            attempt=attempt,
            data=StateChanged(old=old, new=new).to_json(),
        )

    def _cancellation(
        self,
        connection: sqlite3.Connection,
        job_id: str,
        *,
        remarks: str = "",
        requeue_reason: str = "",
    ) -> Cancellation:
        """Return the cancellation of a job whose end was requested while it was running."""
        values = {"job": job_id, "kind": CancelRequested.KIND}
        found = connection.execute(CANCELED_BY, values).fetchone()
        request = None if found is None else CancelRequested.of(event_of(found))
        return Cancellation("" if request is None else request.by, remarks, requeue_reason)

    def _end_parent(
        self,
        connection: sqlite3.Connection,
        row: sqlite3.Row,
        state: JobState,
        *,
        reason: str,
        failure: Failure | None,
        now: str,
    ) -> None:
        """End an array or a pipeline run whose jobs have all ended.

        Args:
            reason: How its jobs ended.
        """
        cancellation = None
        if state is JobState.CANCELED and row["cancel_requested_at"] is not None:
            cancellation = self._cancellation(connection, row["id"], remarks=reason)
            reason = cancellation.sentence
        values = {
            "job": row["id"],
            "attempt": row["attempt"],
            "now": now,
            "reason": reason,
            "cancellation": cancellation_text(cancellation),
            "failure": failure_text(failure),
        }
        old = JobState(row["state"])
        if state is JobState.COMPLETED and old is JobState.RUNNING:
            connection.execute(MOVE_TO_FINALIZING, {**values, "reason": ""})
            self._state_event(connection, row["id"], old, JobState.FINALIZING, now=now, attempt=0)
            old = JobState.FINALIZING
        connection.execute(ENDS[state], values)
        self._state_event(connection, row["id"], old, state, now=now, attempt=0, reason=reason)

    def _row(self, connection: sqlite3.Connection, job_id: str) -> sqlite3.Row:
        row: sqlite3.Row | None = connection.execute(
            "SELECT * FROM jobs WHERE id = :job", {"job": job_id}
        ).fetchone()
        if row is None:
            raise NotFoundError(
                f"no job {job_id!r} in the store {self._database.where}; `rayjobs ls --all` "
                f"lists all jobs",
                job=job_id,
            )
        return row
