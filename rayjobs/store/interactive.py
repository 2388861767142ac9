"""Interactive runs: rows that a process logs into and no target starts, and their end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.outcomes import final_state
from rayjobs.jobs.records import INTERACTIVE, Job, kind_text
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import AttemptWriter, Writer, writer_of
from rayjobs.store import transitions
from rayjobs.store.names import next_name
from rayjobs.store.part import Part
from rayjobs.store.pipelines import refuse_child
from rayjobs.store.requests import NewRun
from rayjobs.store.rows import cancellation_text, failure_of, failure_text, job_of, to_json

ATTEMPT = 1  # the only attempt of an interactive run
DEFAULT_NAME = "run"

# Like a sweep, a run waits for no allocation: its row is Running, and no target ever starts it.
INSERT = """
INSERT INTO jobs (id, experiment, name, display_name, kind, parent, target, submitted_by, snapshot,
    spec, state, attempt, reason, priority, submitted_at, changed_at, started_at, placed_at,
    tags, properties, tail, description)
VALUES (:id, :experiment, :name, :display_name, 'interactive', :parent, 'interactive', :user,
    :snapshot, :spec, 'Running', :attempt, '', 0, :submitted_at, :now, :now, :now,
    :tags, :properties, :tail, :description)
RETURNING *
"""
INSERT_WRITER = """
INSERT INTO writers (run, job, attempt, process) VALUES (:id, :owner, :owner_attempt, :process)
"""
REMOVE_WRITER = "DELETE FROM writers WHERE run = :job"
WRITERS = """
SELECT writers.* FROM writers JOIN jobs ON jobs.id = writers.run ORDER BY jobs.serial
"""
# A job's earlier attempts have also ended.
WRITTEN_BY = """
SELECT jobs.* FROM writers JOIN jobs ON jobs.id = writers.run
WHERE writers.job = :job AND writers.attempt <= :attempt ORDER BY jobs.serial
"""
SET_SNAPSHOT = "UPDATE jobs SET snapshot = :snapshot WHERE id = :job AND snapshot IS NULL"


class RunEnds(Part):
    """Ends interactive runs: on their own request, or with their writer."""

    def _end_run(
        self,
        connection: sqlite3.Connection,
        row: sqlite3.Row,
        *,
        outcome: Outcome,
        failure: Failure | None,
        now: str,
        reason: str = "",
        cancellation: Cancellation | None = None,
    ) -> bool:
        """End a run; False if it has ended already.

        Args:
            connection: The transaction's connection.
            row: The run.
            outcome: Completed, Failed or Canceled.
            failure: What went wrong.
            now: The time.
            reason: Why it ends; not used with a `cancellation`.
            cancellation: Who canceled it; its sentence becomes the reason.
        """
        if cancellation is not None:
            reason = cancellation.sentence
        old, state = JobState(row["state"]), final_state(outcome)
        if old.is_final:
            return False
        values = {
            "job": row["id"],
            "attempt": row["attempt"],
            "now": now,
            "reason": reason,
            "cancellation": cancellation_text(cancellation),
            "failure": failure_text(failure),
            "outcome": str(outcome),
        }
        if state is JobState.COMPLETED and old is JobState.RUNNING:
            connection.execute(transitions.MOVE_TO_FINALIZING, {**values, "reason": ""})
        connection.execute(transitions.ENDS[state], values)
        connection.execute(transitions.END_ATTEMPT, values)
        connection.execute(REMOVE_WRITER, values)
        self._state_event(
            connection, row["id"], old, state, now=now, attempt=row["attempt"], reason=reason
        )
        return True

    def _attempt_ended(
        self, connection: sqlite3.Connection, job: str, attempt: int, outcome: Outcome, now: str
    ) -> None:
        """End the unfinished runs of an attempt's script, with the attempt's outcome."""
        values = {"job": job, "attempt": attempt}
        rows = connection.execute(WRITTEN_BY, values).fetchall()
        if not rows:
            return
        if outcome is Outcome.COMPLETED:
            reason, failure = f"its script, attempt {attempt} of {job}, has completed", None
        elif outcome is Outcome.CANCELED:
            reason, failure = f"attempt {attempt} of {job} was canceled", None
        else:
            outcome = Outcome.FAILED
            reason = f"attempt {attempt} of {job} ended before this run was completed"
            failure = Failure(FailureClass.USER, reason)
        for row in rows:
            self._end_run(connection, row, outcome=outcome, reason=reason, failure=failure, now=now)


class InteractivePart(RunEnds):
    """Rows of interactive runs and of their writers."""

    def start_run(self, new: NewRun) -> tuple[Job, bool]:
        """See `Store.start_run`."""
        from rayjobs.spec.model import JobSpec  # pydantic: only for calls that read a spec

        now = self._now()
        new_id = new.id or ids.job_id(new.experiment)
        writer = writer_of(new.writer)
        owner = writer if isinstance(writer, AttemptWriter) else None
        # The run never executes it, but each job has a spec.
        spec = JobSpec(name="interactive", command="", target=INTERACTIVE)
        values = {
            "id": new_id,
            "tail": new_id.rpartition("_")[2],
            "experiment": new.experiment,
            "name": spec.name,
            "parent": new.parent,
            "user": new.user,
            "snapshot": new.snapshot,
            "spec": spec.to_json(),
            "now": now,
            "tags": to_json(dict(new.tags)),
            "properties": to_json(dict(new.properties)),
            "description": new.description,
            "attempt": ATTEMPT,
            "owner": owner.job if owner else None,
            "owner_attempt": owner.attempt if owner else None,
            "process": None if owner else to_json(dict(new.writer)),
        }
        with self._database.write(durable=True) as connection:
            if new.parent is not None:
                self._row(connection, new.parent)
                refuse_child(connection, new.parent)
            if owner is not None:
                self._require_live(connection, owner)
            known = connection.execute(
                "SELECT * FROM jobs WHERE id = :id AND kind = 'interactive'", values
            ).fetchone()
            if known is not None and known["parent"] == new.parent:
                return job_of(known), False
            values["submitted_at"] = self._submitted(connection, now)
            values["display_name"] = new.name or next_name(connection, DEFAULT_NAME)
            try:
                row = connection.execute(INSERT, values).fetchone()
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"a run {new_id!r} already exists; leave out run_id to get a new id",
                    job=new_id,
                ) from error
            connection.execute(INSERT_WRITER, values)
            connection.execute(
                transitions.INSERT_ATTEMPT,
                {"job": new_id, "attempt": ATTEMPT, "allocation": None, "now": now},
            )
            connection.execute(
                transitions.ATTEMPT_STARTED, {"job": new_id, "attempt": ATTEMPT, "now": now}
            )
            self._state_event(connection, new_id, None, JobState.RUNNING, now=now, attempt=ATTEMPT)
        return job_of(row), True

    def _require_live(self, connection: sqlite3.Connection, owner: AttemptWriter) -> None:
        job = self._row(connection, owner.job)
        if job["attempt"] != owner.attempt or not JobState(job["state"]).is_live:
            raise UsageError(
                f"attempt {owner.attempt} of {owner.job} has ended; it can start no more runs",
                job=owner.job,
            )

    def end_run(
        self,
        run_id: str,
        *,
        outcome: Outcome,
        reason: str = "",
        failure: Failure | None = None,
    ) -> bool:
        """See `Store.end_run`."""
        with self._database.write(durable=True) as connection:
            row = self._row(connection, run_id)
            if row["kind"] != INTERACTIVE:
                raise UsageError(
                    f"{run_id} is {kind_text(row['kind'])}, which its target ends; only an "
                    "interactive run can be ended by its writer",
                    job=run_id,
                )
            return self._end_run(
                connection,
                row,
                outcome=outcome,
                reason=reason,
                failure=failure,
                now=self._now(),
            )

    def run_writers(self) -> list[tuple[str, Writer]]:
        """See `Store.run_writers`."""
        with self._database.read() as connection:
            rows = connection.execute(WRITERS).fetchall()
        return [(row["run"], writer_of(_writer_values(row))) for row in rows]

    def end_orphans(self, runs: Sequence[str], *, reasons: Mapping[str, str]) -> tuple[str, ...]:
        """See `Store.end_orphans`."""
        ended = []
        now = self._now()
        with self._database.write(durable=True) as connection:
            for run in runs:
                row = self._row(connection, run)
                outcome, reason, failure = _end_of_orphan(connection, row, reasons[run])
                if self._end_run(
                    connection, row, outcome=outcome, reason=reason, failure=failure, now=now
                ):
                    ended.append(run)
        return tuple(ended)

    def set_run_snapshot(self, run_id: str, snapshot: str) -> bool:
        """See `Store.set_run_snapshot`."""
        with self._database.write(durable=True) as connection:
            if self._row(connection, run_id)["kind"] != INTERACTIVE:
                return False
            values = {"job": run_id, "snapshot": snapshot}
            return connection.execute(SET_SNAPSHOT, values).rowcount == 1


def _writer_values(row: sqlite3.Row) -> dict[str, Any]:
    if row["process"] is not None:
        values: dict[str, Any] = json.loads(row["process"])
        return values
    return {"kind": "attempt", "job": row["job"], "attempt": row["attempt"]}


def _end_of_orphan(
    connection: sqlite3.Connection, row: sqlite3.Row, why: str
) -> tuple[Outcome, str, Failure | None]:
    """Return the end of a run whose process is gone: like its parent's, else Failed."""
    parent = connection.execute(
        "SELECT * FROM jobs WHERE id = :parent", {"parent": row["parent"]}
    ).fetchone()
    state = None if parent is None else JobState(parent["state"])
    if state is JobState.COMPLETED:
        return Outcome.COMPLETED, "its parent run has completed", None
    if state is JobState.CANCELED:
        return Outcome.CANCELED, "its parent run was canceled", None
    of_parent = failure_of(parent["failure"]) if state is JobState.FAILED else None
    failure = of_parent or Failure(FailureClass.USER, why)
    return Outcome.FAILED, failure.message, failure
