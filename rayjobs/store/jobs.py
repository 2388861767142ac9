"""Jobs: submit, find, list and change them."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, TakenOverError, UsageError
from rayjobs.core.terminal import plain_text
from rayjobs.jobs.events import Pruned, Restored, SpecRevised
from rayjobs.jobs.records import Job, JobLine, kind_text
from rayjobs.jobs.states import JobState
from rayjobs.spec.arrays import split_member
from rayjobs.store.arrays import KIND as ARRAY
from rayjobs.store.arrays import has_member, member_row
from rayjobs.store.names import next_name
from rayjobs.store.part import Part, first_spec
from rayjobs.store.pipelines import refuse_child
from rayjobs.store.references import refuse_removed
from rayjobs.store.requests import EVERY_JOB, NO_CHANGES, JobChanges, JobFilter, NewJob
from rayjobs.store.rows import event_of, job_of, line_of, same_submit, to_json

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

# Members of an array and trials of a sweep share its name, which means the array or sweep.
NAMED = """
SELECT * FROM (
    SELECT * FROM jobs WHERE name = :text AND array_index IS NULL AND NOT EXISTS (
        SELECT 1 FROM jobs AS above WHERE above.id = jobs.parent
        AND (above.name = jobs.name OR above.kind = 'sweep'))
    UNION SELECT * FROM jobs WHERE display_name = :text AND array_index IS NULL
) WHERE :kind IS NULL OR kind = :kind
ORDER BY serial DESC LIMIT 200
"""
# A prefix as a range: LIKE would need escapes and would not use the index.
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

# Lines about jobs that a prune or a restore removed.
GONE = f"""
SELECT * FROM events WHERE kind IN ('{Pruned.KIND}', '{Restored.KIND}')
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = events.job)
ORDER BY serial DESC
"""  # noqa: S608 - constants

LINE_COLUMNS = (
    "serial, id, experiment, name, display_name, kind, parent, target, submitted_by, state, "
    "attempt, reason, priority, submitted_at, changed_at, started_at, ended_at, "
    "cancel_requested_at, tags, snapshot, failure, properties, array_index, placed_at, hold, "
    "cancellation"
)
OF_UNFINISHED_MEMBERS = (
    "kind = 'job' AND parent = :job AND state NOT IN ('Completed', 'Failed', 'Canceled')"
)

REVISIONS = "SELECT COUNT(*) FROM events WHERE job = :job AND kind = :kind"
# A new `changed_at` makes the target read the job again, and not start it as it was read before.
REVISE = "UPDATE jobs SET spec = :spec, changed_at = :now WHERE id = :job"
TAGS_AND_PRIORITY = "UPDATE jobs SET tags = :tags, priority = :priority WHERE id = :job"
QUEUED_LIKE = """
SELECT * FROM jobs WHERE parent = :job AND kind = 'job' AND state = 'Queued' AND spec = :spec
"""

_BEYOND = "\U0010ffff"
_SHOWN = 10


NO_MEMBER = "array_index IS NULL"
NO_TRIAL = "(parent IS NULL OR array_index IS NOT NULL)"
# An unfinished array is in the state of each of its unfinished members.
ARRAY_IS_IN = """(
    CASE WHEN kind = 'array' AND state NOT IN ('Completed', 'Failed', 'Canceled')
    THEN EXISTS (SELECT 1 FROM jobs AS member WHERE member.parent = jobs.id
                 AND member.state NOT IN ('Completed', 'Failed', 'Canceled')
                 AND member.array_index IS NOT NULL AND member.state {wanted})
    ELSE state {wanted} END
)"""


class JobsPart(Part):
    """Rows of jobs."""

    def submit(self, new: NewJob) -> tuple[Job, bool]:
        """See `Store.submit`."""
        spec = new.spec
        if spec.array is not None:
            raise UsageError("the spec has `array`; use `submit_array`, or remove the field")
        if new.claim is not None and new.parent is None:
            raise UsageError("a claim belongs to a parent; give `parent` with it")
        now = self._now()
        new_id = new.id or ids.job_id(new.experiment)
        values = {
            "id": new_id,
            "tail": new_id.rpartition("_")[2],
            "idempotency_key": new.idempotency_key,
            "experiment": new.experiment,
            "name": spec.name,
            "display_name": spec.display_name,
            "kind": new.kind,
            "parent": new.parent,
            "target": spec.target,
            "submitted_by": new.user,
            "snapshot": new.snapshot,
            "spec": spec.to_json(),
            "priority": spec.priority,
            "now": now,
            "tags": to_json(dict(spec.tags)),
            "properties": to_json(dict(new.properties)),
            "entry": spec.entry,
        }
        with self._database.write(durable=True) as connection:
            if new.claim is not None and new.parent is not None:
                _refuse_lost_claim(self._row(connection, new.parent), new.claim)
            if new.idempotency_key is not None:
                known = connection.execute(BY_KEY, values).fetchone()
                if known is not None:
                    first = first_spec(connection, known)
                    return same_submit(known, spec, new.snapshot, first), False
            refuse_child(connection, new.parent)
            refuse_removed(connection, spec)
            if new.numbered and spec.display_name is None:
                values["display_name"] = next_name(connection, spec.name)
            values["submitted_at"] = self._submitted(connection, now)
            try:
                row = connection.execute(INSERT_JOB, values).fetchone()
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"a job {new_id!r} already exists; leave out the id, or give the idempotency "
                    "key of the first submit to get that job back",
                    job=new_id,
                ) from error
            self._state_event(connection, new_id, None, JobState.QUEUED, now=now, attempt=0)
        return job_of(row), True

    def job(self, job_id: str) -> Job:
        """See `Store.job`."""
        with self._database.read() as connection:
            return job_of(self._row(connection, job_id))

    def find(self, text: str, *, kind: str | None = None, newest: bool = False) -> Job:
        """See `Store.find`. A full id takes precedence, then a full name, then prefixes."""
        if not text:
            raise UsageError("an empty text names no job; give an id, a prefix of one, or a name")
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
            is_name = bool(rows)
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
                hint = (
                    "give the id of one, its last part, or a name that only this one has"
                    if is_name
                    else "give more of the id, or a name"
                )
                raise UsageError(
                    f"{text!r} names {len(rows)} {kind or 'job'}s; {hint}:\n{shown}{more}",
                    matches=tuple(row["id"] for row in rows),
                )
            if gone := _gone(connection, text):
                raise NotFoundError(f"no {kind or 'job'} {text!r} any more: {gone}", job=text)
            names = connection.execute(NAMES, values).fetchall()
        raise NotFoundError(_not_found(text, names, self._database.where, kind), job=text)

    def _find_member(self, text: str, index: int, *, newest: bool) -> Job:
        """Return the member with this index of the array that `text` names.

        A member that was run again is a separate array, with its array's name and a number. So the
        array displayed as `text` comes first, then those that have such a member.
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
        array = self.find(text, newest=newest)  # finds it by its id, or raises: several match
        with self._database.read() as connection:
            return job_of(member_row(connection, self._row(connection, array.id), index))

    def jobs(self, which: JobFilter = EVERY_JOB) -> list[Job]:
        """See `Store.jobs`."""
        return [job_of(row) for row in self._select("*", which)]

    def job_lines(self, which: JobFilter = EVERY_JOB) -> list[JobLine]:
        """See `Store.job_lines`."""
        return [line_of(row) for row in self._select(LINE_COLUMNS, which)]

    def _select(self, columns: str, which: JobFilter) -> list[sqlite3.Row]:
        conditions, values = _conditions(which)
        statement = (  # our own SQL fragments; user input is passed as values
            f"SELECT {columns} FROM jobs"  # noqa: S608
            + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
            + f" ORDER BY serial {'DESC' if which.newest_first else 'ASC'} LIMIT :limit"
        )
        with self._database.read() as connection:
            return connection.execute(statement, values).fetchall()

    def job_arguments(self, serials: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """See `Store.job_arguments`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT serial, json_extract(spec, '$.arguments') FROM jobs"
                " WHERE serial IN (SELECT value FROM json_each(:serials))",
                {"serials": json.dumps(list(serials))},
            ).fetchall()
        return {serial: tuple(json.loads(text)) for serial, text in rows if text}

    def counts(self) -> dict[JobState, int]:
        """See `Store.counts`."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall()
        return {JobState(state): count for state, count in rows}

    def update(self, job_id: str, changes: JobChanges) -> Job:
        """See `Store.update`."""
        with self._database.write(durable=changes.is_about_hold) as connection:
            self._change(connection, job_id, changes)
            if not changes.is_about_hold:
                return job_of(self._row(connection, job_id))
            changed = self._row(connection, job_id)
        return job_of(changed)  # after the commit: even a job with a damaged spec can be held

    def revise(self, read: Job, spec: JobSpec, changes: JobChanges = NO_CHANGES) -> Job | None:
        """See `Store.revise`."""
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
            differences = _differences(before, text)
            for one in [row, *waiting] if row["kind"] == ARRAY else waiting:
                number = _revision(connection, one["id"]) + 1
                connection.execute(REVISE, {"job": one["id"], "spec": text, "now": now})
                self._event(
                    connection,
                    one["id"],
                    SpecRevised.KIND,
                    f"revision {number}: {', '.join(differences) or 'nothing changed'}",
                    now=now,
                    attempt=one["attempt"],
                    data=SpecRevised(number, before).to_json(),
                )
            # In the same transaction: the next change of the job starts from these. The priority of
            # an array also applies to members that do not wait (see `_change`).
            own = row["priority"] if row["kind"] == ARRAY else spec.priority
            values = {"job": job_id, "tags": to_json(dict(spec.tags)), "priority": own}
            connection.execute(TAGS_AND_PRIORITY, values)
            self._change(connection, job_id, changes)
            return job_of(self._row(connection, job_id))

    def revision(self, job_id: str) -> int:
        """See `Store.revision`."""
        with self._database.read() as connection:
            return _revision(connection, job_id)

    def hold(self, job_id: str, *, reason: str) -> Job:
        """See `Store.hold`."""
        return self.update(job_id, JobChanges(hold=reason))

    def release(self, job_id: str) -> Job:
        """See `Store.release`."""
        return self.update(job_id, JobChanges(release=True))

    def _change(
        self,
        connection: sqlite3.Connection,
        job_id: str,
        changes: JobChanges,
    ) -> None:
        row = self._row(connection, job_id)
        columns: dict[str, Any] = {}
        priority = changes.priority
        if priority is not None and priority != row["priority"]:
            if JobState(row["state"]).is_final:
                raise UsageError(
                    f"job {job_id!r} is {row['state']}: the priority of a job that has "
                    f"ended cannot be changed",
                    job=job_id,
                )
            columns["priority"] = priority
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
                    f"UPDATE jobs SET priority = :priority WHERE {OF_UNFINISHED_MEMBERS}",  # noqa: S608
                    {"priority": priority, "job": job_id},
                )
        if changes.tags:
            merged = {**json.loads(row["tags"]), **changes.tags}
            columns["tags"] = to_json({k: v for k, v in merged.items() if v is not None})
        if changes.properties:
            columns["properties"] = _add_only(job_id, row["properties"], changes.properties)
        if changes.display_name is not None:
            columns["display_name"] = changes.display_name
        if changes.description is not None:
            columns["description"] = changes.description
        if columns:
            assignments = ", ".join(f"{column} = :{column}" for column in columns)
            connection.execute(
                f"UPDATE jobs SET {assignments} WHERE id = :job",  # noqa: S608
                {**columns, "job": job_id},
            )
        if changes.is_about_hold:
            self._set_hold(connection, job_id, changes.hold)

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
                f"{job_id!r} is {kind_text(row['kind'])}, which no target starts: hold or release "
                "jobs instead",
                job=job_id,
            )
        chosen = [row]
        if row["kind"] == ARRAY:
            chosen += connection.execute(
                f"SELECT * FROM jobs WHERE {OF_UNFINISHED_MEMBERS}",  # noqa: S608
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
                "hold" if reason else "release",
                f"held: {reason}" if reason else "released",
                now=self._now(),
                attempt=one["attempt"],
            )


def _conditions(which: JobFilter) -> tuple[list[str], dict[str, Any]]:
    """Return the SQL conditions of a filter, and their values."""
    conditions = [] if which.members else [NO_MEMBER]
    conditions += [] if which.trials else [NO_TRIAL]
    values: dict[str, Any] = {"limit": -1 if which.limit is None else which.limit}
    if which.states is not None:
        values.update({f"state{n}": str(state) for n, state in enumerate(which.states)})
        names = ", ".join(f":state{n}" for n in range(len(which.states)))
        wanted = f"IN ({names or 'NULL'})"
        conditions.append(f"state {wanted}" if which.members else ARRAY_IS_IN.format(wanted=wanted))
    for column in ("experiment", "parent", "target"):
        value = getattr(which, column)
        if value is not None:
            conditions.append(f"{column} = :{column}")
            values[column] = value
    if which.after is not None:
        conditions.append("serial < :after" if which.newest_first else "serial > :after")
        values["after"] = which.after
    if which.tag is not None:
        conditions.append(
            "EXISTS (SELECT 1 FROM json_each(jobs.tags) AS tag"
            " WHERE tag.key = :tag_name AND tag.value = :tag_value)"
        )
        values["tag_name"], values["tag_value"] = which.tag
    return conditions, values


def _revision(connection: sqlite3.Connection, job_id: str) -> int:
    values = {"job": job_id, "kind": SpecRevised.KIND}
    return 1 + int(connection.execute(REVISIONS, values).fetchone()[0])


def _differences(before: str, after: str) -> list[str]:
    """Return which fields of two specs differ, for people."""
    old, new = _flat(json.loads(before)), _flat(json.loads(after))
    return [
        # Receivers may hold a secret address, and everyone may read the history.
        "notify changed"
        if name == "notify"
        else f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"
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


def _add_only(job_id: str, stored: str, new: Mapping[str, str]) -> str:
    known: dict[str, str] = json.loads(stored)
    for name, value in new.items():
        if known.get(name, value) != value:
            raise UsageError(
                f"property {name!r} of job {job_id!r} is {known[name]!r} and cannot become "
                f"{value!r}: properties are written once; use a tag for changing values",
                job=job_id,
            )
    return to_json({**known, **new})


def _is_beginning(text: str, job: str) -> bool:
    """Whether `text` names a job by a prefix of its id: the prefix must cover the id's name.

    A prefix of the name alone may be another job's name: `exp1` never means `exp10_…`.
    """
    return not job.startswith(text) or len(text) >= len(job.rsplit("_", 2)[0])


def _gone(connection: sqlite3.Connection, text: str) -> str:
    """Return what removed the newest job of this id or name; empty if none was removed."""
    for row in connection.execute(GONE):
        event = event_of(row)
        gone, job = Pruned.of(event) or Restored.of(event), event.job
        is_start = job.startswith(text) and _is_beginning(text, job)
        if is_start or text in (job.rpartition("_")[2], gone and gone.name):
            return f"{event.message} ({event.at.astimezone():%Y-%m-%d %H:%M})"
    return ""


def _not_found(text: str, rows: Sequence[sqlite3.Row], where: str, kind: str | None) -> str:
    import difflib  # only before an error

    known: dict[str, str] = {}
    for row in reversed(rows):
        # A name that several jobs share does not identify any of them.
        shown = row["display_name"] or row["name"]
        known.update({name: row["id"] for name in (row["id"], row["tail"], shown) if name})
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.6)
    meant = " or ".join(shlex.quote(plain_text(name)) for name in dict.fromkeys(near))
    listing = f"{kind} ls" if kind in ("sweep", "pipeline") else "ls"
    hint = (
        f"did you mean {meant}?"
        if near
        else f"`rayjobs {listing} --all` lists the {kind or 'job'}s."
    )
    return f"no {kind or 'job'} {text!r} in the store {where}; {hint}"
