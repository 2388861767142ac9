"""Statistics of the queue: durations, predicted starts, waits, resource use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rayjobs.jobs.events import Resumed
from rayjobs.jobs.outcomes import UNSEEN as UNSEEN_OUTCOMES
from rayjobs.jobs.queue_records import Durations, Prediction, QueueRow, Usage, Waits
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.part import Part
from rayjobs.store.requests import Page, part_of
from rayjobs.store.rows import optional_time, time_of, time_text

# Only the newest ones: scripts change, and so do their durations.
LEARNED_FROM = 100

# Answered by the index `ix_jobs_history`; a job's own row covers only its last attempt.
DURATIONS = """
SELECT started_at, ended_at, id, attempt FROM jobs
WHERE experiment = :experiment AND entry = :entry AND state = 'Completed'
    AND started_at IS NOT NULL AND kind = 'job'
ORDER BY ended_at DESC LIMIT :most
"""

# The same for any experiment. The index covers the search, so that only the returned rows are read.
DURATIONS_OF_ANY = """
SELECT started_at, ended_at, id, attempt FROM jobs WHERE serial IN (
    SELECT serial FROM jobs INDEXED BY ix_jobs_history
    WHERE entry = :entry AND state = 'Completed' ORDER BY ended_at DESC LIMIT :most)
    AND started_at IS NOT NULL AND kind = 'job'
"""

# Earlier attempts on which its work builds: back to one that started without a checkpoint.
CONTINUED = f"""
SELECT started_at, ended_at FROM attempts
WHERE job = :job AND number < :attempt AND started_at IS NOT NULL AND ended_at IS NOT NULL
    AND number >= (
        SELECT COALESCE(MAX(number), 1) FROM attempts
        WHERE job = :job AND number <= :attempt AND started_at IS NOT NULL
            AND number NOT IN (
                SELECT attempt FROM events WHERE job = :job AND kind = '{Resumed.KIND}'))
"""  # noqa: S608 - made of our own names

# While a job's row has a start, it covers the last attempt itself.
EARLIER = """
SELECT attempts.job, attempts.started_at, attempts.ended_at FROM attempts
JOIN jobs ON jobs.id = attempts.job
WHERE attempts.job IN (SELECT value FROM json_each(:jobs))
    AND attempts.started_at IS NOT NULL AND attempts.ended_at IS NOT NULL
    AND (attempts.number < jobs.attempt OR jobs.started_at IS NULL)
"""

_LOST = ", ".join(f"'{outcome}'" for outcome in sorted(UNSEEN_OUTCOMES))

UNSEEN = f"""
SELECT DISTINCT job FROM attempts
WHERE job IN (SELECT value FROM json_each(:jobs)) AND started_at IS NOT NULL
    AND ended_at IS NOT NULL AND outcome IN ({_LOST})
"""  # noqa: S608 - made of our own names

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))

# The first prediction stays; a job that has had an allocation gets no more predictions.
NOTE = """
INSERT INTO predictions (job, first_at, first_starts_at, first_basis,
    last_at, last_starts_at, last_basis)
SELECT :job, :now, :starts_at, :basis, :now, :starts_at, :basis
WHERE EXISTS (SELECT 1 FROM jobs WHERE id = :job AND placed_at IS NULL)
ON CONFLICT (job) DO UPDATE SET last_at = excluded.last_at,
    last_starts_at = excluded.last_starts_at, last_basis = excluded.last_basis
"""

ENTRIES = f"""
SELECT DISTINCT experiment, entry FROM jobs
WHERE target = :target AND kind = 'job' AND state NOT IN ({_FINAL})
"""  # noqa: S608 - made of our own names

HISTORY = """
SELECT jobs.id, jobs.serial, jobs.name, jobs.display_name, jobs.submitted_by, jobs.priority,
    jobs.parent, jobs.array_index, jobs.target, jobs.state, jobs.submitted_at, jobs.placed_at,
    jobs.ended_at,
    predictions.first_at, predictions.first_starts_at, predictions.first_basis,
    predictions.last_at, predictions.last_starts_at, predictions.last_basis
FROM jobs LEFT JOIN predictions ON predictions.job = jobs.id
WHERE jobs.kind = 'job' AND (:since IS NULL OR jobs.submitted_at >= :since)
    AND (:target IS NULL OR jobs.target = :target) AND jobs.serial > :after
ORDER BY jobs.serial LIMIT :limit
"""

PLACED = """
SELECT target, submitted_at, placed_at FROM jobs
WHERE kind = 'job' AND placed_at IS NOT NULL AND submitted_at >= :since
ORDER BY serial DESC LIMIT :most
"""

_MAY_START = """
state = 'Queued' AND kind = 'job' AND hold IS NULL AND (not_before IS NULL OR not_before <= :now)
"""
OLDEST = f"""
SELECT target, MIN(submitted_at) AS at FROM jobs
WHERE {_MAY_START} AND REPLACE(spec, :mark, '') = spec GROUP BY target
"""  # noqa: S608 - made of our own names
DEPENDENT = f"""
SELECT target, submitted_at, spec FROM jobs
WHERE {_MAY_START} AND REPLACE(spec, :mark, '') <> spec
"""  # noqa: S608 - made of our own names
STATES = "SELECT id, state FROM jobs WHERE id IN (SELECT value FROM json_each(:jobs))"
DEPENDS = '"depends_on":[{'  # as specs are written

USAGE = """
SELECT attempts.job, attempts.number, attempts.created_at, attempts.ended_at, jobs.serial,
    jobs.target, jobs.submitted_by, allocations.shape
FROM attempts
JOIN jobs ON jobs.id = attempts.job
JOIN allocations ON allocations.name = attempts.allocation
WHERE (:since IS NULL OR attempts.ended_at IS NULL OR attempts.ended_at >= :since)
    AND (:target IS NULL OR jobs.target = :target)
    AND (jobs.serial > :after OR (jobs.serial = :after AND attempts.number > :number))
ORDER BY jobs.serial, attempts.number LIMIT :limit
"""


class QueuePart(Part):
    """Statistics of the past, for the policy and the reports."""

    def durations(
        self, entries: Iterable[tuple[str, str]], *, most: int = LEARNED_FROM
    ) -> dict[tuple[str, str], Durations]:
        """See `Store.durations`."""
        found = {}
        with self._database.read() as connection:
            for experiment, entry in set(entries):
                values = {"experiment": experiment, "entry": entry, "most": most}
                known = _durations(connection, DURATIONS, values)
                if known is not None:
                    found[experiment, entry] = known
        return found

    def usual_durations(self, target: str) -> dict[tuple[str, str], Durations]:
        """See `Store.usual_durations`."""
        with self._database.read() as connection:
            rows = connection.execute(ENTRIES, {"target": target}).fetchall()
            entries = {(str(row["experiment"]), str(row["entry"])) for row in rows}
        found = self.durations(entries)
        others: dict[str, Durations | None] = {}
        with self._database.read() as connection:
            for entry in {entry for _experiment, entry in entries - found.keys()}:
                values = {"entry": entry, "most": LEARNED_FROM}
                others[entry] = _durations(connection, DURATIONS_OF_ANY, values)
        for experiment, entry in entries - found.keys():
            known = others[entry]
            if known is not None:
                found[experiment, entry] = replace(known, is_of_any=True)
        return found

    def earlier_runs(self, jobs: Iterable[str]) -> dict[str, float]:
        """See `Store.earlier_runs`."""
        with self._database.read() as connection:
            rows = connection.execute(EARLIER, {"jobs": json.dumps(list(jobs))}).fetchall()
        found: dict[str, float] = {}
        for job, started_at, ended_at in rows:
            found[job] = found.get(job, 0.0) + _seconds(started_at, ended_at)
        return found

    def unseen_ends(self, jobs: Iterable[str]) -> frozenset[str]:
        """See `Store.unseen_ends`."""
        with self._database.read() as connection:
            rows = connection.execute(UNSEEN, {"jobs": json.dumps(list(jobs))}).fetchall()
        return frozenset(str(row["job"]) for row in rows)

    def note_predictions(self, predictions: Sequence[Prediction]) -> None:
        """See `Store.note_predictions`."""
        if not predictions:
            return
        now = self._now()
        with self._database.write() as connection:
            connection.executemany(
                NOTE,
                [
                    {
                        "job": one.job,
                        "now": now,
                        "starts_at": time_text(one.starts_at),
                        "basis": one.basis,
                    }
                    for one in predictions
                ],
            )

    def queue_history(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[QueueRow]:
        """See `Store.queue_history`."""
        limit, (after,) = part_of(page, (-1,))
        values = {"since": time_text(since), "target": target, "after": after, "limit": limit}
        with self._database.read() as connection:
            rows = connection.execute(HISTORY, values).fetchall()
        return [
            QueueRow(
                job=row["id"],
                name=row["display_name"] or row["name"],
                user=row["submitted_by"],
                priority=row["priority"],
                parent=row["parent"],
                target=row["target"],
                state=JobState(row["state"]),
                submitted_at=time_of(row["submitted_at"]),
                placed_at=optional_time(row["placed_at"]),
                ended_at=optional_time(row["ended_at"]),
                predicted_first=_prediction(row, "first"),
                predicted_last=_prediction(row, "last"),
                serial=row["serial"],
            )
            for row in rows
        ]

    def waits(self, *, since: datetime, now: datetime, most: int) -> Waits:
        """See `Store.waits`."""
        values = {"now": time_text(now), "mark": DEPENDS}
        with self._database.read() as connection:
            placed = connection.execute(
                PLACED, {"since": time_text(since), "most": most}
            ).fetchall()
            oldest = {
                str(row["target"]): time_of(row["at"])
                for row in connection.execute(OLDEST, values).fetchall()
            }
            dependent = [
                (str(row["target"]), time_of(row["submitted_at"]), _dependencies(row["spec"]))
                for row in connection.execute(DEPENDENT, values).fetchall()
            ]
            named = sorted({job for _, _, jobs in dependent for job in jobs})
            states = {
                str(row["id"]): JobState(row["state"])
                for row in connection.execute(STATES, {"jobs": json.dumps(named)}).fetchall()
            }
        for target, at, jobs in dependent:
            if all(job not in states or states[job].is_final for job in jobs):
                oldest[target] = min(at, oldest.get(target, at))
        waited = [
            (
                str(row["target"]),
                (time_of(row["placed_at"]) - time_of(row["submitted_at"])).total_seconds(),
            )
            for row in placed
        ]
        return Waits(waited, oldest)

    def usage(
        self,
        *,
        since: datetime | None = None,
        target: str | None = None,
        page: Page | None = None,
    ) -> list[Usage]:
        """See `Store.usage`."""
        limit, (after, number) = part_of(page, (-1, -1))
        values = {"since": time_text(since), "target": target, "after": after, "number": number}
        values["limit"] = limit
        with self._database.read() as connection:
            rows = connection.execute(USAGE, values).fetchall()
        return [
            Usage(
                job=row["job"],
                user=row["submitted_by"],
                target=row["target"],
                since=time_of(row["created_at"]),
                until=optional_time(row["ended_at"]),
                shape=json.loads(row["shape"]),
                serial=row["serial"],
                attempt=row["number"],
            )
            for row in rows
        ]


def _durations(
    connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]
) -> Durations | None:
    seconds = sorted(
        _seconds(row[0], row[1]) + (_continued_s(connection, row[2], row[3]) if row[3] > 1 else 0.0)
        for row in connection.execute(statement, values).fetchall()
    )
    if not seconds:
        return None
    import statistics  # slow to import, and most commands need no median

    return Durations(
        count=len(seconds),
        median_s=statistics.median(seconds),
        p90_s=seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))],
        longest_s=seconds[-1],
    )


def _continued_s(connection: sqlite3.Connection, job: str, attempt: int) -> float:
    rows = connection.execute(CONTINUED, {"job": job, "attempt": attempt}).fetchall()
    return sum(_seconds(row[0], row[1]) for row in rows)


def _seconds(since: str, until: str) -> float:
    return max(0.0, (time_of(until) - time_of(since)).total_seconds())


def _prediction(row: sqlite3.Row, which: str) -> Prediction | None:
    at = row[f"{which}_at"]
    if at is None:
        return None
    return Prediction(
        job=row["id"],
        starts_at=time_of(row[f"{which}_starts_at"]),
        basis=row[f"{which}_basis"],
        made_at=time_of(at),
    )


def _dependencies(spec: str) -> list[str]:
    return [str(one["job"]) for one in json.loads(spec).get("depends_on") or ()]
