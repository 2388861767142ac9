"""Routes of jobs' logs and of stored files."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rayjobs.core.errors import NotFoundError
from rayjobs.results import remote_logs
from rayjobs.results.logs import Logs, Part
from rayjobs.server.access import Caller, Refusal, while_admitted
from rayjobs.server.followed_logs import BEAT_S, FollowedLogs
from rayjobs.server.routes import BYTES, LINES, HandlerRoute, Routes, line, stream_of
from rayjobs.server.workers import in_thread, with_files
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import LogPiece, LogTimes, StreamEnd
from rayjobs.workspace.users import Role

MOST_RANGE = 8 << 20
_Record = LogPiece | StreamEnd


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    followed = FollowedLogs(workspace)

    async def names(request: Request, _caller: Caller) -> list[str]:
        logs = Logs(workspace, request.path_params["job_id"])
        return await with_files(logs.names)

    async def log(request: Request, _caller: Caller) -> Response:
        logs = Logs(workspace, request.path_params["job_id"])
        offset, attempt = _number(request, "offset", 0), _number(request, "attempt", 0)
        job = await in_thread(workspace.store.job, logs.job_id)
        if attempt not in (0, job.attempt):
            raise Refusal(
                409,
                f"attempt {attempt} of {job.id} has ended, and its log now has another name: "
                "request the log again",
            )
        parts = _from(logs.chunks(request.query_params.get("name")), offset)
        first = await with_files(next, parts, b"")  # errors are raised before the answer begins

        def rest() -> Iterator[bytes]:
            yield first
            yield from parts

        return StreamingResponse(
            rest(),
            media_type=BYTES,
            headers={remote_logs.ATTEMPT_HEADER: str(job.attempt)},
        )

    async def times(request: Request, _caller: Caller) -> LogTimes:
        logs = Logs(workspace, request.path_params["job_id"])
        rank = _number(request, "rank", 0)
        number = _number(request, "attempt", 0) or None
        found = await with_files(logs.times, rank, number)
        job = await in_thread(workspace.store.job, logs.job_id)
        after = None if found.after is None else found.after()
        is_live = after is not None and not job.state.is_final
        return LogTimes(notes=list(found.notes), after=after, is_live=is_live)

    async def stream(request: Request, _caller: Caller) -> Response:
        job = await in_thread(workspace.store.job, request.path_params["job_id"])
        begin, skip = _number(request, "attempt", 0), _number(request, "offset", 0)
        parts = followed.follow(job, _number(request, "rank", 0), begin=begin)
        return stream_of(while_admitted(request, _records(parts, begin, skip)))

    async def size(request: Request, _caller: Caller) -> int | None:
        return await with_files(size_of, request.path_params["key"])

    async def use(request: Request, _caller: Caller) -> int | None:
        key = request.path_params["key"]

        def call() -> int | None:
            return size_of(key) if workspace.blobs.exists(key) else None

        return await with_files(call)

    def size_of(key: str) -> int | None:
        try:
            return workspace.blobs.size(key)
        except NotFoundError:
            return None

    async def blob(request: Request, _caller: Caller) -> Response:
        found = re.fullmatch(r"bytes=(\d{1,18})-(\d{1,18})", request.headers.get("range", ""))
        if found is None:
            raise Refusal(416, f"request a range of at most {MOST_RANGE} bytes")
        start, end = int(found[1]), min(int(found[2]), int(found[1]) + MOST_RANGE - 1)

        key, length = request.path_params["key"], max(0, end - start + 1)
        data = await with_files(workspace.blobs.read, key, start, length)
        return Response(data, status_code=206, media_type=BYTES)

    viewer = Role.VIEWER
    return [
        HandlerRoute("GET", "/v1/jobs/{job_id}/logs", viewer, names, list[str]),
        HandlerRoute("GET", "/v1/jobs/{job_id}/log", viewer, log, bytes, BYTES),
        HandlerRoute("GET", "/v1/jobs/{job_id}/log-times", viewer, times, LogTimes),
        HandlerRoute("GET", "/v1/jobs/{job_id}/log-stream", viewer, stream, _Record, LINES),
        HandlerRoute("GET", "/v1/blob-sizes/{key:path}", viewer, size, int | None),
        # The caller is about to refer to a blob: a prune spares it for an hour.
        HandlerRoute("POST", "/v1/blob-uses/{key:path}", Role.SUBMITTER, use, int | None),
        HandlerRoute("GET", "/v1/blobs/{key:path}", viewer, blob, bytes, BYTES),
    ]


def _from(parts: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """Yield what follows the first `offset` bytes; errors are raised with the first part."""
    for part in parts:
        if offset < len(part):
            yield part[offset:]
        offset = max(0, offset - len(part))


async def _records(parts: AsyncIterator[Part], attempt: int, skip: int) -> AsyncIterator[bytes]:
    """Yield a followed log as JSON lines; the first `skip` bytes of `attempt` were sent before."""
    spoke_s = time.monotonic()
    async for part in parts:
        data = part.data
        if part.attempt == attempt and skip:
            left = data[skip:]
            skip -= len(data) - len(left)
            data = left
        if data or time.monotonic() - spoke_s >= BEAT_S:
            spoke_s = time.monotonic()
            yield _line(part.attempt, data)
    yield line(StreamEnd, StreamEnd(is_end=True))


@lru_cache(maxsize=8)  # many clients get the same bytes at the same time
def _line(attempt: int, data: bytes) -> bytes:
    return line(LogPiece, LogPiece(attempt, data))


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise Refusal(400, f"{name} must be a whole number")
    return int(text)
