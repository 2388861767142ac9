"""The state changes of jobs: start, move, hosts and exits, finish, requeue, cancel."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rayjobs.core.errors import TransitionError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.records import (
    INTERACTIVE,
    Attempt,
    Job,
    ModelDraft,
    ModelRefusal,
    kind_text,
)
from rayjobs.jobs.states import FINAL, LIVE, JobState
from rayjobs.store import transitions
from rayjobs.store.arrays import KIND as ARRAY
from rayjobs.store.arrays import UNFINISHED_MEMBERS, end_of, note_placed, note_started
from rayjobs.store.interactive import RunEnds
from rayjobs.store.models import refusals, register_all
from rayjobs.store.pipelines import KIND as PIPELINE
from rayjobs.store.pipelines import UNFINISHED as UNFINISHED_STEPS
from rayjobs.store.pipelines import PipelineEnds
from rayjobs.store.rows import (
    attempt_of,
    cancellation_text,
    failure_of,
    failure_text,
    job_of,
    time_text,
    to_json,
)

if TYPE_CHECKING:
    from rayjobs.injob.exit_record import ExitRecord
    from rayjobs.jobs.hosts import HostRecord

LIVE_JOBS = f"""
SELECT * FROM jobs
WHERE target = :target AND kind = 'job'
    AND state IN ({", ".join(f"'{state}'" for state in sorted(LIVE))})
ORDER BY serial
"""  # noqa: S608 - made of our own names

SET_REASON = f"""
UPDATE jobs SET reason = :reason
WHERE id = :job AND attempt = :attempt
    AND state IN ({", ".join(f"'{state}'" for state in sorted(LIVE))})
"""  # noqa: S608 - made of our own names

SCRIPT_ERROR = "script_error"  # a script has called run.fail()
STATED = """
SELECT message FROM events WHERE job = :job AND attempt = :attempt AND kind = :kind
ORDER BY serial LIMIT 1
"""

NEWEST_ATTEMPT = "SELECT * FROM attempts WHERE job = :job AND number = :attempt"


class AttemptsPart(RunEnds, PipelineEnds):
    """Every change of a job's state, each conditional on the state and the attempt."""

    def start(
        self,
        job_id: str,
        *,
        attempt: int,
        allocation: str,
        epoch: str | None = None,
        changed_at: datetime | None = None,
    ) -> Attempt | None:
        """See `Store.start`."""
        now = self._now()
        values = {
            "job": job_id,
            "attempt": attempt,
            "now": now,
            "allocation": allocation,
            "epoch": epoch,
            "changed_at": time_text(changed_at),
        }
        with self._database.write() as connection:
            started = connection.execute(transitions.START, values).fetchone()
            if started is None:
                self._row(connection, job_id)
                return None
            values["attempt"] = started["attempt"]
            row = connection.execute(transitions.INSERT_ATTEMPT, values).fetchone()
            self._state_event(
                connection,
                job_id,
                JobState.QUEUED,
                JobState.PROVISIONING,
                now=now,
                attempt=started["attempt"],
            )
            note_placed(connection, started, now)
            return attempt_of(row)

    def move(
        self, job_id: str, *, attempt: int, old: JobState, new: JobState, reason: str = ""
    ) -> bool:
        """See `Store.move`."""
        statement = transitions.MOVES.get((old, new))
        if statement is None:
            raise TransitionError(
                f"job {job_id!r} cannot be moved from {old} to {new}: use `finish` for final "
                f"states, `requeue` for {JobState.QUEUED}, `start` for {JobState.PROVISIONING}",
                job=job_id,
                old=old,
                new=new,
            )
        now = self._now()
        values = {"job": job_id, "attempt": attempt, "now": now, "reason": reason}
        with self._database.write() as connection:
            if connection.execute(statement, values).fetchone() is None:
                self._row(connection, job_id)
                return False
            if new is JobState.RUNNING:
                connection.execute(transitions.ATTEMPT_STARTED, values)
                note_started(connection, self._row(connection, job_id), now)
            self._state_event(connection, job_id, old, new, now=now, attempt=attempt, reason=reason)
        return True

    def set_reason(self, job_id: str, *, attempt: int, reason: str) -> bool:
        """See `Store.set_reason`."""
        values = {"job": job_id, "attempt": attempt, "reason": reason}
        with self._database.write() as connection:
            return connection.execute(SET_REASON, values).rowcount == 1

    def set_hosts(
        self,
        job_id: str,
        *,
        attempt: int,
        hosts: Sequence[HostRecord],
        cold_reason: str | None = None,
    ) -> bool:
        """See `Store.set_hosts`."""
        values = {
            "job": job_id,
            "attempt": attempt,
            "hosts": to_json([host.to_json() for host in hosts]),
            "cold_reason": cold_reason,
        }
        with self._database.write() as connection:
            return connection.execute(transitions.SET_HOSTS, values).rowcount == 1

    def record_exit(self, job_id: str, *, attempt: int, exits: Sequence[ExitRecord]) -> bool:
        """See `Store.record_exit`. Existing records of other nodes stay."""
        key = {"job": job_id, "attempt": attempt}
        with self._database.write() as connection:
            row = connection.execute(NEWEST_ATTEMPT, key).fetchone()
            if row is None or self._row(connection, job_id)["attempt"] != attempt:
                return False
            kept = {record.get("node", 0): record for record in json.loads(row["exits"])}
            new = {record.node: record.to_json() for record in exits}
            merged = to_json([record for _, record in sorted((kept | new).items())])
            if merged == row["exits"]:
                return True  # reported earlier, perhaps by a call whose answer was lost
            values = {**key, "exits": merged}
            return connection.execute(transitions.SET_EXITS, values).rowcount == 1

    def finish(
        self,
        job_id: str,
        *,
        attempt: int,
        state: JobState,
        reason: str = "",
        failure: Failure | None = None,
        outcome: Outcome | None = None,
        models: Sequence[ModelDraft | ModelRefusal] = (),
        also_requeued: bool = False,
    ) -> bool:
        """See `Store.finish`.

        Raises:
            ValueError: models were given with a state other than Completed.
            TransitionError: `state` is not final, or no transition leads to it from the job's state
                (only a job that is Finalizing can be Completed).
        """
        statement = transitions.ENDS.get(state)
        if statement is None:
            raise TransitionError(
                f"job {job_id!r} cannot be finished as {state}: final states are "
                f"{', '.join(sorted(FINAL))}",
                job=job_id,
                new=state,
            )
        if models and state is not JobState.COMPLETED:
            raise ValueError(f"job {job_id!r} ends as {state}, and only completed runs have models")
        now = self._now()
        with self._database.write(durable=True) as connection:
            row = self._row(connection, job_id)
            old = JobState(row["state"])
            stated = _stated_failure(connection, row, state)
            if stated is not None:
                state, failure, reason, models = JobState.FAILED, stated, stated.message, ()
                outcome, statement = Outcome.FAILED, transitions.ENDS[JobState.FAILED]
            if row["attempt"] != attempt or old.is_final:
                return False
            if old is JobState.QUEUED and not also_requeued:
                known = connection.execute(NEWEST_ATTEMPT, {"job": job_id, "attempt": attempt})
                if known.fetchone() is not None:
                    return False
            registrations = register_all(connection, row, models, now)
            reason = reason or refusals(registrations)
            cancellation = None
            if state is JobState.CANCELED and (row["cancel_requested_at"] or not reason):
                cancellation = self._cancellation(connection, job_id, remarks=reason)
                reason = cancellation.sentence
            values = {
                "job": job_id,
                "attempt": attempt,
                "now": now,
                "reason": reason,
                "cancellation": cancellation_text(cancellation),
                "failure": failure_text(failure),
                "outcome": str(outcome or state),
            }
            if connection.execute(statement, values).fetchone() is None:
                raise TransitionError(
                    f"job {job_id!r} is {old} and cannot become {state}",
                    job=job_id,
                    old=old,
                    new=state,
                )
            connection.execute(transitions.END_ATTEMPT, values)
            for kind, message, data in registrations:
                self._event(connection, job_id, kind, message, now=now, attempt=attempt, data=data)
            self._state_event(
                connection, job_id, old, state, now=now, attempt=attempt, reason=reason
            )
            self._attempt_ended(
                connection, job_id, attempt, outcome or Outcome(str(state).lower()), now
            )
            self._array_ended(connection, row, now)
            self._step_ended(connection, row, now)
        return True

    def requeue(
        self,
        job_id: str,
        *,
        attempt: int,
        reason: str,
        outcome: Outcome,
        failure: Failure | None = None,
        not_before: datetime | None = None,
        hold: str | None = None,
        if_without_hosts: bool = False,
    ) -> bool:
        """See `Store.requeue`."""
        now = self._now()
        values = {
            "job": job_id,
            "attempt": attempt,
            "now": now,
            "reason": reason,
            "outcome": str(outcome),
            "failure": failure_text(failure),
            "not_before": time_text(not_before),
            "hold": hold,
        }
        # Durable, since the job may get a final state.
        with self._database.write(durable=True) as connection:
            row = self._row(connection, job_id)
            old, new = JobState(row["state"]), JobState.QUEUED
            if row["attempt"] != attempt or not old.is_live:
                return False
            if if_without_hosts:
                known = connection.execute(NEWEST_ATTEMPT, values).fetchone()
                if known is not None and json.loads(known["hosts"]):
                    return False
            if connection.execute(transitions.REQUEUE, values).fetchone() is None:
                # The cancel request came first; the queue would never start the job.
                new = JobState.CANCELED
                canceled = self._cancellation(connection, job_id, requeue_reason=reason)
                reason = values["reason"] = canceled.sentence
                values["cancellation"] = cancellation_text(canceled)
                stated = _stated_failure(connection, row, new)
                if stated is not None:
                    new = JobState.FAILED
                    values["failure"] = failure_text(stated)
                connection.execute(transitions.ENDS[new], values)
            connection.execute(transitions.END_ATTEMPT, values)
            self._state_event(connection, job_id, old, new, now=now, attempt=attempt, reason=reason)
            self._attempt_ended(connection, job_id, attempt, outcome, now)
            if new.is_final:
                self._array_ended(connection, row, now)
                self._step_ended(connection, row, now)
        return True

    def request_cancel(self, job_id: str, *, by: str = "") -> JobState:
        """See `Store.request_cancel`."""
        now = self._now()
        with self._database.write(durable=True) as connection:
            row = self._row(connection, job_id)
            if row["kind"] == ARRAY and not JobState(row["state"]).is_final:
                members = connection.execute(UNFINISHED_MEMBERS, {"parent": job_id}).fetchall()
                # The array first: the end of its last member ends it.
                self._request_cancel(connection, row, now, by)
                for member in members:
                    self._request_cancel(connection, member, now, by)
                return JobState(self._row(connection, job_id)["state"])
            if row["kind"] == PIPELINE and not JobState(row["state"]).is_final:
                steps = connection.execute(UNFINISHED_STEPS, {"pipeline": job_id}).fetchall()
                self._request_cancel_alone(connection, row, now, by)
                for step in steps:
                    self._request_cancel_alone(connection, step, now, by)
                self._go_on(connection, job_id, now)
                return JobState(self._row(connection, job_id)["state"])
            return self._request_cancel(connection, row, now, by)

    def request_fail(self, job_id: str, *, by: str = "", failure: Failure) -> JobState:
        """See `Store.request_fail`."""
        now = self._now()
        values = {"job": job_id, "failure": failure_text(failure)}
        with self._database.write(durable=True) as connection:
            row = self._row(connection, job_id)
            if row["kind"] == INTERACTIVE:
                self._end_run(
                    connection,
                    row,
                    outcome=Outcome.FAILED,
                    reason=failure.message,
                    failure=failure,
                    now=now,
                )
                return JobState(self._row(connection, job_id)["state"])
            if row["kind"] != "job":
                raise UsageError(
                    f"{job_id} is {kind_text(row['kind'])}, which ends like its jobs; fail one of "
                    "them, or cancel it",
                    job=job_id,
                )
            if not JobState(row["state"]).is_final:
                connection.execute("UPDATE jobs SET failure = :failure WHERE id = :job", values)
            state = JobState(row["state"])
            if state is JobState.QUEUED:
                self._fail_queued(connection, row, failure, now)
                return JobState.FAILED
            return self._request_cancel(connection, row, now, by)

    def _fail_queued(
        self, connection: sqlite3.Connection, row: sqlite3.Row, failure: Failure, now: str
    ) -> None:
        values = {
            "job": row["id"],
            "attempt": row["attempt"],
            "now": now,
            "reason": failure.message,
            "failure": failure_text(failure),
        }
        connection.execute(transitions.FAIL, values)
        self._state_event(
            connection,
            row["id"],
            JobState.QUEUED,
            JobState.FAILED,
            now=now,
            attempt=row["attempt"],
            reason=failure.message,
        )
        self._array_ended(connection, row, now)
        self._step_ended(connection, row, now)

    def _request_cancel(
        self, connection: sqlite3.Connection, row: sqlite3.Row, now: str, by: str
    ) -> JobState:
        state = JobState(row["state"])
        is_ending = state.is_final or row["cancel_requested_at"] is not None
        if row["kind"] == INTERACTIVE and not is_ending:
            # No target ends its process; later logs are stored but change no state.
            self._end_run(
                connection,
                row,
                outcome=Outcome.CANCELED,
                cancellation=Cancellation(by),
                failure=None,
                now=now,
            )
            return JobState.CANCELED
        state = self._request_cancel_alone(connection, row, now, by)
        if state is JobState.CANCELED and row["state"] == JobState.QUEUED:
            self._array_ended(connection, row, now)
            self._step_ended(connection, row, now)
        return state

    def _array_ended(self, connection: sqlite3.Connection, member: sqlite3.Row, now: str) -> None:
        """End the array of a member that has ended, if it was the last one."""
        end = end_of(connection, member)
        if end is None:
            return
        self._end_parent(
            connection, end.array, end.state, reason=end.counts, failure=end.failure, now=now
        )

    # -- reading -----------------------------------------------------------------------------

    def attempts(self, job_id: str) -> list[Attempt]:
        """See `Store.attempts`."""
        with self._database.read() as connection:
            self._row(connection, job_id)
            rows = connection.execute(
                "SELECT * FROM attempts WHERE job = :job ORDER BY number", {"job": job_id}
            ).fetchall()
        return [attempt_of(row) for row in rows]

    def live(self, target: str) -> list[tuple[Job, Attempt]]:
        """See `Store.live`."""
        found: list[tuple[sqlite3.Row, sqlite3.Row]] = []
        with self._database.read() as connection:
            for job in connection.execute(LIVE_JOBS, {"target": target}).fetchall():
                key = {"job": job["id"], "attempt": job["attempt"]}
                found.append((job, connection.execute(NEWEST_ATTEMPT, key).fetchone()))
        return [(job_of(job), attempt_of(attempt)) for job, attempt in found]


def _stated_failure(
    connection: sqlite3.Connection, row: sqlite3.Row, state: JobState
) -> Failure | None:
    """Return the failure that a user or script reported for an attempt that ends differently.

    The user requested the end with it (`request_fail`), or the script called ``run.fail()``.
    """
    if state is JobState.CANCELED and row["cancel_requested_at"] is not None:
        return failure_of(row["failure"])
    if state is not JobState.COMPLETED:
        return None
    values = {"job": row["id"], "attempt": row["attempt"], "kind": SCRIPT_ERROR}
    found = connection.execute(STATED, values).fetchone()
    return None if found is None else Failure(FailureClass.USER, str(found["message"]))
