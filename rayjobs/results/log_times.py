"""Finds out when a log's lines were printed, from notes that attempt hosts write next to it.

Ranks write directly to their logs, so lines carry no time. Every half second the host of an
attempt notes which logs have grown (`injob.log_times`). A line's time is that of the first note
that covers its end: it was printed then or at most half a second earlier (in an attempt that ran
for days, up to 1/50,000 of its age earlier). The notes of an attempt of more than two seconds are
stored with its files. Without notes, all lines of a short attempt get the time of its end; the
times of a longer attempt, which an earlier rayjobs ran, are unknown.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rayjobs.core.paths import AttemptPaths
from rayjobs.injob import record_files
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results.driver_log import holes, marker

SHORT_S = 2.0
_MOST_BYTES = 64 << 20
_LAST_TIME_S = 4_102_444_800.0  # the year 2100: all later arithmetic works up to this time

Notes = dict[int, list[tuple[float, int]]]


@dataclass(frozen=True)
class RankTimes:
    """The times of one rank's log in one attempt, in seconds of the wall clock.

    Attributes:
        notes: (time, size at that time), sizes ascending.
        after: Time of lines that the notes do not cover; None: unknown.
    """

    notes: Sequence[tuple[float, int]] = ()
    after: Callable[[], float] | None = None

    def at(self, end: int) -> float | None:
        """Return when a line was printed whose last byte is before `end`; None: unknown."""
        index = bisect_left(self.notes, end, key=lambda note: note[1])
        if index < len(self.notes):
            return self.notes[index][0]
        return None if self.after is None else self.after()


def parse(data: bytes) -> Notes:
    """Return the notes by rank. Invalid notes are skipped: a job can write to the file."""
    found: Notes = {}
    for line in data.split(b"\n"):
        try:
            at_text, rank_text, size_text = line.split()
            at, rank, size = float(at_text), int(rank_text), int(size_text)
        except ValueError:
            continue
        if not 0.0 <= at <= _LAST_TIME_S:  # excludes NaN and infinity
            continue
        notes = found.setdefault(rank, [])
        if not notes or size > notes[-1][1]:
            notes.append((at, size))
    return found


def of_attempt(paths: AttemptPaths) -> Notes:
    """Return the notes in an attempt's folder, of logs as readers get them."""
    try:
        found = parse(record_files.read_file(str(paths.root), _name(paths), _MOST_BYTES))
    except OSError:
        return {}
    return {rank: _as_read(notes, paths.driver_log(rank)) for rank, notes in found.items()}


def is_worth_storing(paths: AttemptPaths) -> bool:
    """Return whether an attempt's notes span more than `SHORT_S`."""
    try:
        with record_files.open_file(str(paths.root), _name(paths)) as file:
            first = file.readline(100)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
            last = file.read(200).rstrip(b"\n").rpartition(b"\n")[2]
        return float(last.split()[0]) - float(first.split()[0]) > SHORT_S
    except (OSError, ValueError, IndexError):
        return False


@contextmanager
def to_store(paths: AttemptPaths) -> Iterator[Path]:
    """Yield a file of an attempt's notes that match its stored logs."""
    temporary = paths.log_times.with_name(f".{paths.log_times.name}.{os.getpid()}.whole")
    try:
        with record_files.create_file(str(temporary)) as file:
            for rank, notes in sorted(of_attempt(paths).items()):
                file.writelines(b"%.2f %d %d\n" % (at, rank, size) for at, size in notes)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _name(paths: AttemptPaths) -> str:
    return paths.log_times.relative_to(paths.root).as_posix()


def _as_read(notes: list[tuple[float, int]], log: Path) -> list[tuple[float, int]]:
    """Return the notes for a log whose middle was replaced by one line."""
    gaps = holes(log)
    return [(at, _size_as_read(size, gaps)) for at, size in notes] if gaps else notes


def _size_as_read(size: int, gaps: Sequence[tuple[int, int]]) -> int:
    read = size
    for start, end in gaps:
        if size > start:
            read -= min(size, end) - start
            read += len(marker(end - start))
    return read
