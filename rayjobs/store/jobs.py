"""Jobs: submit, find, list, change what may change."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, TakenOverError, UsageError
from rayjobs.jobs.records import Job, JobLine
from rayjobs.jobs.states import JobState
from rayjobs.spec.arrays import split_member
from rayjobs.store.arrays import KIND as ARRAY
from rayjobs.store.arrays import has_member, member_row
from rayjobs.store.names import next_name
from rayjobs.store.part import Part
from rayjobs.store.references import refuse_removed
from rayjobs.store.rows import job_of, light_row, line_of, same_submit, to_json

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec

INSERT_JOB = """
INSERT INTO jobs (id, idempotency_key, experiment, name, display_name, kind, parent, target,
    submitted_by, snapshot, spec, state, attempt, reason, priority, submitted_at, changed_at,
    tags, properties, tail, entry)
VALUES (:id, :idempotency_key, :experiment, :name, :display_name, :kind, :parent, :target,
    :submitted_by, :snapshot, :spec, 'Queued', 0, '', :priority, :submitted_at, :now,
    :tags, :properties, :tail, :entry)
RETURNING *
"""

BY_KEY = "SELECT * FROM jobs WHERE idempotency_key = :idempotency_key"

# Members of an array and trials of a sweep have its name: that means the array, or the sweep.
NAMED = """
SELECT * FROM (
    SELECT * FROM jobs WHERE name = :text AND array_index IS NULL AND NOT EXISTS (
        SELECT 1 FROM jobs AS above WHERE above.id = jobs.parent AND above.name = jobs.name)
    UNION SELECT * FROM jobs WHERE display_name = :text AND array_index IS NULL
) WHERE :kind IS NULL OR kind = :kind
ORDER BY serial DESC LIMIT 200
"""
# A prefix as a range: LIKE would need escapes, and does not use the index.
BEGINNING = """
SELECT * FROM (
    SELECT * FROM jobs WHERE id >= :text AND id < :beyond
    UNION SELECT * FROM jobs WHERE tail >= :text AND tail < :beyond
) WHERE :kind IS NULL OR kind = :kind
ORDER BY serial DESC LIMIT 200
"""
BY_ID = "SELECT * FROM jobs WHERE id = :text"

NAMES = """
SELECT id, tail, name, display_name FROM jobs WHERE :kind IS NULL OR kind = :kind
ORDER BY serial DESC LIMIT 2000
"""

LIGHT_COLUMNS = (
    "serial, id, experiment, name, display_name, kind, parent, target, submitted_by, state, "
    "attempt, reason, priority, submitted_at, changed_at, started_at, ended_at, "
    "cancel_requested_at, tags"
)
LINE_COLUMNS = f"{LIGHT_COLUMNS}, snapshot, failure, properties, array_index, placed_at, hold"
UPDATED = "kind = 'job' AND parent = :job AND state NOT IN ('Completed', 'Failed', 'Canceled')"

REVISION = "revision"
REVISIONS = "SELECT COUNT(*) FROM events WHERE job = :job AND kind = :kind"
FIRST_REVISION = """
SELECT data FROM events WHERE job = :job AND kind = :kind ORDER BY serial LIMIT 1
"""
# Another `changed_at` has the target read it again, and start nothing that it read before.
REVISE = "UPDATE jobs SET spec = :spec, changed_at = :now WHERE id = :job"
TAGS_AND_PRIORITY = "UPDATE jobs SET tags = :tags, priority = :priority WHERE id = :job"
QUEUED_LIKE = """
SELECT * FROM jobs WHERE parent = :job AND kind = 'job' AND state = 'Queued' AND spec = :spec
"""

_BEYOND = "\U0010ffff"
_SHOWN = 10


NO_MEMBER = "array_index IS NULL"
# An array that has not ended is in each state that one of its members is in that has not ended.
ARRAY_IS_IN = """(
    CASE WHEN kind = 'array' AND state NOT IN ('Completed', 'Failed', 'Canceled')
    THEN EXISTS (SELECT 1 FROM jobs AS member WHERE member.parent = jobs.id
                 AND member.state NOT IN ('Completed', 'Failed', 'Canceled')
                 AND member.array_index IS NOT NULL AND member.state {wanted})
    ELSE state {wanted} END
)"""


class JobsPart(Part):
    """Rows of jobs."""

    def submit(
        self,
        spec: JobSpec,
        *,
        experiment: str,
        snapshot: str | None,
        user: str,
        idempotency_key: str | None = None,
        parent: str | None = None,
        kind: str = "job",
        job_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        claim: int | None = None,
        numbered: bool = False,
    ) -> tuple[Job, bool]:
        """See `Store.submit`. Raises UsageError too when `job_id` is another job's."""
        if spec.array is not None:
            raise UsageError("the spec is an array's (`array`); submit it as one, or take that out")
        if claim is not None and parent is None:
            raise UsageError("a claim is a parent's; give `parent` with it")
        now = self._now()
        new_id = job_id or ids.job_id(experiment)
        values = {
            "id": new_id,
            "tail": new_id.rpartition("_")[2],
            "idempotency_key": idempotency_key,
            "experiment": experiment,
            "name": spec.name,
            "display_name": spec.display_name,
            "kind": kind,
            "parent": parent,
            "target": spec.target,
            "submitted_by": user,
            "snapshot": snapshot,
            "spec": spec.to_json(),
            "priority": spec.priority,
            "now": now,
            "tags": to_json(dict(spec.tags)),
            "properties": to_json(dict(properties or {})),
            "entry": spec.entry,
        }
        with self._database.write(durable=True) as connection:
            if claim is not None and parent is not None:
                _refuse_lost_claim(self._row(connection, parent), claim)
            if idempotency_key is not None:
                known = connection.execute(BY_KEY, values).fetchone()
                if known is not None:
                    first = first_spec(connection, known)
                    return same_submit(known, spec, snapshot, first), False
            refuse_removed(connection, spec)
            if numbered and spec.display_name is None:
                values["display_name"] = next_name(connection, spec.name)
            values["submitted_at"] = self._submitted(connection, now)
            try:
                row = connection.execute(INSERT_JOB, values).fetchone()
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"a job {new_id!r} exists already; leave the id out, or give the "
                    f"idempotency key of the first submit to get that job back",
                    job=new_id,
                ) from error
            self._state_event(connection, new_id, None, JobState.QUEUED, now=now, attempt=0)
        return job_of(row), True

    def job(self, job_id: str) -> Job:
        """See `Store.job`."""
        with self._database.read() as connection:
            return job_of(self._row(connection, job_id))

    def find(self, text: str, *, kind: str | None = None, newest: bool = False) -> Job:
        """See `Store.find`. A whole id wins over all else, then a whole name over prefixes."""
        if not text:
            raise UsageError("an empty text names no job; give an id, its beginning, or a name")
        named_member = split_member(text)
        if named_member is not None and kind is None:
            return self._find_member(*named_member, newest=newest)
        values = {"text": text, "beyond": text + _BEYOND, "kind": kind}
        with self._database.read() as connection:
            exact = connection.execute(BY_ID, values).fetchone()
            if exact is not None:
                return job_of(exact)
            rows = connection.execute(NAMED, values).fetchall()
            if rows and newest:
                return job_of(rows[0])
            rows = rows or [
                row
                for row in connection.execute(BEGINNING, values).fetchall()
                if _is_beginning(text, str(row["id"]))
            ]
            if len(rows) == 1:
                return job_of(rows[0])
            if rows:
                shown = "\n".join(
                    f"  {row['id']}  {row['display_name'] or row['name']}  {row['state']}"
                    for row in rows[:_SHOWN]
                )
                more = "\n  …" if len(rows) > _SHOWN else ""
                raise UsageError(
                    f"{text!r} names {len(rows)} {kind or 'job'}s; give one name, or more of the "
                    f"id:\n{shown}{more}",
                    matches=tuple(row["id"] for row in rows),
                )
            names = connection.execute(NAMES, values).fetchall()
        raise NotFoundError(_not_found(text, names, self._database.where, kind), job=text)

    def _find_member(self, text: str, index: int, *, newest: bool) -> Job:
        """Return the member with this index of the array that `text` names.

        A member that was run again is an array of its own, with its array's name and a number.
        So the array that is shown as `text` comes first, then those that have such a member.
        """
        values = {"text": text, "kind": ARRAY}
        with self._database.read() as connection:
            arrays = connection.execute(NAMED, values).fetchall()
            shown = [row for row in arrays if (row["display_name"] or row["name"]) == text]
            arrays = shown or arrays
            if len(arrays) > 1:
                arrays = [row for row in arrays if has_member(connection, row, index)] or arrays
            if arrays and (newest or len(arrays) == 1):
                return job_of(member_row(connection, arrays[0], index))
        array = self.find(text, newest=newest)  # by its id; or this says that several match
        with self._database.read() as connection:
            return job_of(member_row(connection, self._row(connection, array.id), index))

    def jobs(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[Job]:
        """See `Store.jobs`."""
        rows = self._select("*", states, experiment, parent, target, tag, limit, newest_first)
        return [job_of(row) for row in rows]

    def job_lines(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
        members: bool = True,
        trials: bool = True,
    ) -> list[JobLine]:
        """See `Store.job_lines`."""
        where = [] if members else [NO_MEMBER]
        where += [] if trials else ["(parent IS NULL OR array_index IS NOT NULL)"]
        rows = self._select(
            LINE_COLUMNS, states, experiment, parent, target, tag, limit, newest_first, where
        )
        return [line_of(row) for row in rows]

    def job_rows(
        self,
        *,
        states: Sequence[JobState] | None = None,
        experiment: str | None = None,
        parent: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[Mapping[str, Any]]:
        """Return what `jobs` does without specs, as plain JSON data, for long lists.

        Keys are the job's fields, and `name`; times are ISO text.
        """
        rows = self._select(
            LIGHT_COLUMNS, states, experiment, parent, target, tag, limit, newest_first
        )
        return [light_row(row) for row in rows]

    def _select(
        self,
        columns: str,
        states: Sequence[JobState] | None,
        experiment: str | None,
        parent: str | None,
        target: str | None,
        tag: tuple[str, str] | None,
        limit: int | None,
        newest_first: bool,
        only: Sequence[str] = (),
    ) -> list[sqlite3.Row]:
        where = list(only)
        values: dict[str, Any] = {"limit": -1 if limit is None else limit}
        if states is not None:
            values.update({f"state{n}": str(state) for n, state in enumerate(states)})
            wanted = f"IN ({', '.join(f':state{n}' for n in range(len(states)))})"
            where.append(
                f"state {wanted}" if NO_MEMBER not in where else ARRAY_IS_IN.format(wanted=wanted)
            )
        for column, value in (("experiment", experiment), ("parent", parent), ("target", target)):
            if value is not None:
                where.append(f"{column} = :{column}")
                values[column] = value
        if tag is not None:
            where.append(
                "EXISTS (SELECT 1 FROM json_each(jobs.tags) AS tag"
                " WHERE tag.key = :tag_name AND tag.value = :tag_value)"
            )
            values["tag_name"], values["tag_value"] = tag
        statement = (  # our own fragments; what users give are values
            f"SELECT {columns} FROM jobs"  # noqa: S608
            + (f" WHERE {' AND '.join(where)}" if where else "")
            + f" ORDER BY serial {'DESC' if newest_first else 'ASC'} LIMIT :limit"
        )
        with self._database.read() as connection:
            return connection.execute(statement, values).fetchall()

    def job_arguments(self, serials: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        """See `Store.job_arguments`."""
        chosen = (
            "" if serials is None else " WHERE serial IN (SELECT value FROM json_each(:serials))"
        )
        values = {} if serials is None else {"serials": json.dumps(list(serials))}
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT serial, json_extract(spec, '$.arguments') FROM jobs{chosen}",  # noqa: S608
                values,
            ).fetchall()
        return {serial: tuple(json.loads(text)) for serial, text in rows if text}

    def counts(self) -> dict[JobState, int]:
        """See `Store.counts`."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall()
        return {JobState(state): count for state, count in rows}

    def update(
        self,
        job_id: str,
        *,
        priority: int | None = None,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        display_name: str | None = None,
        hold: str | None = None,
        release: bool = False,
    ) -> Job:
        """See `Store.update`."""
        _check_hold(hold, release)
        with self._database.write(durable=hold is not None or release) as connection:
            self._change(connection, job_id, priority, tags, properties, display_name)
            if hold is None and not release:
                return job_of(self._row(connection, job_id))
            self._set_hold(connection, job_id, hold)
            changed = self._row(connection, job_id)
        return job_of(changed)  # only now: a job whose spec is damaged can be held too

    def revise(
        self,
        read: Job,
        spec: JobSpec,
        *,
        priority: int | None = None,
        tags: Mapping[str, str | None] | None = None,
        display_name: str | None = None,
        hold: str | None = None,
        release: bool = False,
    ) -> Job | None:
        """See `Store.revise`."""
        _check_hold(hold, release)
        text, now, job_id = spec.to_json(), self._now(), read.id
        with self._database.write(durable=True) as connection:
            row = self._row(connection, job_id)
            before, found = str(row["spec"]), job_of(row)
            if (found.spec, found.priority, found.tags) != (read.spec, read.priority, read.tags):
                return None
            waiting = [row] if row["state"] == JobState.QUEUED else []
            if row["kind"] == ARRAY:
                waiting = connection.execute(
                    QUEUED_LIKE, {"job": job_id, "spec": before}
                ).fetchall()
            if not waiting:
                raise UsageError(
                    f"{job_id} is {row['state']}: it no longer waits in the queue",
                    job=job_id,
                )
            changes = _differences(before, text)
            for one in [row, *waiting] if row["kind"] == ARRAY else waiting:
                number = _revision(connection, one["id"]) + 1
                connection.execute(REVISE, {"job": one["id"], "spec": text, "now": now})
                self._event(
                    connection,
                    one["id"],
                    REVISION,
                    f"revision {number}: {', '.join(changes) or 'nothing changed'}",
                    now=now,
                    attempt=one["attempt"],
                    data={"revision": number, "before": before},
                )
            # In the same transaction: the next change of the job starts from these. The
            # priority of an array is also that of members which do not wait (see `_change`).
            own = row["priority"] if row["kind"] == ARRAY else spec.priority
            values = {"job": job_id, "tags": to_json(dict(spec.tags)), "priority": own}
            connection.execute(TAGS_AND_PRIORITY, values)
            self._change(connection, job_id, priority, tags, None, display_name)
            if hold is not None or release:
                self._set_hold(connection, job_id, hold)
            return job_of(self._row(connection, job_id))

    def revision(self, job_id: str) -> int:
        """See `Store.revision`."""
        with self._database.read() as connection:
            return _revision(connection, job_id)

    def hold(self, job_id: str, *, reason: str) -> Job:
        """See `Store.hold`."""
        return self.update(job_id, hold=reason)

    def release(self, job_id: str) -> Job:
        """See `Store.release`."""
        return self.update(job_id, release=True)

    def _change(
        self,
        connection: sqlite3.Connection,
        job_id: str,
        priority: int | None,
        tags: Mapping[str, str | None] | None,
        properties: Mapping[str, str] | None,
        display_name: str | None,
    ) -> None:
        row = self._row(connection, job_id)
        changes: dict[str, Any] = {}
        if priority is not None and priority != row["priority"]:
            if JobState(row["state"]).is_final:
                raise UsageError(
                    f"job {job_id!r} is {row['state']}: the priority of a job that has "
                    f"ended cannot be changed",
                    job=job_id,
                )
            changes["priority"] = priority
            self._event(
                connection,
                job_id,
                "priority",
                f"priority {row['priority']} → {priority}",
                now=self._now(),
                attempt=row["attempt"],
            )
            if row["kind"] == ARRAY:
                connection.execute(
                    f"UPDATE jobs SET priority = :priority WHERE {UPDATED}",  # noqa: S608
                    {"priority": priority, "job": job_id},
                )
        if tags:
            merged = {**json.loads(row["tags"]), **tags}
            changes["tags"] = to_json({k: v for k, v in merged.items() if v is not None})
        if properties:
            changes["properties"] = _add_only(job_id, row["properties"], properties)
        if display_name is not None:
            changes["display_name"] = display_name
        if changes:
            assignments = ", ".join(f"{column} = :{column}" for column in changes)
            connection.execute(
                f"UPDATE jobs SET {assignments} WHERE id = :job",  # noqa: S608
                {**changes, "job": job_id},
            )

    def _set_hold(self, connection: sqlite3.Connection, job_id: str, reason: str | None) -> None:
        row = self._row(connection, job_id)
        if JobState(row["state"]).is_final:
            raise UsageError(
                f"job {job_id!r} is {row['state']}: only a job that has not ended can be held "
                f"or released",
                job=job_id,
            )
        if row["kind"] not in ("job", ARRAY):
            raise UsageError(
                f"{job_id!r} is a {row['kind']}: hold or release its jobs instead", job=job_id
            )
        chosen = [row]
        if row["kind"] == ARRAY:
            chosen += connection.execute(
                f"SELECT * FROM jobs WHERE {UPDATED}",  # noqa: S608
                {"job": job_id},
            ).fetchall()
        for one in chosen:
            if one["hold"] == reason:
                continue
            connection.execute(
                "UPDATE jobs SET hold = :hold WHERE id = :job",
                {"hold": reason, "job": one["id"]},
            )
            self._event(
                connection,
                one["id"],
                "hold",
                f"held: {reason}" if reason else "released",
                now=self._now(),
                attempt=one["attempt"],
            )


def first_spec(connection: sqlite3.Connection, row: sqlite3.Row) -> str:
    """Return the spec that a job was submitted with."""
    found = connection.execute(FIRST_REVISION, {"job": row["id"], "kind": REVISION}).fetchone()
    return str(row["spec"] if found is None else json.loads(found[0])["before"])


def _revision(connection: sqlite3.Connection, job_id: str) -> int:
    values = {"job": job_id, "kind": REVISION}
    return 1 + int(connection.execute(REVISIONS, values).fetchone()[0])


def _differences(before: str, after: str) -> list[str]:
    """Return which fields of two specs differ, for people."""
    old, new = _flat(json.loads(before)), _flat(json.loads(after))
    return [
        f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _flat(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _refuse_lost_claim(parent: sqlite3.Row, claim: int) -> None:
    state = JobState(parent["state"])
    if parent["attempt"] == claim and not state.is_final:
        return
    raise TakenOverError(
        f"{parent['id']} is {state} and has claim {parent['attempt']}: a child cannot be submitted "
        f"by claim {claim}",
        job=parent["id"],
        claim=claim,
    )


def _check_hold(hold: str | None, release: bool) -> None:
    if hold is not None and (release or not hold):
        raise UsageError("hold a job for a reason, or release it; say which")


def _add_only(job_id: str, stored: str, new: Mapping[str, str]) -> str:
    known: dict[str, str] = json.loads(stored)
    for name, value in new.items():
        if known.get(name, value) != value:
            raise UsageError(
                f"property {name!r} of job {job_id!r} is {known[name]!r} and cannot become "
                f"{value!r}: properties are written once; use a tag for what changes",
                job=job_id,
            )
    return to_json({**known, **new})


def _is_beginning(text: str, job: str) -> bool:
    """Whether `text` means a job by the beginning of its id: it has to cover the id's name.

    The beginning of the name alone is another job's name: `exp1` never means `exp10_…`.
    """
    return not job.startswith(text) or len(text) >= len(job.rsplit("_", 2)[0])


def _not_found(text: str, rows: Sequence[sqlite3.Row], where: str, kind: str | None) -> str:
    import difflib  # only on the way to an error

    known: dict[str, str] = {}
    for row in reversed(rows):
        known.update({name: row["id"] for name in row if name})
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.6)
    meant = ", ".join(dict.fromkeys(near))
    listing = "sweep ls" if kind == "sweep" else "ls"
    hint = (
        f"did you mean {meant}?"
        if near
        else f"`rayjobs {listing} --all` lists the {kind or 'job'}s."
    )
    return f"no {kind or 'job'} {text!r} in the store {where}; {hint}"
