"""Reads the queue for a target: only its changes, however long the queue is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime

from rayjobs.core.text import duration_text
from rayjobs.injob.checkpoint import MANIFEST
from rayjobs.jobs.queue_records import Mark
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.store.part import Part
from rayjobs.store.rows import job_of, time_of, time_text

# The columns of a queued job that affect its start and may change while it is queued.
MARKS = """
SELECT serial, attempt, priority, hold, not_before, changed_at FROM jobs
WHERE target = :target AND state = 'Queued' AND kind = 'job'
"""

BY_SERIAL = """
SELECT * FROM jobs WHERE serial IN (SELECT value FROM json_each(:serials)) ORDER BY serial
"""

# The row of an array or a pipeline is Running from the start; it waits until one of its jobs has an
# allocation.
STATES = """
SELECT id, CASE WHEN kind IN ('array', 'pipeline') AND state = 'Running' AND placed_at IS NULL
    THEN 'Queued' ELSE state END AS state
FROM jobs WHERE id IN (SELECT value FROM json_each(:jobs))
"""

CORRECT = "UPDATE jobs SET submitted_at = :at WHERE id = :job"

# The names that `rayjobs.checkpoint.save` and the collection of a job's files use.
CHECKPOINTS = f"""
SELECT job, MAX(stored_at) AS at FROM files
WHERE job IN (SELECT value FROM json_each(:jobs))
    AND (name GLOB 'outputs/checkpoints/step-*/{MANIFEST}'
        OR name GLOB 'node-*/outputs/checkpoints/step-*/{MANIFEST}')
GROUP BY job
"""  # noqa: S608 - made of our own names


class WaitingPart(Part):
    """The queue as the engine follows it."""

    def change(self) -> tuple[int, int]:
        """See `Store.change`."""
        return self._database.change()

    def queue_marks(self, target: str) -> list[Mark]:
        """See `Store.queue_marks`."""
        with self._database.read() as connection:
            # Plain tuples: for ten thousand jobs, creating rows takes as long as reading them.
            cursor = connection.cursor()
            cursor.row_factory = None
            return cursor.execute(MARKS, {"target": target}).fetchall()

    def jobs_of(self, serials: Iterable[int]) -> list[Job]:
        """See `Store.jobs_of`."""
        values = {"serials": json.dumps(list(serials))}
        with self._database.read() as connection:
            rows = connection.execute(BY_SERIAL, values).fetchall()
        return [job_of(row) for row in rows]

    def job_states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """See `Store.job_states`."""
        with self._database.read() as connection:
            rows = connection.execute(STATES, {"jobs": json.dumps(list(jobs))}).fetchall()
        return {row["id"]: JobState(row["state"]) for row in rows}

    def correct_submitted(self, jobs: Mapping[str, datetime]) -> None:
        """See `Store.correct_submitted`."""
        now = self._now()
        with self._database.write() as connection:
            for job_id, at in jobs.items():
                row = self._row(connection, job_id)
                wrong_s = (time_of(row["submitted_at"]) - at).total_seconds()
                connection.execute(CORRECT, {"job": job_id, "at": time_text(at)})
                how = f"{duration_text(abs(wrong_s))} {'ahead' if wrong_s > 0 else 'behind'}"
                message = f"the clock of its client was {how}: its submission time was corrected"
                self._event(connection, job_id, "clock", message, now=now, attempt=row["attempt"])

    def checkpoint_times(self, jobs: Iterable[str]) -> dict[str, datetime]:
        """See `Store.checkpoint_times`."""
        with self._database.read() as connection:
            rows = connection.execute(CHECKPOINTS, {"jobs": json.dumps(list(jobs))}).fetchall()
        return {row["job"]: time_of(row["at"]) for row in rows}
