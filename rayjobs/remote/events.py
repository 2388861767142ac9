"""Follows the events of a job, also across lost connections to a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from rayjobs.jobs.records import Event
from rayjobs.workspace.folder import OpenWorkspace

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

POLL_S = 0.3
SILENT_S = 30.0  # the server sends a sign of life each second


def follow(workspace: OpenWorkspace, job_id: str) -> Iterator[Event]:
    """Yield a job's events, oldest first, until it has ended.

    Raises:
        UnreachableError: the workspace's server stays unreachable.
    """
    if workspace.server is not None:
        with closing(workspace.server.copy(answer_s=SILENT_S)) as own:
            yield from _follow_through(own, job_id)
        return
    store, after = workspace.store, 0
    while True:
        # Read the state before the events, so that the last ones are never missed.
        is_final = store.job(job_id).state.is_final
        found = store.events(job_id, after=after)
        for event in found:
            after = event.serial
            yield event
        if not found and is_final:
            return
        if not found:
            time.sleep(POLL_S)


def _follow_through(server: Connection, job_id: str) -> Iterator[Event]:
    """Yield events from a server's stream; after a lost connection, resume where it stopped."""
    from rayjobs.workspace.http_messages import NewEvent, StreamPosition

    after = 0

    def begin() -> dict[str, str]:
        return {"after": str(after)}

    path = f"/v1/jobs/{job_id}/event-stream"
    for record in server.stream(path, NewEvent | StreamPosition, begin):
        if isinstance(record, NewEvent):
            after = record.event.serial
            yield record.event
