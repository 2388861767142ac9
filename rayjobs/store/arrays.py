"""Job arrays: many jobs of one spec under a parent that ends with its last member."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.names import next_name
from rayjobs.store.part import Part, first_spec
from rayjobs.store.references import refuse_removed
from rayjobs.store.requests import NewJob
from rayjobs.store.rows import failure_of, job_of, same_submit, to_json

KIND = "array"

# Like a sweep, an array needs no allocation: its row is Running, and no target ever starts it. Its
# `started_at` is the start of its first member.
INSERT = """
INSERT INTO jobs (id, idempotency_key, experiment, name, display_name, kind, parent, target,
    submitted_by, snapshot, spec, state, attempt, reason, priority, submitted_at, changed_at,
    tags, properties, tail, entry, array_index)
VALUES (:id, :idempotency_key, :experiment, :name, :display_name, :kind, :parent, :target,
    :submitted_by, :snapshot, :spec, :state, 0, '', :priority, :submitted_at, :now,
    :tags, :properties, :tail, :entry, :array_index)
"""
BY_KEY = "SELECT * FROM jobs WHERE idempotency_key = :idempotency_key"
MEMBER = "SELECT * FROM jobs WHERE parent = :parent AND array_index = :index"

_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))
_UNFINISHED = ", ".join(f"'{state}'" for state in sorted(set(JobState) - FINAL))

UNFINISHED_MEMBERS = f"""
SELECT * FROM jobs WHERE parent = :parent AND state IN ({_UNFINISHED}) ORDER BY serial
"""  # noqa: S608 - made of our own names
ANY_UNFINISHED = f"""
SELECT 1 FROM jobs WHERE parent = :parent AND state IN ({_UNFINISHED}) LIMIT 1
"""  # noqa: S608 - made of our own names
# A trial that has ended counts with its sweep's verdict: it failed if its job completed without the
# sweep's metric.
COUNTS = """
SELECT COALESCE(trials.state, jobs.state) AS state, COUNT(*) AS n
FROM jobs LEFT JOIN (
    SELECT job, state FROM trials WHERE sweep = :parent AND ended_at IS NOT NULL
) AS trials ON trials.job = jobs.id
WHERE jobs.parent = :parent GROUP BY 1
"""
# Trials whose sweep's verdict differs from their job's state.
JUDGED = """
SELECT trials.job, trials.state, trials.reason FROM trials JOIN jobs ON jobs.id = trials.job
WHERE trials.sweep = :parent AND trials.ended_at IS NOT NULL AND trials.state != jobs.state
"""
FAILED = """
SELECT array_index, failure FROM jobs WHERE parent = :parent AND state = 'Failed'
ORDER BY ended_at, serial
"""
# The second id is that of the pipeline of a trial, whose parent is a sweep.
_PARENTS = "(id = :parent OR id = (SELECT parent FROM jobs WHERE id = :parent))"
PLACED = f"""
UPDATE jobs SET placed_at = COALESCE(placed_at, :now)
WHERE {_PARENTS} AND kind IN ('array', 'pipeline')
"""  # noqa: S608 - made of our own names
STARTED = f"""
UPDATE jobs SET started_at = COALESCE(started_at, :now)
WHERE {_PARENTS} AND kind IN ('array', 'pipeline', 'sweep')
"""  # noqa: S608 - made of our own names


@dataclass(frozen=True)
class ArrayEnd:
    """The end of an array whose members have all ended.

    Attributes:
        array: Its row, before its end.
        counts: How many members ended in which state, as text.
    """

    array: sqlite3.Row
    state: JobState
    failure: Failure | None
    counts: str


def note_placed(connection: sqlite3.Connection, job: sqlite3.Row, now: str) -> None:
    """Set the first placement of a job's parents (an array, a pipeline run), unless it is set."""
    if job["parent"] is not None:
        connection.execute(PLACED, {"parent": job["parent"], "now": now})


def note_started(connection: sqlite3.Connection, job: sqlite3.Row, now: str) -> None:
    """Set the first start of a job's parents (array, pipeline run, sweep), unless it is set."""
    if job["parent"] is not None:
        connection.execute(STARTED, {"parent": job["parent"], "now": now})


def end_of(connection: sqlite3.Connection, member: sqlite3.Row) -> ArrayEnd | None:
    """Return the end of the array of a member that has ended; None unless it was the last one."""
    if member["array_index"] is None:
        return None
    parent = {"parent": member["parent"]}
    if connection.execute(ANY_UNFINISHED, parent).fetchone() is not None:
        return None
    array = connection.execute("SELECT * FROM jobs WHERE id = :parent", parent).fetchone()
    if array is None or JobState(array["state"]).is_final:
        return None
    counts = {JobState(row["state"]): int(row["n"]) for row in connection.execute(COUNTS, parent)}
    state, failure = JobState.COMPLETED, None
    if counts.get(JobState.FAILED):
        state = JobState.FAILED
        failure = _cause(connection.execute(FAILED, parent).fetchall(), sum(counts.values()))
    elif counts.get(JobState.CANCELED):
        state = JobState.CANCELED
    text = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    return ArrayEnd(array, state, failure, text)


def _cause(failed: Sequence[sqlite3.Row], total: int) -> Failure:
    """Return the array's failure: that of the first failed member, preferably not a time limit."""
    known = [(row["array_index"], failure_of(row["failure"])) for row in failed]
    # A time limit has its own exit code, which is used only if nothing else failed.
    hard = [
        one
        for one in known
        if one[1] is None or one[1].failure_class is not FailureClass.TIME_LIMIT
    ]
    index, first = (hard or known)[0]
    text = f"{len(failed)} of {total} members failed, [{index}] first"
    if first is None:
        return Failure(FailureClass.USER, text)
    return replace(first, message=f"{text}: {first.message}")


class ArraysPart(Part):
    """Rows of arrays and their members."""

    def submit_array(self, new: NewJob) -> tuple[Job, bool]:
        """See `Store.submit_array`."""
        spec = new.spec
        if spec.array is None:
            raise UsageError("the spec has no `array`; use `submit` for a single job")
        now = self._now()
        new_id = new.id or ids.job_id(new.experiment)
        common = {
            "experiment": new.experiment,
            "name": spec.name,
            "display_name": spec.display_name,
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
        parent = {
            **common,
            "id": new_id,
            "tail": new_id.rpartition("_")[2],
            "idempotency_key": new.idempotency_key,
            "kind": KIND,
            "parent": None,
            "state": str(JobState.RUNNING),
            "array_index": None,
        }
        with self._database.write(durable=True) as connection:
            if new.idempotency_key is not None:
                known = connection.execute(BY_KEY, parent).fetchone()
                if known is not None:
                    first = first_spec(connection, known)
                    return same_submit(known, spec, new.snapshot, first), False
            refuse_removed(connection, spec)
            if new.numbered and spec.display_name is None:
                common["display_name"] = next_name(connection, spec.name)
                parent["display_name"] = common["display_name"]
            common["submitted_at"] = parent["submitted_at"] = self._submitted(connection, now)
            try:
                connection.execute(INSERT, parent)
                members = [
                    {
                        **common,
                        "id": member_id,
                        "tail": member_id.rpartition("_")[2],
                        "idempotency_key": None,
                        "kind": "job",
                        "parent": new_id,
                        "state": str(JobState.QUEUED),
                        "array_index": index,
                    }
                    for index, member_id in zip(
                        spec.array.expand(),
                        _fresh_ids(new.experiment, len(spec.array.expand())),
                        strict=True,
                    )
                ]
                connection.executemany(INSERT, members)
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"a job {new_id!r}, or one of its members, already exists; leave out the id, "
                    "or give the idempotency key of the first submit to get that array back",
                    job=new_id,
                ) from error
            self._state_event(connection, new_id, None, JobState.RUNNING, now=now, attempt=0)
            for member in members:
                self._state_event(
                    connection, str(member["id"]), None, JobState.QUEUED, now=now, attempt=0
                )
            row = self._row(connection, new_id)
        return job_of(row), True

    def member(self, array_id: str, index: int) -> Job:
        """See `Store.member`."""
        with self._database.read() as connection:
            return job_of(member_row(connection, self._row(connection, array_id), index))

    def member_counts(self, parents: Iterable[str]) -> dict[str, Mapping[JobState, int]]:
        """See `Store.member_counts`."""
        with self._database.read() as connection:
            return {
                parent: {
                    JobState(row["state"]): int(row["n"])
                    for row in connection.execute(COUNTS, {"parent": parent})
                }
                for parent in parents
            }

    def judged_trials(self, sweep_id: str) -> dict[str, tuple[JobState, str]]:
        """See `Store.judged_trials`."""
        with self._database.read() as connection:
            return {
                row["job"]: (JobState(row["state"]), str(row["reason"]))
                for row in connection.execute(JUDGED, {"parent": sweep_id})
            }


def has_member(connection: sqlite3.Connection, array: sqlite3.Row, index: int) -> bool:
    """Return whether an array has a member with this index."""
    values = {"parent": array["id"], "index": index}
    return connection.execute(MEMBER, values).fetchone() is not None


def member_row(connection: sqlite3.Connection, array: sqlite3.Row, index: int) -> sqlite3.Row:
    """Return the row of an array's member.

    Raises:
        NotFoundError: it is not an array, or has no such member.
    """
    found: sqlite3.Row | None = None
    if array["kind"] == KIND:
        found = connection.execute(MEMBER, {"parent": array["id"], "index": index}).fetchone()
    if found is not None:
        return found
    if array["kind"] != KIND:
        raise NotFoundError(
            f"{array['id']} is a {array['kind']}, not an array; it has no member [{index}]",
            job=array["id"],
        )
    raise NotFoundError(
        f"the array {array['id']} has no member [{index}]; "
        f"`rayjobs ls --parent {array['id']}` lists them",
        job=array["id"],
    )


def _fresh_ids(experiment: str, count: int) -> list[str]:
    """Return `count` distinct ids: among ten thousand random tails, two may be equal."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[ids.job_id(experiment)] = None
    return list(found)
