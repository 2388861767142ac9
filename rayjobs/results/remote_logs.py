"""Logs of jobs behind a server: read as a whole, or followed across lost connections."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from rayjobs.core.errors import UnreachableError
from rayjobs.core.text import size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results.log_times import RankTimes
from rayjobs.workspace.connection import AGAIN_S, AWAY_S, Connection
from rayjobs.workspace.http_messages import LogPiece, LogTimes

ATTEMPT_HEADER = "X-Rayjobs-Attempt"
CHUNK_BYTES = 1 << 20
SILENT_S = 30.0  # the server sends a sign of life each second


@dataclass(frozen=True)
class Piece:
    """Output of an attempt as it arrives; no data means no news."""

    attempt: int
    data: bytes


class RemoteLogs:
    """The logs of one job behind a server."""

    def __init__(self, server: Connection, job: str) -> None:
        self._server = server
        self._job = job

    def names(self) -> list[str]:
        """Return the names of a job's logs."""
        return self._server.ask("GET", f"/v1/jobs/{self._job}/logs", list[str])

    def chunks(self, name: str | None) -> Iterator[bytes]:
        """Yield a log in parts; without a name, the driver log of rank 0.

        After a lost connection it continues from where it stopped.

        Raises:
            RayjobsError: the error that the server returned.
            UnreachableError: the connection was lost, and nothing more arrived for two minutes.
        """
        query = {} if name is None else {"name": name}
        offset, since_s = 0, time.monotonic()
        # Other requests may come before the last part is read.
        with closing(self._server.copy()) as own:
            while True:
                answer = own.send("GET", f"/v1/jobs/{self._job}/log", query=query)
                # For another attempt, the rest would belong to another log.
                query["attempt"] = str(answer.headers.get(ATTEMPT_HEADER, ""))
                try:
                    while data := answer.read(CHUNK_BYTES):
                        offset, since_s = offset + len(data), time.monotonic()
                        yield data
                    return
                except (OSError, http.client.HTTPException) as error:
                    own.close()
                    if not query["attempt"] or time.monotonic() - since_s > AWAY_S:
                        raise UnreachableError(
                            f"the log of {self._job} broke off after {size_text(offset)}: {error}"
                        ) from error
                query["offset"] = str(offset)
                time.sleep(AGAIN_S)

    def times(self, rank: int, number: int | None) -> RankTimes:
        """Return the line times of a rank's log."""
        query = {"rank": str(rank)} | ({} if number is None else {"attempt": str(number)})
        found = self._server.ask("GET", f"/v1/jobs/{self._job}/log-times", LogTimes, query=query)
        if found.is_live:
            return RankTimes(found.notes, time.time)
        end = found.after
        return RankTimes(found.notes, None if end is None else lambda: end)

    def follow(self, rank: int, stop: Callable[[], bool]) -> Iterator[Piece]:
        """Yield a rank's output until the job has ended.

        After a lost connection the stream continues from where it stopped, without gaps or
        repetitions.
        """
        attempt, offset = 0, 0

        def begin() -> dict[str, str]:
            return {"rank": str(rank), "attempt": str(attempt), "offset": str(offset)}

        if stop():
            return
        # Other requests continue meanwhile.
        with closing(self._server.copy(answer_s=SILENT_S)) as own:
            for record in own.stream(f"/v1/jobs/{self._job}/log-stream", LogPiece, begin):
                data = b""
                if record is not None:
                    data = record.data
                    if record.attempt != attempt:
                        attempt, offset = record.attempt, 0
                    offset += len(data)
                yield Piece(attempt, data)
                if stop():
                    return
