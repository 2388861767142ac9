"""Runs a published pipeline when its schedule is due: once, even if several times were missed.

The program ``python -m rayjobs.pipelines.scheduling WORKSPACE`` does so for all schedules of a
workspace, and prints when the next one falls due (see `rayjobs.target.timekeeper`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import (
    NotFoundError,
    RayjobsError,
    StoreError,
    StoreUnreachableError,
    UnreachableError,
    UnreadableSpecError,
    UsageError,
)
from rayjobs.core.paths import TargetPaths, home
from rayjobs.core.store_address import without_address
from rayjobs.core.text import counted
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.errors import DatastoreError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import PublishedRecord, ScheduleRecord
from rayjobs.pipelines.published import run_published
from rayjobs.pipelines.recurrence import recurrence_of
from rayjobs.pipelines.submitter import RunRequest
from rayjobs.submit import submitting
from rayjobs.target import elsewhere, stop_record
from rayjobs.target.timekeeper import DueReport

if TYPE_CHECKING:
    from rayjobs.jobs.serving import Serving
    from rayjobs.workspace.folder import OpenWorkspace

LATE = timedelta(minutes=1)
# Delay before a due run is tried again, because the target was stopped or storage failed.
TRY_AGAIN = timedelta(minutes=1)
EVENT = "schedule"
SCHEDULE_PROPERTY = "azureml.scheduleid"
SEEN_PROPERTY = "rayjobs.schedule_seen"


@dataclass(frozen=True)
class Done:
    """The result of a due schedule.

    Attributes:
        schedule: Its id.
        note: One sentence; empty if the run was on time.
        run: The run that was started; None if there was none.
    """

    schedule: str
    note: str
    run: str | None = None


def target_of(workspace: OpenWorkspace, record: ScheduleRecord) -> PublishedRecord:
    """Return the published pipeline that a schedule runs now.

    Raises:
        NotFoundError: it no longer exists.
        UsageError: its endpoint has no default.
    """
    if record.pipeline is not None:
        return workspace.store.published_pipeline(record.pipeline)
    assert record.endpoint is not None
    for one in workspace.store.endpoint_versions(record.endpoint):
        if one.is_default:
            return workspace.store.published_pipeline(one.pipeline)
    raise UsageError(f"the endpoint {record.endpoint} has no default version")


def first_due(record: ScheduleRecord, now: datetime) -> datetime:
    """Return when a schedule falls due next, after `now`."""
    if record.recurrence is not None:
        return recurrence_of(record.recurrence).next_after(now, made_at=record.created_at)
    assert record.watched is not None
    return now + timedelta(minutes=float(record.watched["polling_interval"]))


def marks_of(workspace: OpenWorkspace, watched: Mapping[str, Any]) -> dict[str, str]:
    """Return the current mark (size and ETag) of each watched file, by path.

    Raises:
        NotFoundError, DatastoreError: the datastore is gone, or cannot be read.
    """
    backend = open_backend(workspace.catalogue.datastore(str(watched["datastore"])))
    path = str(watched.get("path") or "")
    found = {one.path: f"{one.size} {one.etag}" for one in backend.walk(path)}
    single = backend.stat(path) if path and not found else None
    return found if single is None else {single.path: f"{single.size} {single.etag}"}


def run_due(
    workspace: OpenWorkspace,
    *,
    clock: Clock | None = None,
    wake: bool = True,
    away_since: datetime | None = None,
) -> list[Done]:
    """Run each due schedule once; return the results.

    The run's idempotency key consists of the schedule and its time. If a process dies between the
    submit and its record, the next process submits again and finds the run. After a temporary
    failure, the schedule stays due; after a permanent one, it waits for its next time.

    Args:
        workspace: The workspace of the schedules.
        clock: The source of the current time.
        wake: Start the targets of the runs.
        away_since: When the store became unreachable, if it was unreachable until this call.
    """
    clock = clock or SystemClock()
    done = []
    for record in workspace.store.schedules():
        now = clock.now()
        if record.next_at is None or record.next_at > now:
            continue
        try:
            one = _run(workspace, record, now, wake=wake, away_since=away_since)
        except (RayjobsError, DatastoreError, OSError) as error:
            passes = may_pass(error)
            what = f"at {now:%Y-%m-%d %H:%M} UTC: {without_address(str(error))}"
            failed_start = f"the start failed {what}" if passes else ""
            note = f"tries again: {failed_start}" if passes else f"nothing was started {what}"
            one = Done(record.id, note)
            next_at = record.next_at if passes else first_due(record, now)
            # A failing store cannot record it; the schedule stays due anyway.
            with contextlib.suppress(StoreError):
                workspace.store.settle_schedule(
                    record.id,
                    due=record.next_at,
                    next_at=next_at,
                    note=note,
                    failed_start=failed_start,
                )
        if one is not None:
            done.append(one)
    return done


def may_pass(error: Exception) -> bool:
    """Whether a later try may succeed without a change by a user."""
    if isinstance(error, DatastoreError):
        return not error.is_permanent
    if isinstance(error, RayjobsError):
        return isinstance(error, UnreachableError) and not isinstance(error, UnreadableSpecError)
    return isinstance(error, OSError)


def _run(
    workspace: OpenWorkspace,
    record: ScheduleRecord,
    now: datetime,
    *,
    wake: bool,
    away_since: datetime | None,
) -> Done | None:
    assert record.next_at is not None
    due = record.next_at
    published = target_of(workspace, record)
    if note := _why_it_waits(workspace, published):
        workspace.store.settle_schedule(record.id, due=due, next_at=due, note=note)
        return Done(record.id, note)
    parameters = dict(record.parameters)
    seen = None
    if record.watched is not None:
        seen = marks_of(workspace, record.watched)
        changed = sorted(
            path for path, mark in seen.items() if (record.seen or {}).get(path) != mark
        )
        if not changed:
            workspace.store.settle_schedule(
                record.id, due=due, next_at=first_due(record, now), note="", seen=seen
            )
            return None
        name = record.watched.get("parameter")
        if name:
            path = changed[0] if len(changed) == 1 else record.watched.get("path") or ""
            parameters[str(name)] = f"{record.watched['datastore']}/{path}"
    note = lateness(record, now, away_since) if record.recurrence is not None else ""
    properties = {SCHEDULE_PROPERTY: record.id}
    if seen is not None:
        properties[SEEN_PROPERTY] = _digest(seen)
    submitted = run_published(
        workspace,
        published,
        RunRequest(
            experiment=record.experiment,
            values=parameters,
            continues=record.continues,
            properties=properties,
            idempotency_key=f"schedule:{record.id}:{due.isoformat()}",
            user=record.created_by or None,
        ),
        wake=wake,
    )
    run = submitted.pipeline.job.id
    if not submitted.created and seen is not None:
        # An earlier try started this run for the files of that time. Newer files get their own run.
        known = submitted.pipeline.job.properties.get(SEEN_PROPERTY)
        seen = seen if known == _digest(seen) else None
    if submitted.created:
        text = f"started by the schedule {record.name!r}, due at {due:%Y-%m-%d %H:%M:%S} UTC"
        workspace.store.add_event(run, EVENT, f"{text}; {note}" if note else text)
    workspace.store.settle_schedule(
        record.id, due=due, next_at=first_due(record, now), note=note, seen=seen, run=run
    )
    return Done(record.id, note, run)


def _digest(seen: Mapping[str, str]) -> str:
    text = json.dumps(seen, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def lateness(record: ScheduleRecord, now: datetime, away_since: datetime | None = None) -> str:
    """Return a sentence about missed times; empty if it is on time.

    Args:
        record: The schedule, which is due.
        now: The time.
        away_since: See `run_due`.
    """
    assert record.next_at is not None and record.recurrence is not None
    if now - record.next_at < LATE:
        return ""
    times, at = 1, record.next_at
    recurrence = recurrence_of(record.recurrence)
    while times < 1000 and (at := recurrence.next_after(at, made_at=record.created_at)) <= now:
        times += 1
    missed = f" It fell due {counted(times, 'time')} meanwhile, and runs once." if times > 1 else ""
    why = f"nothing ran schedules at {record.next_at:%Y-%m-%d %H:%M} UTC."
    if away_since is not None and away_since < record.next_at + LATE:
        why = f"the workspace's store could not be reached from {away_since:%Y-%m-%d %H:%M} UTC on."
    if record.failed_start:
        why = record.failed_start
    return f"late: {why}{missed}"


def _why_it_waits(workspace: OpenWorkspace, published: PublishedRecord) -> str:
    """Return why a pipeline must wait (nothing serves one of its targets); empty if it can run.

    Otherwise, the runs of all due times would pile up in the queue.
    """
    steps = published.spec["steps"].values()
    for name in dict.fromkeys(str(one["job"].get("target", "local")) for one in steps):
        if stop_record.last(TargetPaths.of(name, under=home())).is_in_force:
            return (
                f"waits: the target {name!r} was stopped by its user; `rayjobs target start {name}`"
            )
        if (serving := _away(workspace, name)) is not None:
            return f"waits: {serving.sentence}"
    return ""


def _away(workspace: OpenWorkspace, target: str) -> Serving | None:
    """Return who serves a target elsewhere, if the target does not run there; else None."""
    serving = elsewhere.find_quietly(workspace.path, target, home=home())
    return None if serving is None or serving.is_live else serving


def wake_targets(workspace: OpenWorkspace) -> None:
    """Start the targets of unfinished runs that a schedule started.

    A target's start continues in the background after the submit, and may fail there.

    Raises:
        StoreError: the workspace's store cannot be read.
    """
    for record in workspace.store.schedules():
        if record.last_run is None or _has_ended(workspace, record.last_run):
            continue
        jobs = (workspace.store.job(one.job) for one in workspace.store.steps(record.last_run))
        for target in dict.fromkeys(one.spec.target for one in jobs if not one.state.is_final):
            is_stopped = stop_record.last(TargetPaths.of(target, under=home())).is_in_force
            if not is_stopped and _away(workspace, target) is None:
                submitting.wake_or_start(workspace, target)


def _has_ended(workspace: OpenWorkspace, run: str) -> bool:
    try:
        return workspace.store.job(run).state.is_final
    except NotFoundError:
        return True  # its records were pruned


def changed(
    workspace: OpenWorkspace, record: ScheduleRecord, now: datetime, **values: Any
) -> ScheduleRecord:
    """Store a schedule with changed values and its next due time; return it."""
    new = replace(record, **values)
    if new.watched is not None and (new.watched != record.watched or new.seen is None):
        new = replace(new, seen=marks_of(workspace, new.watched))
    next_at = first_due(new, now) if new.is_active else None
    new = replace(new, note="", failed_start="", next_at=next_at)
    workspace.store.put_schedule(new)
    return new


def main(arguments: list[str]) -> int:
    """Run due schedules of a workspace; print a `DueReport`.

    The second argument, if given, is `away_since` in seconds since 1970.
    """
    from rayjobs.workspace.folder import open_workspace

    away_since = datetime.fromtimestamp(float(arguments[1]), UTC) if arguments[1:] else None
    try:
        workspace = open_workspace(Path(arguments[0]), create=False)
    except NotFoundError:
        _print(DueReport(0, gone=True))
        return 0
    except StoreUnreachableError as error:
        sys.stderr.write(f"{error}\n")
        _print(DueReport(0, away=True))
        return 0
    with workspace:
        for one in run_due(workspace, away_since=away_since):
            sys.stderr.write(f"{one.schedule}: {one.run or 'no run'} {one.note}\n")
        wake_targets(workspace)
        found = workspace.store.schedules()
        now = SystemClock().now()
        times = [one.next_at for one in found if one.next_at is not None]
        soon = [now + TRY_AGAIN if one <= now else one for one in times]
        _print(DueReport(len(found), min(soon).timestamp() if soon else None))
    return 0


def _print(report: DueReport) -> None:
    sys.stdout.write(json.dumps(report.to_json()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
