"""The results of runs: history, metrics, files; and the store's own values."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import to_text
from rayjobs.core.paths import EARLIER_LOGS, ENVIRONMENT_LOCK
from rayjobs.jobs.events import Resumed
from rayjobs.jobs.records import Event, MetricPoint, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.store.part import Part
from rayjobs.store.requests import Page, part_of
from rayjobs.store.rows import event_of, file_of, point_of, spec_of, to_json

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec

ADD_POINT = """
INSERT INTO metrics (job_serial, attempt, rank, sequence, name, value, step, at, late)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""

# The newest point of the lowest rank (see `metrics.lowest_rank`) of the newest attempt.
KEEP_LAST = """
INSERT INTO last_metrics (name, job_serial, attempt, rank, sequence, value)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name, job_serial) DO UPDATE SET attempt = excluded.attempt, rank = excluded.rank,
    sequence = excluded.sequence, value = excluded.value
WHERE (excluded.attempt, -excluded.rank, excluded.sequence)
    > (last_metrics.attempt, -last_metrics.rank, last_metrics.sequence)
"""

LAST_VALUES = """
SELECT job_serial, name, value FROM last_metrics
WHERE name IN (SELECT value FROM json_each(:names))
"""
# Jumps from one name to the next in the index: the cost does not depend on the number of jobs.
METRIC_NAMES = """
WITH RECURSIVE names (name) AS (
    SELECT MIN(name) FROM last_metrics
    UNION ALL
    SELECT (SELECT MIN(name) FROM last_metrics WHERE name > names.name) FROM names
    WHERE names.name IS NOT NULL)
SELECT name FROM names WHERE name IS NOT NULL LIMIT :most
"""

POINTS = """
SELECT attempt, rank, sequence, name, value, step, at FROM metrics
WHERE job_serial = :serial AND (:name IS NULL OR name = :name) AND (:late OR late = 0)
    AND (attempt, rank, sequence) > (:attempt, :rank, :sequence)
ORDER BY attempt, rank, sequence LIMIT :most
"""

FIRST_STEPS = """
SELECT name, attempt, MIN(step) AS step FROM metrics
WHERE job_serial = :serial AND (:name IS NULL OR name = :name) AND late = 0
    AND step IS NOT NULL
GROUP BY name, attempt
"""

# Attempts that started without a checkpoint of the job, and have logged something or completed the
# job.
AFRESH = f"""
SELECT number FROM attempts
WHERE job = :job AND number > 1 AND number NOT IN (
        SELECT attempt FROM events WHERE job = :job AND kind = '{Resumed.KIND}'
            AND CAST(COALESCE(json_extract(data, '$.continues'), '1') AS TEXT)
                NOT IN ('0', 'false'))
    AND (EXISTS (SELECT 1 FROM metrics WHERE job_serial = :serial AND attempt = number
                 AND late = 0)
         OR (:completed AND number = :attempt))
"""  # noqa: S608 - made of our own names

PROGRAMS = "azure/"  # prefix, in `meta`, of the keys of programs' settings

# A range of the key's index: both databases compare text byte by byte.
RANGE = "SELECT key, value FROM meta WHERE key >= :first AND key < :end ORDER BY key"
SMALLEST = -(2**63)
LAST = "\U0010ffff"  # sorts after every other character
LOCKS = """
SELECT files.*, jobs.spec FROM jobs JOIN files ON files.job = jobs.id AND files.name = :name
ORDER BY jobs.serial DESC LIMIT :most
"""
LOCKS_READ = 1000

PUBLISH_FILE = """
INSERT INTO files (job, name, attempt, size, digest, blob, stored_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, name) DO UPDATE SET attempt = excluded.attempt, size = excluded.size,
    digest = excluded.digest, blob = excluded.blob, stored_at = excluded.stored_at
"""

# The output of an earlier attempt stays, in its own folder: a retry uses the same names.
KEEP_EARLIER_LOG = f"""
UPDATE files SET name = '{EARLIER_LOGS}' || attempt || substr(name, 13)
WHERE job = ? AND name = ? AND attempt < ?
"""  # noqa: S608 - made of our own names


class RunsPart(Part):
    """Rows of events, metrics, files and the store's own values."""

    # -- history -----------------------------------------------------------------------------

    def add_event(
        self,
        job_id: str,
        kind: str,
        message: str,
        *,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Store.add_event`. Raises NotFoundError."""
        with self._database.write() as connection:
            self._row(connection, job_id)
            self._event(
                connection, job_id, kind, message, now=self._now(), attempt=attempt, data=data
            )

    def events(self, job_id: str, *, after: int = 0, page: Page | None = None) -> list[Event]:
        """See `Store.events`. Raises NotFoundError."""
        most, (last,) = part_of(page, (after,))
        with self._database.read() as connection:
            self._row(connection, job_id)
            rows = connection.execute(
                "SELECT * FROM events WHERE job = :job AND serial > :after ORDER BY serial"
                " LIMIT :most",
                {"job": job_id, "after": max(after, last), "most": most},
            ).fetchall()
        return [event_of(row) for row in rows]

    def history(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """See `Store.history`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM events WHERE serial > :after ORDER BY serial LIMIT :most",
                {"after": after, "most": limit},
            ).fetchall()
        return [event_of(row) for row in rows]

    # -- metrics -----------------------------------------------------------------------------

    def add_metrics(self, job_id: str, points: Sequence[MetricPoint]) -> int:
        """See `Store.add_metrics`. Raises NotFoundError."""
        # Built before taking the lock, so that a big batch does not hold it for long.
        texts = [
            (p.attempt, p.rank, p.sequence, p.name, to_json(p.value), p.step, to_text(p.at))
            for p in points
        ]
        with self._database.write() as connection:
            job = self._row(connection, job_id)
            serial, newest = job["serial"], job["attempt"]
            before = connection.total_changes
            connection.executemany(
                ADD_POINT, ((serial, *text, int(text[0] < newest)) for text in texts)
            )
            added = connection.total_changes - before
            connection.executemany(
                KEEP_LAST,
                (
                    (name, serial, attempt, rank, sequence, value)
                    for (attempt, rank, sequence, name, value, _, _) in _last_of(texts)
                    if attempt >= newest
                ),
            )
            return added

    def last_metrics(self, names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """See `Store.last_metrics`."""
        with self._database.read() as connection:
            rows = connection.execute(LAST_VALUES, {"names": json.dumps(list(names))}).fetchall()
        found: dict[int, dict[str, Any]] = {}
        for serial, name, value in rows:
            found.setdefault(serial, {})[name] = json.loads(value)
        return found

    def metric_names(self, *, most: int = 1000) -> list[str]:
        """See `Store.metric_names`."""
        with self._database.read() as connection:
            return [row[0] for row in connection.execute(METRIC_NAMES, {"most": most})]

    def metrics(
        self,
        job_id: str,
        *,
        name: str | None = None,
        all_attempts: bool = False,
        page: Page | None = None,
    ) -> list[MetricPoint]:
        """See `Store.metrics`. Raises NotFoundError."""
        most, after = part_of(page, (SMALLEST, SMALLEST, SMALLEST))
        found: list[MetricPoint] = []
        with self._database.read() as connection:
            job = self._row(connection, job_id)
            values = {"serial": job["serial"], "name": name}
            is_shown = None if all_attempts else _shown(connection, job, values)
            values |= {"late": all_attempts, "most": most}
            while True:
                attempt, rank, sequence = after
                values |= {"attempt": attempt, "rank": rank, "sequence": sequence}
                rows = connection.execute(POINTS, values).fetchall()
                found += [point_of(row) for row in rows if is_shown is None or is_shown(row)]
                if page is None or len(rows) < most or len(found) >= most:
                    return found if page is None else found[:most]
                after = tuple(rows[-1][name] for name in ("attempt", "rank", "sequence"))

    # -- files -------------------------------------------------------------------------------

    def publish_files(self, job_id: str, *, attempt: int, files: Sequence[StoredFile]) -> bool:
        """See `Store.publish_files`. Raises NotFoundError."""
        with self._database.write() as connection:
            job = self._row(connection, job_id)
            if job["attempt"] != attempt or JobState(job["state"]).is_final:
                return False
            logs = [f.name for f in files if f.name.startswith("azureml-logs/")]
            connection.executemany(KEEP_EARLIER_LOG, [(job_id, name, attempt) for name in logs])
            connection.executemany(
                PUBLISH_FILE,
                [
                    (job_id, f.name, attempt, f.size, f.digest, f.blob, to_text(f.stored_at))
                    for f in files
                ],
            )
        return True

    def drop_files(self, job_id: str, *, attempt: int, names: Sequence[str]) -> bool:
        """See `Store.drop_files`. Raises NotFoundError."""
        with self._database.write() as connection:
            job = self._row(connection, job_id)
            if job["attempt"] != attempt or JobState(job["state"]).is_final:
                return False
            connection.executemany(
                "DELETE FROM files WHERE job = ? AND attempt = ? AND name = ?",
                [(job_id, attempt, name) for name in names],
            )
        return True

    def files(self, job_id: str, *, page: Page | None = None) -> list[StoredFile]:
        """See `Store.files`. Raises NotFoundError."""
        most, (after,) = part_of(page, ("",))
        with self._database.read() as connection:
            self._row(connection, job_id)
            rows = connection.execute(
                "SELECT * FROM files WHERE job = :job AND name > :after ORDER BY name LIMIT :most",
                {"job": job_id, "after": after, "most": most},
            ).fetchall()
        return [file_of(row) for row in rows]

    def newest_lock(self, spec: JobSpec) -> tuple[str, StoredFile] | None:
        """See `Store.newest_lock`."""
        if spec.environment is None or isinstance(spec.environment, str):
            return None
        wanted = spec.environment, spec.container
        values = {"name": ENVIRONMENT_LOCK, "most": LOCKS_READ}
        with self._database.read() as connection:
            rows = connection.execute(LOCKS, values).fetchall()
        for row in rows:
            other = spec_of(row["spec"])
            if (other.environment, other.container) == wanted:
                return str(row["job"]), file_of(row)
        return None

    # -- the store itself ----------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """See `Store.meta`."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT value FROM meta WHERE key = :key", {"key": key}
            ).fetchone()
        return None if row is None else str(row["value"])

    def meta_under(self, prefix: str) -> dict[str, str]:
        """See `Store.meta_under`."""
        return self.meta_between(prefix, prefix + LAST)

    def meta_between(
        self, first: str, end: str, *, limit: int | None = None, newest_first: bool = False
    ) -> dict[str, str]:
        """See `Store.meta_between`."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"{RANGE} DESC LIMIT :most" if newest_first else f"{RANGE} LIMIT :most",
                {"first": first, "end": end, "most": -1 if limit is None else limit},
            ).fetchall()
        return {str(row["key"]): str(row["value"]) for row in rows}

    def drop_meta(self, first: str, end: str) -> int:
        """See `Store.drop_meta`."""
        with self._database.write(durable=True) as connection:
            return connection.execute(
                "DELETE FROM meta WHERE key >= :first AND key < :end", {"first": first, "end": end}
            ).rowcount

    def set_meta(self, key: str, value: str | None) -> None:
        """See `Store.set_meta`."""
        with self._database.write(durable=True) as connection:
            if value is None:
                connection.execute("DELETE FROM meta WHERE key = :key", {"key": key})
                return
            connection.execute(
                "INSERT INTO meta (key, value) VALUES (:key, :value)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                {"key": key, "value": value},
            )

    def claim_meta(self, key: str, value: str) -> str:
        """See `Store.claim_meta`."""
        with self._database.write(durable=True) as connection:
            connection.execute(
                "INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING",
                {"key": key, "value": value},
            )
            [kept] = connection.execute(
                "SELECT value FROM meta WHERE key = :key", {"key": key}
            ).fetchone()
        return str(kept)

    def program_setting(self, key: str) -> str | None:
        """See `Store.program_setting`."""
        return self.meta(PROGRAMS + key)

    def program_settings(self, prefix: str) -> dict[str, str]:
        """See `Store.program_settings`."""
        found = self.meta_under(PROGRAMS + prefix)
        return {key.removeprefix(PROGRAMS): value for key, value in found.items()}

    def put_program_setting(self, key: str, value: str | None) -> None:
        """See `Store.put_program_setting`."""
        self.set_meta(PROGRAMS + key, value)


def _shown(
    connection: sqlite3.Connection, job: sqlite3.Row, values: Mapping[str, Any]
) -> Callable[[sqlite3.Row], bool] | None:
    """Return a test for points that no newer attempt replaces; None: all points."""
    if job["attempt"] <= 1:
        return None
    more = {"job": job["id"], "attempt": job["attempt"]}
    more["completed"] = job["state"] == JobState.COMPLETED
    afresh = [row[0] for row in connection.execute(AFRESH, {**values, **more})]
    firsts: dict[str, list[tuple[int, int]]] = {}
    for first in connection.execute(FIRST_STEPS, dict(values)).fetchall():
        firsts.setdefault(first["name"], []).append((first["attempt"], first["step"]))
    began = max((one for one in afresh if not _goes_on(one, firsts)), default=1)

    def is_shown(row: sqlite3.Row) -> bool:
        attempt, step = row["attempt"], row["step"]
        if step is None:
            return bool(attempt >= began)
        return not any(later > attempt and at <= step for later, at in firsts[row["name"]])

    return is_shown


def _last_of(texts: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    """Return the points of a batch that may be the newest of their name, one per name."""
    newest: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        attempt, rank, sequence, name = text[:4]
        known = newest.get(name)
        if known is None or (attempt, -rank, sequence) > (known[0], -known[1], known[2]):
            newest[name] = text
    return newest.values()


def _goes_on(number: int, firsts: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    """Whether an attempt's steps start after an earlier one's: its script has resumed by itself."""
    for pairs in firsts.values():
        own = [step for attempt, step in pairs if attempt == number]
        before = [step for attempt, step in pairs if attempt < number]
        if own and before and min(own) > min(before):
            return True
    return False
