"""Pipeline runs: a parent that runs nothing itself, and its steps, which are jobs.

No process drives a pipeline. Steps are queued with their dependencies, all in one transaction; the
transaction that ends a step also does what follows from it: a waiting sweep starts, after a failure
other steps are canceled, and the last step's end is that of the pipeline.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.events import CancelRequested
from rayjobs.jobs.records import Pipeline, StepRow
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store import transitions
from rayjobs.store.part import Part
from rayjobs.store.references import refuse_removed
from rayjobs.store.requests import NewPipeline, NewStep
from rayjobs.store.rows import cancellation_text, failure_of, job_of, to_json

KIND = "pipeline"

INSERT_JOB = """
INSERT INTO jobs (id, idempotency_key, experiment, name, display_name, kind, parent, target,
    submitted_by, snapshot, spec, state, attempt, reason, priority, submitted_at, changed_at,
    started_at, ended_at, tags, properties, tail, entry)
VALUES (:id, :idempotency_key, :experiment, :name, :display_name, :kind, :parent, :target,
    :submitted_by, :snapshot, :spec, :state, 0, :reason, :priority, :submitted_at, :now,
    :started_at, :ended_at, :tags, :properties, :tail, :entry)
"""
INSERT_PIPELINE = """
INSERT INTO pipelines (job, spec, parameters, continues, published)
VALUES (:id, :definition, :parameters, :continues, :published)
"""
INSERT_STEP = """
INSERT INTO steps (pipeline, number, name, pipeline_name, job, after, reuse_key, parts, original,
    decision)
VALUES (:pipeline, :number, :step, :pipeline_name, :id, :after, :reuse_key, :parts, :original,
    :decision)
"""
INSERT_SWEEP = "INSERT INTO sweeps (job, driver, spec) VALUES (:id, :driver, :sweep)"

PIPELINE = """
SELECT jobs.*, pipelines.spec AS pipeline_spec, pipelines.parameters, pipelines.continues,
    pipelines.published
FROM pipelines JOIN jobs ON jobs.id = pipelines.job
"""
STEPS = "SELECT * FROM steps WHERE pipeline = :pipeline ORDER BY number"
STEP_OF = "SELECT * FROM steps WHERE job = :job"
# The newest job first: an older one has older outputs.
REUSABLE = """
SELECT steps.* FROM steps JOIN jobs ON jobs.id = steps.job
WHERE steps.reuse_key = :key AND steps.original IS NULL AND jobs.state = 'Completed'
ORDER BY jobs.serial DESC LIMIT :most
"""
EARLIER = """
SELECT steps.* FROM steps JOIN jobs ON jobs.id = steps.job
WHERE steps.pipeline_name = :pipeline_name AND steps.name = :step
    AND steps.original IS NULL AND jobs.state = 'Completed'
    AND (:before IS NULL OR jobs.serial < (SELECT serial FROM jobs WHERE id = :before))
ORDER BY jobs.serial DESC LIMIT 1
"""

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))
# Only steps count: a store of an earlier version may have other children of a pipeline run.
_STEPS = "FROM steps JOIN jobs ON jobs.id = steps.job WHERE steps.pipeline = :pipeline"
UNFINISHED = f"""
SELECT jobs.* {_STEPS} AND jobs.state NOT IN ({_FINAL}) ORDER BY jobs.serial
"""
ANY_UNFINISHED = f"""
SELECT 1 {_STEPS} AND jobs.state NOT IN ({_FINAL}) LIMIT 1
"""
WAITING_SWEEPS = """
SELECT * FROM jobs WHERE parent = :pipeline AND kind = 'sweep' AND state = 'Queued'
"""
START_SWEEP = """
UPDATE jobs SET state = 'Running', changed_at = :now, placed_at = :now
WHERE id = :job AND kind = 'sweep' AND state = 'Queued'
"""
COUNTS = f"SELECT jobs.state, COUNT(*) AS n {_STEPS} GROUP BY jobs.state"
FIRST_FAILED = """
SELECT jobs.id, jobs.failure, jobs.reason, steps.name FROM jobs
JOIN steps ON steps.job = jobs.id
WHERE jobs.parent = :pipeline AND jobs.state = 'Failed' ORDER BY jobs.ended_at, jobs.serial
"""


class PipelineEnds(Part):
    """What happens to a pipeline when a step ends, in the same transaction."""

    def _step_ended(self, connection: sqlite3.Connection, step: sqlite3.Row, now: str) -> None:
        """Apply the consequences of a step's end: start, cancel, end.

        Args:
            step: The row of a job, which may not be a step; its state may be older than the end.
        """
        if step["parent"] is None:
            return
        known = connection.execute(STEP_OF, {"job": step["id"]}).fetchone()
        if known is None:
            return
        pipeline = {"pipeline": known["pipeline"]}
        row = connection.execute(f"{PIPELINE} WHERE jobs.id = :pipeline", pipeline).fetchone()
        if row is None or JobState(row["state"]).is_final:
            return
        ended = self._row(connection, step["id"])
        if ended["state"] != JobState.COMPLETED:
            self._cancel_others(connection, row, ended, known["name"], now)
        self._go_on(connection, row["id"], now)

    def _go_on(self, connection: sqlite3.Connection, pipeline_id: str, now: str) -> None:
        """Start the sweeps that no longer wait; end the pipeline after its last step."""
        pipeline = {"pipeline": pipeline_id}
        for sweep in connection.execute(WAITING_SWEEPS, pipeline).fetchall():
            if self._may_start(connection, sweep):
                connection.execute(START_SWEEP, {"job": sweep["id"], "now": now})
                self._state_event(
                    connection, sweep["id"], JobState.QUEUED, JobState.RUNNING, now=now, attempt=0
                )
        if connection.execute(ANY_UNFINISHED, pipeline).fetchone() is None:
            self._end_pipeline(connection, pipeline_id, now)

    def _may_start(self, connection: sqlite3.Connection, sweep: sqlite3.Row) -> bool:
        for dependency in json.loads(sweep["spec"]).get("depends_on") or ():
            state = JobState(self._row(connection, dependency["job"])["state"])
            if not state.is_final or (
                dependency["when"] == "ok" and state is not JobState.COMPLETED
            ):
                return False
        return True

    def _cancel_others(
        self,
        connection: sqlite3.Connection,
        pipeline: sqlite3.Row,
        ended: sqlite3.Row,
        name: str,
        now: str,
    ) -> None:
        """Cancel the steps that can no longer run, or must not run, after one did not complete."""
        rows = {
            row["id"]: row
            for row in connection.execute(UNFINISHED, {"pipeline": pipeline["id"]}).fetchall()
        }
        chosen = [*rows]
        if pipeline["continues"]:
            chosen = _dependents(ended["id"], rows)
        by = f"its pipeline: step {name!r} is {ended['state']}"
        for job_id in chosen:
            self._request_cancel_alone(connection, rows[job_id], now, by)

    def _request_cancel_alone(
        self, connection: sqlite3.Connection, row: sqlite3.Row, now: str, by: str
    ) -> JobState:
        """Request the end of one job, without the consequences for its parent.

        Returns:
            The job's state; a queued job is Canceled at once.
        """
        state, job_id, attempt = JobState(row["state"]), row["id"], row["attempt"]
        canceled = Cancellation(by)
        values = {
            "job": job_id,
            "attempt": attempt,
            "now": now,
            "reason": canceled.sentence,
            "cancellation": cancellation_text(canceled),
        }
        if state.is_final or row["cancel_requested_at"] is not None:
            return state
        if state is JobState.QUEUED:
            connection.execute(transitions.CANCEL_QUEUED, values)
            new = JobState.CANCELED
            self._state_event(
                connection, job_id, state, new, now=now, attempt=attempt, reason=canceled.sentence
            )
            return new
        connection.execute("UPDATE jobs SET cancel_requested_at = :now WHERE id = :job", values)
        self._event(
            connection,
            job_id,
            CancelRequested.KIND,
            f"cancel requested by {by}" if by else "cancel requested",
            now=now,
            attempt=attempt,
            data=CancelRequested(by).to_json(),
        )
        return state

    def _end_pipeline(self, connection: sqlite3.Connection, pipeline_id: str, now: str) -> None:
        row = self._row(connection, pipeline_id)
        counts = {
            JobState(one["state"]): int(one["n"])
            for one in connection.execute(COUNTS, {"pipeline": pipeline_id})
        }
        state, failure = JobState.COMPLETED, None
        if counts.get(JobState.FAILED):
            state = JobState.FAILED
            failed = connection.execute(FIRST_FAILED, {"pipeline": pipeline_id}).fetchall()
            failure = _cause(failed, sum(counts.values()))
        elif counts.get(JobState.CANCELED):
            state = JobState.CANCELED
        reason = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        self._end_parent(connection, row, state, reason=reason, failure=failure, now=now)


def _dependents(job_id: str, rows: dict[str, sqlite3.Row]) -> list[str]:
    """Return the jobs among `rows` that need `job_id`, directly or not, in order."""
    needs: dict[str, list[str]] = {}
    for row in rows.values():
        for dependency in json.loads(row["spec"]).get("depends_on") or ():
            if dependency["when"] == "ok":
                needs.setdefault(dependency["job"], []).append(row["id"])
    found: dict[str, None] = {}
    pending = [job_id]
    while pending:
        for one in needs.get(pending.pop(), ()):
            if one not in found:
                found[one] = None
                pending.append(one)
    return [*found]


def _cause(failed: Sequence[sqlite3.Row], total: int) -> Failure:
    """Return the pipeline's failure: that of the first step that failed."""
    first = failed[0]
    known = failure_of(first["failure"])
    message = known.message if known is not None else first["reason"]
    more = f" ({len(failed)} of {total} steps failed)" if len(failed) > 1 else ""
    text = f"step {first['name']!r} failed: {message}{more}"
    if known is None:
        return Failure(FailureClass.USER, text)
    return replace(known, message=text)


class PipelinesPart(PipelineEnds):
    """Rows of pipeline runs and their steps."""

    def put_pipeline(self, new: NewPipeline) -> tuple[Pipeline, bool]:
        """See `Store.put_pipeline`."""
        if not new.steps:
            raise UsageError("a pipeline needs at least one step")
        now = self._now()
        new_id = new.id or ids.job_id(new.experiment)
        with self._database.write(durable=True) as connection:
            if new.idempotency_key is not None:
                known = connection.execute(
                    f"{PIPELINE} WHERE jobs.idempotency_key = :key", {"key": new.idempotency_key}
                ).fetchone()
                if known is not None:
                    return pipeline_of(known), False
            for step in new.steps:
                refuse_removed(connection, step.spec)
                if step.original is not None:
                    _refuse_gone(connection, step)
            common = {
                "experiment": new.experiment,
                "submitted_by": new.user,
                "now": now,
                "submitted_at": self._submitted(connection, now),
            }
            parent = {
                **common,
                **_own(new_id),
                "idempotency_key": new.idempotency_key,
                "name": new.name,
                "display_name": new.display_name,
                "kind": KIND,
                "parent": None,
                "target": new.base.target,
                "snapshot": None,
                "spec": new.base.to_json(),
                "state": str(JobState.RUNNING),
                "reason": "",
                "priority": new.base.priority,
                "started_at": None,
                "ended_at": None,
                "tags": to_json(dict(new.tags)),
                "properties": to_json(dict(new.properties)),
                "entry": "",
                "definition": to_json(dict(new.definition)),
                "parameters": to_json(dict(new.parameters)),
                "continues": int(new.continues),
                "published": new.published,
            }
            rows = [_step_values(new, new_id, step, common) for step in new.steps]
            try:
                connection.execute(INSERT_JOB, parent)
                connection.execute(INSERT_PIPELINE, parent)
                connection.executemany(INSERT_JOB, rows)
                connection.executemany(INSERT_STEP, rows)
                connection.executemany(INSERT_SWEEP, [row for row in rows if row["driver"]])
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"a job {new_id!r}, or one of its steps, or the idempotency key "
                    f"{new.idempotency_key!r}, exists already; use new ones",
                    job=new_id,
                ) from error
            self._state_event(connection, new_id, None, JobState.RUNNING, now=now, attempt=0)
            for row in rows:
                self._state_event(
                    connection,
                    row["id"],
                    None,
                    JobState(row["state"]),
                    now=now,
                    attempt=0,
                    reason=row["reason"],
                )
            self._go_on(connection, new_id, now)
            found = connection.execute(
                f"{PIPELINE} WHERE jobs.id = :pipeline", {"pipeline": new_id}
            ).fetchone()
        return pipeline_of(found), True

    def pipeline(self, pipeline_id: str) -> Pipeline:
        """See `Store.pipeline`."""
        with self._database.read() as connection:
            row = connection.execute(
                f"{PIPELINE} WHERE jobs.id = :pipeline", {"pipeline": pipeline_id}
            ).fetchone()
            if row is None:
                job = self._row(connection, pipeline_id)
                raise NotFoundError(
                    f"{pipeline_id} is a {job['kind']}, not a pipeline; `rayjobs pipeline ls` "
                    f"lists the pipelines, `rayjobs show` shows a job",
                    job=pipeline_id,
                )
        return pipeline_of(row)

    def pipelines(
        self, *, experiment: str | None = None, limit: int | None = None
    ) -> list[Pipeline]:
        """See `Store.pipelines`."""
        values = {"experiment": experiment, "limit": -1 if limit is None else limit}
        with self._database.read() as connection:
            rows = connection.execute(
                f"{PIPELINE} WHERE (:experiment IS NULL OR jobs.experiment = :experiment)"
                " ORDER BY jobs.serial DESC LIMIT :limit",
                values,
            ).fetchall()
        return [pipeline_of(row) for row in rows]

    def steps(self, pipeline_id: str) -> list[StepRow]:
        """See `Store.steps`."""
        with self._database.read() as connection:
            rows = connection.execute(STEPS, {"pipeline": pipeline_id}).fetchall()
        return [_step_of(row) for row in rows]

    def step_of(self, job_id: str) -> StepRow | None:
        """See `Store.step_of`."""
        with self._database.read() as connection:
            row = connection.execute(STEP_OF, {"job": job_id}).fetchone()
        return None if row is None else _step_of(row)

    def reusable_steps(self, key: str, *, most: int = 5) -> list[StepRow]:
        """See `Store.reusable_steps`."""
        with self._database.read() as connection:
            rows = connection.execute(REUSABLE, {"key": key, "most": most}).fetchall()
        return [_step_of(row) for row in rows]

    def earlier_step(
        self, pipeline_name: str, step: str, *, before: str | None = None
    ) -> StepRow | None:
        """See `Store.earlier_step`."""
        values = {"pipeline_name": pipeline_name, "step": step, "before": before}
        with self._database.read() as connection:
            row = connection.execute(EARLIER, values).fetchone()
        return None if row is None else _step_of(row)


def refuse_child(connection: sqlite3.Connection, parent: str | None) -> None:
    """Check that a new job or interactive run may have this parent.

    Raises:
        UsageError: the parent is a pipeline run, whose only children are its steps.
    """
    if parent is None:
        return
    found = connection.execute("SELECT kind FROM jobs WHERE id = :job", {"job": parent}).fetchone()
    if found is not None and found["kind"] == KIND:
        raise UsageError(
            f"{parent} is a pipeline run: its only children are its steps. Start or submit the "
            f"child below one of its steps, or without a parent",
            job=parent,
        )


def _refuse_gone(connection: sqlite3.Connection, step: NewStep) -> None:
    """Check that the job whose results a step reuses still exists.

    Raises:
        UsageError: it has been pruned since it was found.
    """
    found = connection.execute(
        "SELECT state FROM jobs WHERE id = :job", {"job": step.original}
    ).fetchone()
    if found is None or found["state"] != JobState.COMPLETED:
        raise UsageError(
            f"{step.original}, whose results step {step.name!r} would reuse, was pruned "
            f"meanwhile; nothing was submitted. Submit the pipeline again",
            job=step.original,
        )


def _own(job_id: str) -> dict[str, Any]:
    return {"id": job_id, "tail": job_id.rpartition("_")[2]}


def _step_values(
    new: NewPipeline, pipeline_id: str, step: NewStep, common: dict[str, Any]
) -> dict[str, Any]:
    spec, now = step.spec, common["now"]
    state, reason, at = JobState.QUEUED, "", None
    if step.original is not None:
        state, reason, at = JobState.COMPLETED, f"reused from {step.original}", now
    return {
        **common,
        **_own(step.job),
        "idempotency_key": None,
        "name": spec.name,
        "display_name": spec.display_name,
        "kind": "job" if step.driver is None else "sweep",
        "parent": pipeline_id,
        "target": spec.target,
        "snapshot": step.snapshot,
        "spec": spec.to_json(),
        "state": str(state),
        "reason": reason,
        "priority": spec.priority,
        "started_at": at,
        "ended_at": at,
        "tags": to_json(dict(spec.tags)),
        "properties": to_json(dict(step.properties)),
        "entry": spec.entry if step.driver is None else "",
        "pipeline": pipeline_id,
        "number": step.number,
        "step": step.name,
        "pipeline_name": new.name,
        "after": to_json([*step.after]),
        "reuse_key": step.reuse_key,
        "parts": to_json(dict(step.parts)),
        "original": step.original,
        "decision": to_json(dict(step.decision)),
        "driver": step.driver,
        "sweep": None if step.sweep is None else to_json(dict(step.sweep)),
    }


def pipeline_of(row: sqlite3.Row) -> Pipeline:
    """Return the pipeline of a row of `PIPELINE`."""
    return Pipeline(
        job=job_of(row),
        spec=json.loads(row["pipeline_spec"]),
        parameters=json.loads(row["parameters"]),
        continues=bool(row["continues"]),
        published=row["published"],
    )


def _step_of(row: sqlite3.Row) -> StepRow:
    return StepRow(
        pipeline=row["pipeline"],
        number=row["number"],
        name=row["name"],
        job=row["job"],
        after=tuple(json.loads(row["after"])),
        reuse_key=row["reuse_key"],
        parts=json.loads(row["parts"]),
        original=row["original"],
        decision=json.loads(row["decision"]),
    )
