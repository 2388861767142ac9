"""Logs of jobs behind a server: whole, and followed over lost connections."""

from __future__ import annotations

import base64
import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rayjobs.core.errors import UnreachableError
from rayjobs.results.log_times import RankTimes
from rayjobs.workspace.connection import Connection

CHUNK_BYTES = 1 << 20
AGAIN_S = 0.5
SILENT_S = 30.0  # the server says each second that it lives


@dataclass(frozen=True)
class Piece:
    """Output of an attempt as it comes; no data: there is no news."""

    attempt: int
    data: bytes


def names(server: Connection, job: str) -> list[str]:
    """Return the names of a job's logs."""
    return [str(one) for one in server.json("GET", f"/v1/jobs/{job}/logs")]


def chunks(server: Connection, job: str, name: str | None) -> Iterator[bytes]:
    """Yield a log in parts; without a name, the driver log of rank 0."""
    query = {} if name is None else {"name": name}
    own = server.copy()  # other requests may come before the last part is read
    try:
        answer = own.send("GET", f"/v1/jobs/{job}/log", query=query)
        while data := answer.read(CHUNK_BYTES):
            yield data
    finally:
        own.close()


def times(server: Connection, job: str, rank: int, number: int | None) -> RankTimes:
    """Return when a rank printed what is in its log."""
    query = {"rank": str(rank)} | ({} if number is None else {"attempt": str(number)})
    found = server.json("GET", f"/v1/jobs/{job}/log-times", query=query)
    notes = [(float(at), int(size)) for at, size in found["notes"]]
    if found["is_live"]:
        return RankTimes(notes, time.time)
    end = found["after"]
    return RankTimes(notes, None if end is None else lambda: float(end))


def follow(server: Connection, job: str, rank: int, stop: Callable[[], bool]) -> Iterator[Piece]:
    """Yield a rank's output until the job has ended.

    After a lost connection the stream continues from where it stood: nothing is missing, and
    nothing comes twice.
    """
    attempt, offset = 0, 0
    own = server.copy(answer_s=SILENT_S)  # other requests go on meanwhile
    while not stop():
        query = {"rank": str(rank), "attempt": str(attempt), "offset": str(offset)}
        try:
            for record in own.lines(f"/v1/jobs/{job}/log-stream", query=query):
                if record.get("is_end"):
                    return
                data = base64.b64decode(record["data"])
                if record["attempt"] != attempt:
                    attempt, offset = int(record["attempt"]), 0
                offset += len(data)
                yield Piece(attempt, data)
                if stop():
                    return
        except (OSError, ValueError, http.client.HTTPException):
            pass
        yield Piece(attempt, b"")
        time.sleep(AGAIN_S)
        # Waits for a server that restarts, and raises when it stays away.
        try:
            own.json("GET", "/v1/health")
        except UnreachableError:
            own.json("GET", "/v1/health")
