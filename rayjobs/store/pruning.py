"""Store queries of `rayjobs prune`: references to files, and removable rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from rayjobs.core.text import counted, verb
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.events import Pruned
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.spec.sources import OUTPUT, output_of
from rayjobs.store.part import Part
from rayjobs.store.rows import optional_time

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))

# A spec is text, and parsing a hundred thousand of them takes longer than everything else.
JOBS = """
SELECT id, kind, parent, name, state, ended_at, snapshot,
    CASE WHEN spec LIKE '%"resume_from":"%' THEN spec END AS resuming,
    CASE WHEN spec LIKE '%"sources":{"%' THEN spec END AS packing
FROM jobs ORDER BY serial
"""
UNFINISHED = f"SELECT id, spec FROM jobs WHERE state NOT IN ({_FINAL})"  # noqa: S608 - constants
UNFINISHED_SWEEPS = f"""
SELECT sweeps.spec FROM sweeps JOIN jobs ON jobs.id = sweeps.job WHERE jobs.state NOT IN ({_FINAL})
"""  # noqa: S608 - constants
FILES = "SELECT job, blob, size FROM files"
MODELS = "SELECT run, files FROM models WHERE deleted_at IS NULL"

# Jobs whose processes may still run in an allocation, and the arrays, sweeps and runs of such jobs.
OCCUPYING = """
WITH RECURSIVE occupying(id) AS (
    SELECT job FROM allocations WHERE state = 'draining' AND job IS NOT NULL
    UNION
    SELECT jobs.parent FROM jobs JOIN occupying ON occupying.id = jobs.id
    WHERE jobs.parent IS NOT NULL
)
SELECT id FROM occupying
"""

NAME = "SELECT COALESCE(display_name, name) FROM jobs WHERE id = :job"
COUNT_FILES = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE job = :job"
DELETE_FILES = "DELETE FROM files WHERE job = :job"
RECORDS = (
    "DELETE FROM attempts WHERE job = :job",
    "DELETE FROM events WHERE job = :job",
    "DELETE FROM files WHERE job = :job",
    "DELETE FROM metrics WHERE job_serial = (SELECT serial FROM jobs WHERE id = :job)",
    "DELETE FROM last_metrics WHERE job_serial = (SELECT serial FROM jobs WHERE id = :job)",
    "DELETE FROM trials WHERE sweep = :job",
    "DELETE FROM sweeps WHERE job = :job",
    "DELETE FROM steps WHERE job = :job",
    "DELETE FROM pipelines WHERE job = :job",
    "DELETE FROM predictions WHERE job = :job",
    "DELETE FROM allocations WHERE job = :job AND state = 'released'",
    "DELETE FROM jobs WHERE id = :job",
)


@dataclass(frozen=True, kw_only=True)
class PrunableJob:
    """The part of a job that pruning uses.

    Attributes:
        resume_from: The spec's field.
        sources: Digests of the packages and the image packed with the job.
        files: Key in the blob store → size in bytes.
    """

    id: str
    name: str
    kind: str
    parent: str | None
    state: JobState
    ended_at: datetime | None
    snapshot: str | None
    resume_from: str | None
    files: Mapping[str, int]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PruneView:
    """One state of the store.

    Attributes:
        jobs: All jobs, in order of submission.
        needed: Jobs that unfinished ones name: to resume from, to wait for, as the source of an
            input, or as a warm start.
        models: For each version, its run and the keys of its files.
        published: Digests of the code of published pipelines.
    """

    jobs: tuple[PrunableJob, ...]
    needed: frozenset[str]
    models: tuple[tuple[str, tuple[str, ...]], ...]
    published: frozenset[str] = frozenset()


class PruningPart(Part):
    """The rows that prune reads and removes."""

    def prune_view(self) -> PruneView:
        """See `Store.prune_view`."""
        with self._database.read() as connection:
            rows = connection.execute(JOBS).fetchall()
            files: dict[str, dict[str, int]] = {}
            for job, blob, size in connection.execute(FILES):
                files.setdefault(job, {})[blob] = size
            needed = _needed(connection)
            models = connection.execute(MODELS).fetchall()
            published = connection.execute("SELECT spec FROM published_pipelines").fetchall()
        return PruneView(
            jobs=tuple(
                PrunableJob(
                    id=row["id"],
                    name=row["name"],
                    kind=row["kind"],
                    parent=row["parent"],
                    state=JobState(row["state"]),
                    ended_at=optional_time(row["ended_at"]),
                    snapshot=row["snapshot"],
                    resume_from=_resume_from(row["resuming"]),
                    files=files.get(row["id"], {}),
                    sources=_sources(row["packing"]),
                )
                for row in rows
            ),
            needed=frozenset(needed),
            models=tuple(
                (row["run"], tuple(one["blob"] for one in json.loads(row["files"])))
                for row in models
            ),
            published=frozenset(
                str(step["snapshot"])
                for row in published
                for step in json.loads(row["spec"])["steps"].values()
                if step.get("snapshot")
            ),
        )

    def prune_files(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """See `Store.prune_files`."""
        now = self._now()
        with self._database.write(durable=True) as connection:
            pruned = self._may_go(connection, jobs)
            for job in pruned:
                number, size = connection.execute(COUNT_FILES, {"job": job}).fetchone()
                if number:
                    connection.execute(DELETE_FILES, {"job": job})
                    self._event(
                        connection,
                        job,
                        Pruned.KIND,
                        f"its {counted(number, 'stored file')} ({counted(size, 'byte')}) "
                        f"{verb(number, 'was', 'were')} pruned{f' {how}' if how else ''}",
                        now=now,
                        attempt=0,
                        data=Pruned(files=number, bytes=size).to_json(),
                    )
        return frozenset(pruned)

    def prune_records(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """See `Store.prune_records`."""
        now = self._now()
        with self._database.write(durable=True) as connection:
            kept = {row["run"] for row in connection.execute(MODELS)}
            # A target needs their records to prove that their processes have ended.
            kept.update(row["id"] for row in connection.execute(OCCUPYING))
            pruned = [job for job in self._may_go(connection, jobs) if job not in kept]
            for job in pruned:
                name = connection.execute(NAME, {"job": job}).fetchone()[0]
                for statement in RECORDS:
                    connection.execute(statement, {"job": job})
                self._event(
                    connection,
                    job,
                    Pruned.KIND,
                    f"it was pruned with its records{f' {how}' if how else ''}",
                    now=now,
                    attempt=0,
                    data=Pruned(name=name).to_json(),
                )
        return frozenset(pruned)

    @staticmethod
    def _may_go(connection: sqlite3.Connection, jobs: Sequence[str]) -> list[str]:
        """Return those of the jobs that have ended and that no unfinished job names."""
        needed = _needed(connection)
        states = {
            job: connection.execute("SELECT state FROM jobs WHERE id = ?", (job,)).fetchone()
            for job in jobs
        }
        return [
            job
            for job, row in states.items()
            if row is not None and JobState(row["state"]).is_final and job not in needed
        ]


def _needed(connection: sqlite3.Connection) -> set[str]:
    needed = set()
    for row in connection.execute(UNFINISHED):
        spec = json.loads(row["spec"])
        if spec.get("resume_from"):
            needed.add(str(spec["resume_from"]))
        needed.update(str(one["job"]) for one in spec.get("depends_on") or ())
        for one in (spec.get("inputs") or {}).values():
            if str(one["source"]).startswith(OUTPUT):
                needed.add(output_of(one["source"])[0])
    for row in connection.execute(UNFINISHED_SWEEPS):  # a driver that takes over rereads them
        spec = json.loads(row["spec"])
        needed.update(map(str, spec.get("resume_from") or ()))
        needed.update(map(str, spec.get("resume_trials") or ()))
    return needed


def _sources(spec: str | None) -> tuple[str, ...]:
    """Return the digests of a spec's packed packages and image."""
    values = {} if spec is None else json.loads(spec)
    parts = [values.get("environment"), values.get("container")]
    found = [one.get("sources") or {} for one in parts if isinstance(one, dict)]
    return tuple(digest for one in found for digest in one.values())


def _resume_from(spec: str | None) -> str | None:
    if spec is None:
        return None
    value = json.loads(spec).get("resume_from")
    return None if value is None else str(value)
