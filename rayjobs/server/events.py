"""Routes of event streams: of one job, and of all jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response

from rayjobs.jobs.records import Event
from rayjobs.server import hiding
from rayjobs.server.access import Caller, Refusal, while_admitted
from rayjobs.server.routes import LINES, HandlerRoute, Routes, line, stream_of
from rayjobs.server.workers import in_thread
from rayjobs.store.base import Store
from rayjobs.workspace import plain
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import NewEvent, StreamEnd, StreamPosition
from rayjobs.workspace.users import Role

POLL_S = 0.1
BEAT_S = 1.0  # within this time, a client learns that the stream is alive
PAGE = 1000
_Record = NewEvent | StreamPosition | StreamEnd


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    store, changes = workspace.store, Changes(workspace.store)

    async def of_job(request: Request, caller: Caller) -> Response:
        job_id = request.path_params["job_id"]
        await in_thread(store.job, job_id)  # errors are raised before the answer begins

        def read(after: int) -> tuple[list[Event], bool]:
            # Read the state before the events, so that the last ones are never missed.
            is_final = store.job(job_id).state.is_final
            return store.events(job_id, after=after), is_final

        return stream_of(while_admitted(request, _records(changes, read, _after(request), caller)))

    async def of_all(request: Request, caller: Caller) -> Response:
        def read(after: int) -> tuple[list[Event], bool]:
            return store.history(after=after, limit=PAGE), False

        return stream_of(while_admitted(request, _records(changes, read, _after(request), caller)))

    viewer = Role.VIEWER
    return [
        HandlerRoute("GET", "/v1/jobs/{job_id}/event-stream", viewer, of_job, _Record, LINES),
        HandlerRoute("GET", "/v1/event-stream", viewer, of_all, _Record, LINES),
    ]


class Changes:
    """Checks for commits of any process, once for all streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._at_s = 0.0
        self._change: tuple[int, int] = (0, 0)

    async def look(self) -> tuple[int, int]:
        """Return a token at most `POLL_S` old; see `Store.change`."""
        async with self._lock:
            if time.monotonic() - self._at_s >= POLL_S:
                self._change = await in_thread(self._store.change)
                self._at_s = time.monotonic()
            return self._change


def _line(event: Event, caller: Caller) -> bytes:
    record = plain.written(_Record, NewEvent(event))
    return hiding.text_for(record, caller).encode() + b"\n"


async def _records(
    changes: Changes,
    read: Callable[[int], tuple[list[Event], bool]],
    after: int,
    caller: Caller,
) -> AsyncIterator[bytes]:
    """Yield events as JSON lines, and a sign of life each second."""
    known: tuple[int, int] | None = None
    silent_s = 0.0
    while True:
        change = await changes.look()
        if change == known:
            await asyncio.sleep(POLL_S)
            silent_s += POLL_S
            if silent_s >= BEAT_S:
                silent_s = 0.0
                yield line(_Record, StreamPosition(after))
            continue
        found, is_end = await in_thread(read, after)
        for event in found:
            after = event.serial
            yield _line(event, caller)
        if found:
            silent_s = 0.0  # there may be more: keep `known`
        elif is_end:
            yield line(_Record, StreamEnd(is_end=True))
            return
        else:
            known = change


def _after(request: Request) -> int:
    text = request.query_params.get("after", "") or "0"
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise Refusal(400, "after must be the serial of an event")
    return int(text)
