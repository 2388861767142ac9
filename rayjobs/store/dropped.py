"""What a restore drops: records of the replaced store that the backup lacks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from rayjobs.core.clock import SystemClock, to_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.events import Restored
from rayjobs.jobs.states import FINAL
from rayjobs.store.transitions import INSERT_EVENT

# In display order. Members and trials count with their array or sweep.
NAMED = {
    "job": "job",
    "interactive": "job",
    "array": "array",
    "sweep": "sweep",
    "pipeline": "pipeline",
}
MEMBER = "member or trial"

_JOBS = "SELECT id, COALESCE(display_name, name) AS name, kind, parent, state, attempt FROM jobs"
# What identifies a record, and how it is displayed.
_OTHERS = {
    "model version": "SELECT name || ':' || version || ' ' || created_at, name || ':' || version "
    "FROM models WHERE deleted_at IS NULL",
    "data version": "SELECT id, name || ':' || version FROM datasets WHERE removed_at IS NULL",
    "environment version": "SELECT name || ':' || version || ' ' || created_at, "
    "name || ':' || version FROM environments",
    "published pipeline": "SELECT id, name FROM published_pipelines",
    "schedule": "SELECT id, name FROM pipeline_schedules",
    "datastore": "SELECT name, name FROM datastores",
}
_FINAL = frozenset(map(str, FINAL))


@dataclass(frozen=True, kw_only=True)
class Again:
    """A job that is unfinished in the backup, but got further in the replaced store.

    Attributes:
        state: Its state in the replaced store.
    """

    id: str
    name: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What the store in use has and a backup lacks.

    Attributes:
        records: Kind ("job", "sweep", "model version", …) → id and displayed
            name of each record; for records that are not jobs, the displayed name twice.
        again: Jobs that the restored store returns to an earlier state.
        is_known: False if the store in use cannot be read.
    """

    records: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    again: tuple[Again, ...] = ()
    is_known: bool = True

    def __bool__(self) -> bool:
        """Whether anything is dropped or returned to an earlier state."""
        return bool(self.records or self.again)


UNKNOWN = Dropped(is_known=False)


def compare(old: sqlite3.Connection | None, backup: sqlite3.Connection) -> Dropped:
    """Return what `backup` lacks compared with the store `old`; None: there is no such store."""
    if old is None:
        return UNKNOWN
    try:
        return _compare(old, backup)
    except sqlite3.DatabaseError:
        return UNKNOWN  # it is damaged, and is replaced for this reason


def _compare(old: sqlite3.Connection, backup: sqlite3.Connection) -> Dropped:
    kept = {row[0]: row for row in backup.execute(_JOBS)}
    records: dict[str, list[tuple[str, str]]] = {}
    again = []
    lost: set[str] = set()
    for job, name, kind, parent, state, attempt in old.execute(f"{_JOBS} ORDER BY serial"):
        if job not in kept:
            lost.add(job)
            what = MEMBER if parent in lost else NAMED.get(kind, "job")
            records.setdefault(what, []).append((job, name))
        elif kept[job][4] not in _FINAL and (state in _FINAL or attempt > kept[job][5]):
            again.append(Again(id=job, name=name, state=state))
    for what, query in _OTHERS.items():
        known = {row[0] for row in _rows(backup, query)}
        found = [(row[0], row[1]) for row in _rows(old, query) if row[0] not in known]
        if found:
            records[what] = [(shown, shown) for _, shown in found]
    order = [*dict.fromkeys(NAMED.values()), MEMBER, *_OTHERS]
    return Dropped(
        records={what: records[what] for what in order if what in records}, again=tuple(again)
    )


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[str, str]]:
    try:
        yield from connection.execute(query)
    except sqlite3.OperationalError as error:
        # It is from an older version. SQLite has no code of its own for this, only the message.
        if "no such table" not in str(error):
            raise


def note(draft: sqlite3.Connection, found: Dropped, *, source: Path, kept_in: Path | None) -> None:
    """Record, job by job, what a store that is about to be put in place lacks.

    Args:
        source: The backup.
        kept_in: Where the replaced store is kept; None if there was none.
    """
    now = to_text(SystemClock().now())
    kept = f"; {kept_in}, the replaced store, has it" if kept_in is not None else ""
    lines: list[tuple[str, int, str, Restored]] = []
    for what, some in found.records.items():
        if what in (*NAMED.values(), MEMBER):
            lines += [
                (job, 0, f"a restore from {source} dropped it{kept}", Restored(name))
                for job, name in some
            ]
    again = {one.id: one for one in found.again}
    for job, _name, _kind, _parent, state, attempt in draft.execute(_JOBS).fetchall():
        if state in _FINAL:
            continue
        if job in again:
            text = (
                f"the store was restored from {source}, which is older than this job's newest "
                f"records: in the replaced store, {kept_in}, it is {again[job].state}. What it "
                "stored after the backup (logs, metrics, files) is recorded only there"
            )
        elif not found.is_known:
            text = (
                f"the store was restored from {source}; what this job did after that backup is "
                "not recorded"
            )
        else:
            continue
        lines.append((job, attempt, text, Restored()))
    draft.executemany(
        INSERT_EVENT,
        [
            {
                "job": job,
                "now": now,
                "kind": Restored.KIND,
                "message": text,
                "attempt": attempt,
                "data": json.dumps(data.to_json()),
            }
            for job, attempt, text, data in lines
        ],
    )
