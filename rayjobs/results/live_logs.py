"""The output of a rank, for readers without the attempt's folder: pieces in blob storage.

The node stores new output as a blob ``live/JOB/ATTEMPT/RANK/START-END``, named after its bytes of
the log file. A longer piece replaces the last one until it is large enough, so that a long log has
few pieces. At the attempt's end the whole log is stored, and the pieces are removed.

How far a reader lags: the node looks every quarter of a second and stores a piece at most once a
second (the first ones at once); the reader looks every quarter of a second while there is news, and
every second otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.results.driver_log import read_from
from rayjobs.workspace.blobs import BlobStore

PREFIX = "live/"
EVERY_S = 1.0
AT_ONCE = 5  # pieces that are stored as soon as there is output
MOST_PIECES = 8  # pieces per check; the rest waits for the next one
PIECE_BYTES = 128 * 1024  # from this size on, a piece is no longer replaced
POLL_S = 0.25
LONGEST_POLL_S = 1.0


def folder(job: str, attempt: int, rank: int) -> str:
    """Return the common prefix of the keys of a rank's pieces."""
    return f"{PREFIX}{job}/{attempt}/{rank}/"


def job_of(key: str) -> str | None:
    """Return the job of a piece; None: it is not a piece."""
    parts = key.split("/")
    return parts[1] if key.startswith(PREFIX) and len(parts) == 5 else None


class Sender:
    """Stores a rank's new output as pieces. A new sender continues where an earlier one ended."""

    def __init__(
        self,
        blobs: BlobStore,
        path: Path,
        prefix: str,
        clock_s: Callable[[], float],
    ) -> None:
        self._blobs = blobs
        self._path = path
        self._prefix = prefix
        self._clock_s = clock_s
        self._start: int | None = None  # of the last piece; None: not yet known
        self._end = 0
        self._sent = 0
        self._last_s = float("-inf")

    def step(self) -> None:
        """Store new output, if it is time.

        Raises:
            StoreError: the storage refuses it; the next call tries again.
        """
        now_s = self._clock_s()
        if self._sent >= AT_ONCE and now_s - self._last_s < EVERY_S:
            return
        for _ in range(MOST_PIECES):
            try:
                data, end = read_from(self._path, self._start or 0)
            except OSError:
                return  # not there yet, or no longer a log
            if not data:
                return
            if self._start is None:
                pieces = _pieces(self._blobs, self._prefix)
                self._start, self._end = max(pieces, key=lambda one: one[1], default=(0, 0))
                continue
            if end > self._end:
                self._blobs.put_bytes(data, self._key(self._start, end))
                if self._end > self._start:
                    self._blobs.delete(self._key(self._start, self._end))
                self._end = end
                self._sent += 1
                self._last_s = now_s
            is_short = end - self._start < PIECE_BYTES and len(data) == end - self._start
            if is_short and not self._has_more(end):
                return  # the next one replaces it
            self._start = self._end = end

    def _has_more(self, at: int) -> bool:
        """Whether output follows that is not part of this piece, because a part was left out."""
        try:
            return bool(read_from(self._path, at)[0])
        except OSError:
            return False

    def _key(self, start: int, end: int) -> str:
        return f"{self._prefix}{start:016d}-{end:016d}"

    def remove(self) -> None:
        """Remove the pieces: the whole log is stored. Raises StoreError."""
        if self._start is None and not self._path.exists():
            return
        for key in list(self._blobs.list(self._prefix)):
            self._blobs.delete(key)


class Reader:
    """Reads the pieces of a rank's log.

    Attributes:
        at: The position in the log up to which `read` has read.
        given: How many bytes `read` has returned so far; less than `at` if a part was left out.
    """

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix
        self.at = 0
        self.given = 0

    def read(self) -> bytes:
        """Return the output since the last call; empty if there is none.

        Raises:
            StoreError: the storage cannot be read.
        """
        found = bytearray()
        pieces = _pieces(self._blobs, self._prefix)
        while True:
            ahead = [one for one in pieces if one[0] <= self.at < one[1]]
            start, end = max(ahead, key=lambda one: one[1], default=(0, 0))
            if not end:
                break
            try:
                with self._blobs.open(f"{self._prefix}{start:016d}-{end:016d}") as file:
                    data = file.read()
            except NotFoundError:
                break  # a longer piece has replaced it, or the whole log is stored
            except StoreError:
                if not found:
                    raise
                break  # what was read is not lost: the next call meets the error again
            # The placeholder of a part that was left out has another length, and is read once.
            found += data[self.at - start :] if len(data) == end - start else data
            self.at = end
        self.given += len(found)
        return bytes(found)


def _pieces(blobs: BlobStore, prefix: str) -> list[tuple[int, int]]:
    found = []
    for key in blobs.list(prefix):
        start, _, end = key[len(prefix) :].partition("-")
        if start.isdecimal() and end.isdecimal() and int(end) > int(start):
            found.append((int(start), int(end)))
    return found
