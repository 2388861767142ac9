"""What a rank prints, for readers that do not have the attempt's folder: pieces in blob storage.

The node stores what is new as a blob ``live/JOB/ATTEMPT/RANK/START-END``, whose name says which
bytes of the log file it holds; the reader asks for the piece that begins where the last one ended.
At the attempt's end the whole log is stored, and then the pieces are removed.

How far a reader lags: the node looks every quarter of a second and stores a piece at most once a
second (the first ones at once); the reader looks every quarter of a second while there is news, and
every second otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rayjobs.core.errors import NotFoundError
from rayjobs.results.driver_log import read_from
from rayjobs.workspace.blobs import BlobStore

PREFIX = "live/"
EVERY_S = 1.0
AT_ONCE = 5  # pieces that are stored as soon as there is something
MOST_PIECES = 8  # of one look; the rest waits for the next
POLL_S = 0.25
LONGEST_POLL_S = 1.0


def folder(job: str, attempt: int, rank: int) -> str:
    """Return the keys' common beginning of the pieces of a rank's log."""
    return f"{PREFIX}{job}/{attempt}/{rank}/"


class Sender:
    """Stores a rank's new output as pieces. A new sender goes on where an earlier one ended."""

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
        self._at: int | None = None
        self._sent = 0
        self._last_s = float("-inf")

    def step(self) -> None:
        """Store what is new, if it is time.

        Raises:
            StoreError: the storage does not take it; the next call tries again.
        """
        now_s = self._clock_s()
        if self._sent >= AT_ONCE and now_s - self._last_s < EVERY_S:
            return
        for _ in range(MOST_PIECES):
            at = self._at or 0
            try:
                data, end = read_from(self._path, at)
            except OSError:
                return  # not there yet, or not a log any more
            if not data:
                return
            if self._at is None:
                self._at = max((end for _, end in _pieces(self._blobs, self._prefix)), default=0)
                if self._at:
                    continue
            self._blobs.put_bytes(data, f"{self._prefix}{at:016d}-{end:016d}")
            self._at = end
            self._sent += 1
            self._last_s = now_s

    def remove(self) -> None:
        """Remove the pieces: the whole log is stored. Raises StoreError."""
        if self._at is None and not self._path.exists():
            return
        for key in list(self._blobs.list(self._prefix)):
            self._blobs.delete(key)


class Reader:
    """Reads the pieces of a rank's log.

    Attributes:
        given: How many bytes of the log `read` has returned so far.
    """

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix
        self._at = 0
        self.given = 0

    def read(self) -> bytes:
        """Return what came since the last call; nothing where there is nothing, or no more.

        Raises:
            StoreError: the storage cannot be read.
        """
        found = bytearray()
        pieces = dict(_pieces(self._blobs, self._prefix))
        while (end := pieces.get(self._at)) is not None:
            try:
                with self._blobs.open(f"{self._prefix}{self._at:016d}-{end:016d}") as file:
                    found += file.read()
            except NotFoundError:
                break  # the attempt has ended, and its whole log is stored
            self._at = end
        self.given += len(found)
        return bytes(found)


def _pieces(blobs: BlobStore, prefix: str) -> list[tuple[int, int]]:
    found = []
    for key in blobs.list(prefix):
        start, _, end = key[len(prefix) :].partition("-")
        if start.isdecimal() and end.isdecimal() and int(end) > int(start):
            found.append((int(start), int(end)))
    return found
