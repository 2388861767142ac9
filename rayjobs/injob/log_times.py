"""Records when a node's logs grew, which gives each line a time without changing the log.

Each line of the file is ``SECONDS RANK SIZE``: at this wall-clock time the rank's log had this many
bytes. Bytes between two sizes were printed between the two times.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping, Tuple

# Minimum time between two notes of a rank. It grows with the attempt's age, so that the file stays
# small: 7 MB after a month in which every rank printed all the time.
GAP_S = 0.4
SHARE_OF_AGE = 1 / 50_000


class LogTimes:
    """Writes the notes of one attempt on one node."""

    def __init__(self, path: str, started_at: float) -> None:
        """Prepare to write to `path`; `started_at` in seconds since 1970."""
        self._path = path
        self._started_at = started_at
        self._last: Dict[int, Tuple[float, int]] = {}

    def look(self, sizes: Mapping[int, int], now: float, *, at_end: bool = False) -> None:
        """Note which logs have grown; `sizes` in bytes by rank, `now` in seconds since 1970.

        A full disk loses notes, but never ends the attempt.
        """
        gap_s = max(GAP_S, (now - self._started_at) * SHARE_OF_AGE)
        lines = []
        for rank, size in sizes.items():
            before_at, before = self._last.get(rank, (self._started_at - gap_s, 0))
            # A clock that was set back must not suppress notes.
            is_due = at_end or not before_at <= now < before_at + gap_s
            if size > before and is_due:
                self._last[rank] = (now, size)
                lines.append("%.2f %d %d\n" % (now, rank, size))
        if not lines:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path, flags | os.O_NONBLOCK, 0o600)
            try:
                os.write(descriptor, "".join(lines).encode("ascii"))
            finally:
                os.close(descriptor)
        except OSError:
            return
