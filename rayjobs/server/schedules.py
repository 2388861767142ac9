"""Checks and stores the schedules of clients, which run on the server's machine."""

from __future__ import annotations

import re
from dataclasses import replace

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import ScheduleRecord
from rayjobs.server.access import Caller, Refusal
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role


def checked(workspace: OpenWorkspace, record: object, caller: Caller) -> ScheduleRecord:
    """Return the schedule to write: a new one of the caller, or a known one, whose owner stays.

    Raises:
        Refusal: it is not a schedule, or another user's.
        UsageError, NotFoundError, PipelineError: see `rayjobs.pipelines.schedule.check`.
    """
    from rayjobs.pipelines import schedule

    if not isinstance(record, ScheduleRecord):
        raise Refusal(400, "`record` is not a schedule")
    if not re.fullmatch(r"[0-9a-f]{32}", record.id):
        raise UsageError(f"{record.id!r} is not the id of a schedule")
    known = _known(workspace, record.id)
    if known is None:
        now = SystemClock().now()
        record = replace(record, created_by=caller.user, created_at=now, last_run=None, seen=None)
    else:
        maker = known.created_by
        if maker not in ("", caller.user) and caller.token.role < Role.ADMIN:
            raise Refusal(403, f"{maker} made it: only an admin may change what others own")
        record = replace(
            record,
            created_by=maker,
            created_at=known.created_at,
            last_run=known.last_run,
            seen=known.seen if record.watched == known.watched else None,
        )
    schedule.check(workspace, record)
    return record


def _known(workspace: OpenWorkspace, schedule: str) -> ScheduleRecord | None:
    try:
        found = workspace.store.schedule(schedule)
    except NotFoundError:
        return None
    return found if found.id == schedule else None


def put(workspace: OpenWorkspace, record: ScheduleRecord) -> None:
    """Write a checked schedule, which counts from now on, and register it with this machine."""
    from rayjobs.pipelines import schedule

    schedule.put(workspace, record)
