"""Sweeps: a parent that runs nothing itself, its trial table, and the state of its children.

The store does not know the meaning of a trial's state or a sweep's definition: the package that
defines sweeps does, and this one is below it. The column `driver` names, as ``module:function``,
the function that starts a driver of the sweep on a target (docs/decisions/0010-sweep-drivers.md).

Reports are a JSON list of numbers; values that JSON cannot represent are the strings ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import ChildNews, MetricPoint, Sweep, TrialRow
from rayjobs.jobs.states import JobState
from rayjobs.store.part import Part
from rayjobs.store.references import refuse_removed
from rayjobs.store.requests import NewSweep, Page, part_of
from rayjobs.store.rows import (
    failure_of,
    job_of,
    optional_time,
    point_of,
    time_text,
    to_json,
)

KIND = "sweep"

# A sweep waits for no allocation: its row is Running from the submit, and no target ever starts it.
# Its `started_at` is the start of its first trial: before that, it waits, also for its target.
INSERT_SWEEP_JOB = """
INSERT INTO jobs (id, idempotency_key, experiment, name, display_name, kind, parent, target,
    submitted_by, snapshot, spec, state, attempt, reason, priority, submitted_at, changed_at,
    tags, properties, tail)
VALUES (:id, :idempotency_key, :experiment, :name, :display_name, 'sweep', NULL, :target,
    :submitted_by, :snapshot, :spec, 'Running', 0, '', :priority, :submitted_at, :now,
    :tags, :properties, :tail)
RETURNING *
"""

INSERT_SWEEP = "INSERT INTO sweeps (job, driver, spec) VALUES (:id, :driver, :sweep)"

SWEEP = """
SELECT jobs.*, sweeps.driver AS sweep_driver, sweeps.spec AS sweep_spec
FROM sweeps JOIN jobs ON jobs.id = sweeps.job
"""

TO_DRIVE = """
SELECT jobs.id, sweeps.driver FROM sweeps JOIN jobs ON jobs.id = sweeps.job
WHERE jobs.target = :target AND jobs.state IN ('Running', 'Finalizing') ORDER BY jobs.serial
"""

CLAIM_SWEEP = """
UPDATE jobs SET attempt = attempt + 1
WHERE id = :sweep AND kind = 'sweep' AND state IN ('Running', 'Finalizing')
RETURNING attempt
"""

PUT_TRIAL = """
INSERT INTO trials (sweep, number, job, state, parameters, reports, reason, cause, detail,
    judged, stop_requested, metric_names, started_at, ended_at)
VALUES (:sweep, :number, :job, :state, :parameters, :reports, :reason, :cause, :detail,
    :judged, :stop_requested, :metric_names, :started_at, :ended_at)
ON CONFLICT (sweep, number) DO UPDATE SET job = excluded.job, state = excluded.state,
    reports = excluded.reports, reason = excluded.reason, cause = excluded.cause,
    detail = excluded.detail, judged = excluded.judged, stop_requested = excluded.stop_requested,
    metric_names = excluded.metric_names, started_at = excluded.started_at,
    ended_at = excluded.ended_at
"""  # parameters are written once

CHILDREN = """
SELECT id, serial, state, attempt, reason, failure FROM jobs
WHERE parent = :parent AND id IN (SELECT value FROM json_each(:jobs)) ORDER BY serial
"""

NEXT_RANK = """
SELECT MIN(rank) FROM metrics WHERE job_serial = ? AND attempt = ? AND rank > ?
"""

NEW_POINTS = """
SELECT attempt, rank, sequence, name, value, step, at FROM metrics
WHERE job_serial = ? AND attempt = ? AND rank = ? AND sequence > ? AND late = 0
ORDER BY sequence
"""

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class SweepsPart(Part):
    """Rows of sweeps and trials."""

    def put_sweep(self, new: NewSweep) -> tuple[Sweep, bool]:
        """See `Store.put_sweep`."""
        base = new.base
        if base.array is not None:
            raise UsageError("a sweep's trials are not arrays: remove `array` from its job")
        now = self._now()
        new_id = new.id or ids.job_id(new.experiment)
        values = {
            "id": new_id,
            "tail": new_id.rpartition("_")[2],
            "idempotency_key": new.idempotency_key,
            "experiment": new.experiment,
            "name": new.name,
            "display_name": new.name,
            "target": base.target,
            "submitted_by": new.user,
            "snapshot": new.snapshot,
            "spec": base.to_json(),
            "priority": base.priority,
            "now": now,
            "tags": to_json(dict(new.tags)),
            "properties": to_json(dict(new.properties)),
            "driver": new.driver,
            "sweep": to_json(dict(new.definition)),
        }
        with self._database.write(durable=True) as connection:
            if new.idempotency_key is not None:
                known = connection.execute(
                    f"{SWEEP} WHERE jobs.idempotency_key = :idempotency_key", values
                ).fetchone()
                if known is not None:
                    return _sweep_of(known), False
            refuse_removed(connection, base)
            values["submitted_at"] = self._submitted(connection, now)
            try:
                connection.execute(INSERT_SWEEP_JOB, values)
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"the id {new_id!r} or the idempotency key {new.idempotency_key!r} already "
                    "belongs to another job; use new ones for a new sweep",
                    job=new_id,
                ) from error
            connection.execute(INSERT_SWEEP, values)
            self._state_event(connection, new_id, None, JobState.RUNNING, now=now, attempt=0)
            row = connection.execute(f"{SWEEP} WHERE jobs.id = :id", values).fetchone()
        return _sweep_of(row), True

    def sweep(self, sweep_id: str) -> Sweep:
        """See `Store.sweep`."""
        with self._database.read() as connection:
            row = connection.execute(
                f"{SWEEP} WHERE jobs.id = :sweep", {"sweep": sweep_id}
            ).fetchone()
            if row is None:
                job = self._row(connection, sweep_id)
                raise NotFoundError(
                    f"{sweep_id} is a {job['kind']}, not a sweep; `rayjobs sweep ls` lists the "
                    "sweeps, `rayjobs show` shows a job",
                    job=sweep_id,
                )
        return _sweep_of(row)

    def sweeps(self, *, experiment: str | None = None, limit: int | None = None) -> list[Sweep]:
        """See `Store.sweeps`."""
        values = {"experiment": experiment, "limit": -1 if limit is None else limit}
        with self._database.read() as connection:
            rows = connection.execute(
                f"{SWEEP} WHERE (:experiment IS NULL OR jobs.experiment = :experiment)"
                " ORDER BY jobs.serial DESC LIMIT :limit",
                values,
            ).fetchall()
        return [_sweep_of(row) for row in rows]

    def sweeps_to_drive(self, target: str) -> list[tuple[str, str]]:
        """See `Store.sweeps_to_drive`."""
        with self._database.read() as connection:
            rows = connection.execute(TO_DRIVE, {"target": target}).fetchall()
        return [(row["id"], row["driver"]) for row in rows]

    def claim_sweep(self, sweep_id: str) -> int | None:
        """See `Store.claim_sweep`."""
        with self._database.write(durable=True) as connection:
            row = connection.execute(CLAIM_SWEEP, {"sweep": sweep_id}).fetchone()
            if row is None:
                self._row(connection, sweep_id)
                return None
            return int(row["attempt"])

    def put_trials(self, sweep_id: str, *, claim: int, trials: Sequence[TrialRow]) -> bool:
        """See `Store.put_trials`."""
        rows = [_trial_values(sweep_id, trial) for trial in trials]
        with self._database.write(durable=True) as connection:
            if self._row(connection, sweep_id)["attempt"] != claim:
                return False
            connection.executemany(PUT_TRIAL, rows)
        return True

    def trials(self, sweep_id: str, *, page: Page | None = None) -> list[TrialRow]:
        """See `Store.trials`."""
        most, (after,) = part_of(page, (-1,))
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM trials WHERE sweep = :sweep AND number > :after ORDER BY number"
                " LIMIT :most",
                {"sweep": sweep_id, "after": after, "most": most},
            ).fetchall()
        return [_trial_of(row) for row in rows]

    def child_news(
        self, parent: str, *, metric: str, cursors: Mapping[str, Mapping[str, Any]]
    ) -> list[ChildNews]:
        """See `Store.child_news`."""
        if not cursors:
            return []
        with self._database.read() as connection:
            rows = connection.execute(
                CHILDREN, {"parent": parent, "jobs": to_json(list(cursors))}
            ).fetchall()
            return [_news(connection, row, metric, cursors[row["id"]]) for row in rows]


def _news(
    connection: sqlite3.Connection, row: sqlite3.Row, metric: str, cursor: Mapping[str, Any]
) -> ChildNews:
    attempt = row["attempt"]
    known = cursor.get("ranks", {}) if cursor.get("attempt") == attempt else {}
    # JSON turns the keys of a mapping into strings.
    ranks = {int(rank): int(sequence) for rank, sequence in known.items()}
    points: list[MetricPoint] = []
    rank = -1
    while True:
        found = connection.execute(NEXT_RANK, (row["serial"], attempt, rank)).fetchone()[0]
        if found is None:
            break
        rank = found
        where = (row["serial"], attempt, rank, ranks.get(rank, -1))
        for point in connection.execute(NEW_POINTS, where).fetchall():
            ranks[rank] = point["sequence"]
            if point["name"] == metric:
                points.append(point_of(point))
    return ChildNews(
        job=row["id"],
        state=JobState(row["state"]),
        attempt=attempt,
        reason=row["reason"],
        failure=failure_of(row["failure"]),
        points=tuple(points),
        cursor={"attempt": attempt, "ranks": ranks},
    )


def _sweep_of(row: sqlite3.Row) -> Sweep:
    return Sweep(job=job_of(row), spec=json.loads(row["sweep_spec"]), driver=row["sweep_driver"])


def _trial_values(sweep_id: str, trial: TrialRow) -> dict[str, Any]:
    return {
        "sweep": sweep_id,
        "number": trial.number,
        "job": trial.job,
        "state": trial.state,
        "parameters": to_json(dict(trial.parameters)),
        "reports": reports_text(trial.reports),
        "reason": trial.reason,
        "cause": trial.cause,
        "detail": trial.detail,
        "judged": trial.judged,
        "stop_requested": int(trial.stop_requested),
        "metric_names": to_json([*trial.metric_names]),
        "started_at": time_text(trial.started_at),
        "ended_at": time_text(trial.ended_at),
    }


def _trial_of(row: sqlite3.Row) -> TrialRow:
    return TrialRow(
        number=row["number"],
        parameters=json.loads(row["parameters"]),
        state=row["state"],
        job=row["job"],
        reports=reports_of(row["reports"]),
        reason=row["reason"],
        cause=row["cause"],
        detail=row["detail"],
        judged=row["judged"],
        stop_requested=bool(row["stop_requested"]),
        metric_names=tuple(json.loads(row["metric_names"])),
        started_at=optional_time(row["started_at"]),
        ended_at=optional_time(row["ended_at"]),
    )


def reports_text(values: Sequence[float]) -> str:
    """Return reports as JSON that every JSON reader accepts; see the module's docstring."""
    return to_json([value if math.isfinite(value) else _name_of(value) for value in values])


def reports_of(text: str) -> tuple[float, ...]:
    """Return the reports that `reports_text` wrote."""
    return tuple(
        _NOT_FINITE[value] if isinstance(value, str) else float(value) for value in json.loads(text)
    )


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
