"""Rows to records and back: times as ISO text, everything nested as JSON text."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from rayjobs.core.clock import to_text
from rayjobs.core.errors import StoreError, UnreadableSpecError, UsageError
from rayjobs.core.failures import Failure
from rayjobs.injob.messages import Message, MessageError
from rayjobs.jobs.cancellation import Cancellation
from rayjobs.jobs.records import (
    Allocation,
    AllocationState,
    Attempt,
    Event,
    Job,
    JobLine,
    MetricPoint,
    StoredFile,
)
from rayjobs.jobs.states import JobState

Record = TypeVar("Record", bound=Message)

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec


def to_json(data: Any) -> str:
    """Return compact JSON text, with NaN and infinities as Python writes them."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def failure_text(failure: Failure | None) -> str | None:
    """Return a failure as JSON text."""
    return None if failure is None else to_json(failure.to_dict())


def time_text(at: datetime | None) -> str | None:
    """Return a time in its stored form."""
    return None if at is None else to_text(at)


def time_of(text: str) -> datetime:
    """Return a stored time; four times as fast as `clock.from_text`, which matters for metrics."""
    return datetime.fromisoformat(text)


def optional_time(text: str | None) -> datetime | None:
    """Return a stored time that may be absent."""
    return None if text is None else datetime.fromisoformat(text)


@lru_cache(maxsize=16_384)
def spec_of(text: str) -> JobSpec:
    """Return the spec, cached: an actor that polls every second parses each only once."""
    from rayjobs.spec.model import JobSpec  # pydantic: only for calls that read a spec

    return JobSpec.model_validate_json(text)


def failure_of(text: str | None) -> Failure | None:
    """Return the failure of a JSON text; None for none."""
    return None if text is None else Failure.from_dict(json.loads(text))


def cancellation_text(cancellation: Cancellation | None) -> str | None:
    """Return a cancellation as JSON text, without empty values."""
    if cancellation is None:
        return None
    return to_json({name: value for name, value in asdict(cancellation).items() if value})


def cancellation_of(text: str | None) -> Cancellation | None:
    """Return the cancellation of a JSON text; None for none."""
    if text is None:
        return None
    data = json.loads(text)
    return Cancellation(data.get("by", ""), data.get("remarks", ""), data.get("requeue_reason", ""))


def _strings(text: str) -> dict[str, str]:
    # Most jobs have neither tags nor properties.
    return {} if text == "{}" else json.loads(text)


def job_of(row: sqlite3.Row) -> Job:
    """Return the job of a row with all columns."""
    return Job(
        id=row["id"],
        serial=row["serial"],
        experiment=row["experiment"],
        spec=_spec_of(row),
        state=JobState(row["state"]),
        attempt=row["attempt"],
        reason=row["reason"],
        priority=row["priority"],
        target=row["target"],
        user=row["submitted_by"],
        kind=row["kind"],
        parent=row["parent"],
        snapshot=row["snapshot"],
        display_name=row["display_name"],
        submitted_at=time_of(row["submitted_at"]),
        changed_at=time_of(row["changed_at"]),
        started_at=optional_time(row["started_at"]),
        ended_at=optional_time(row["ended_at"]),
        not_before=optional_time(row["not_before"]),
        cancel_requested_at=optional_time(row["cancel_requested_at"]),
        failure=failure_of(row["failure"]),
        tags=_strings(row["tags"]),
        properties=_strings(row["properties"]),
        array_index=row["array_index"],
        placed_at=optional_time(row["placed_at"]),
        held=row["hold"],
        description=row["description"],
        cancellation=cancellation_of(row["cancellation"]),
    )


def _spec_of(row: sqlite3.Row) -> JobSpec:
    try:
        return spec_of(row["spec"])
    except ValueError as error:  # pydantic's ValidationError is one
        first = str(error).replace("\n", " ")[:200]
        raise UnreadableSpecError(
            f"the spec of job {row['id']!r} cannot be read ({first}); it was damaged, or written "
            f"by a later version. `rayjobs cancel -e {row['experiment']}` ends it anyway",
            job=row["id"],
        ) from error


def line_of(row: sqlite3.Row) -> JobLine:
    """Return the line of a row with `jobs.LINE_COLUMNS`, in that order.

    Columns are accessed by position: for ten thousand rows, looking up each column by name takes as
    long as reading them.
    """
    (
        serial, job_id, experiment, name, display_name, kind, parent, target, user, state, attempt,
        reason, priority, submitted_at, changed_at, started_at, ended_at, cancel_requested_at,
        tags, snapshot, failure, properties, array_index, placed_at, held,
        cancellation,
    ) = row  # fmt: skip
    return JobLine(
        id=job_id,
        serial=serial,
        name=name,
        experiment=experiment,
        state=JobState(state),
        attempt=attempt,
        reason=reason,
        priority=priority,
        target=target,
        user=user,
        kind=kind,
        parent=parent,
        snapshot=snapshot,
        display_name=display_name,
        submitted_at=time_of(submitted_at),
        changed_at=time_of(changed_at),
        started_at=optional_time(started_at),
        ended_at=optional_time(ended_at),
        cancel_requested_at=optional_time(cancel_requested_at),
        failure=failure_of(failure),
        tags=_strings(tags),
        properties=_strings(properties),
        array_index=array_index,
        placed_at=optional_time(placed_at),
        held=held,
        cancellation=cancellation_of(cancellation),
    )


def attempt_of(row: sqlite3.Row) -> Attempt:
    """Return the attempt of a row with all columns."""
    from rayjobs.injob.exit_record import ExitRecord  # a list of jobs needs neither
    from rayjobs.jobs.hosts import HostRecord

    return Attempt(
        job=row["job"],
        number=row["number"],
        allocation=row["allocation"],
        created_at=time_of(row["created_at"]),
        started_at=optional_time(row["started_at"]),
        ended_at=optional_time(row["ended_at"]),
        hosts=_messages_of(HostRecord, row, "hosts"),
        exits=_messages_of(ExitRecord, row, "exits"),
        cold_reason=row["cold_reason"],
        outcome=row["outcome"],
        failure=failure_of(row["failure"]),
    )


def _messages_of(kind: type[Record], row: sqlite3.Row, column: str) -> tuple[Record, ...]:
    """Return the records of a column.

    Raises:
        StoreError: a later version wrote them, or they are damaged.
    """
    try:
        return tuple(kind.from_json(values) for values in json.loads(row[column]))
    except (MessageError, ValueError) as error:
        raise StoreError(
            f"the {column} of attempt {row['number']} of {row['job']} cannot be read: {error}"
        ) from error


def allocation_of(row: sqlite3.Row) -> Allocation:
    """Return the allocation of a row with all columns."""
    return Allocation(
        name=row["name"],
        target=row["target"],
        shape=json.loads(row["shape"]),
        state=AllocationState(row["state"]),
        job=row["job"],
        attempt=row["attempt"],
        nodes=tuple(json.loads(row["nodes"])),
        gpus=tuple(tuple(ids) for ids in json.loads(row["gpus"])),
        changed_at=time_of(row["changed_at"]),
    )


def event_of(row: sqlite3.Row) -> Event:
    """Return the event of a row with all columns."""
    return Event(
        serial=row["serial"],
        job=row["job"],
        at=time_of(row["at"]),
        kind=row["kind"],
        message=row["message"],
        attempt=row["attempt"],
        data=json.loads(row["data"]),
    )


def point_of(row: sqlite3.Row) -> MetricPoint:
    """Return the point of a row with all columns."""
    return MetricPoint(
        attempt=row["attempt"],
        rank=row["rank"],
        sequence=row["sequence"],
        name=row["name"],
        value=json.loads(row["value"]),
        step=row["step"],
        at=time_of(row["at"]),
    )


def file_of(row: sqlite3.Row) -> StoredFile:
    """Return the file of a row with all columns."""
    return StoredFile(
        name=row["name"],
        attempt=row["attempt"],
        size=row["size"],
        digest=row["digest"],
        blob=row["blob"],
        stored_at=time_of(row["stored_at"]),
    )


def same_submit(
    known: sqlite3.Row, spec: JobSpec, snapshot: str | None, first: str | None = None
) -> Job:
    """Return the job of a known idempotency key.

    Args:
        first: The spec that it was submitted with, if it has been revised since.

    Raises:
        UsageError: the key was used for something else.
    """
    different = [
        what
        for what, is_different in (
            ("spec", spec_of(first or known["spec"]) != spec),
            ("snapshot", known["snapshot"] != snapshot),
        )
        if is_different
    ]
    if different:
        raise UsageError(
            f"the idempotency key {known['idempotency_key']!r} was used for job "
            f"{known['id']!r} with another {' and '.join(different)}; use a new key for a new "
            f"job, or repeat the first submit unchanged",
            job=known["id"],
            different=tuple(different),
        )
    return job_of(known)
