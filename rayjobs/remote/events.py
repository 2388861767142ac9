"""Events of a job as they come, also over lost connections to a server."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import closing

from rayjobs.core.errors import UnreachableError
from rayjobs.jobs.records import Event
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import OpenWorkspace

POLL_S = 0.3
AGAIN_S = 0.5
SILENT_S = 30.0  # the server says each second that it lives


def follow(workspace: OpenWorkspace, job_id: str) -> Iterator[Event]:
    """Yield a job's events, oldest first, until it has ended.

    Raises:
        UnreachableError: the workspace's server stays away.
    """
    if workspace.server is not None:
        with closing(workspace.server.copy(answer_s=SILENT_S)) as own:
            yield from _follow_through(own, job_id)
        return
    store, after = workspace.store, 0
    while True:
        # Read before the events, so that the last ones are never missed.
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
    """Yield events from a server's stream; after a lost connection it goes on where it stood."""
    from rayjobs.remote import plain

    decode, after = plain.decoder(Event), 0
    while True:
        try:
            query = {"after": str(after)}
            for record in server.lines(f"/v1/jobs/{job_id}/event-stream", query=query):
                if record.get("is_end"):
                    return
                if "event" in record:
                    event: Event = decode(record["event"])
                    after = event.serial
                    yield event
        except (OSError, ValueError, http.client.HTTPException):
            pass
        time.sleep(AGAIN_S)
        # Waits for a server that restarts, and raises when it stays away.
        try:
            server.json("GET", "/v1/health")
        except UnreachableError:
            server.json("GET", "/v1/health")
