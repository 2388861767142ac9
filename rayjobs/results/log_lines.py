"""Reads logs of several ranks and jobs line by line, stored or live."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results.driver_log import CHUNK_BYTES
from rayjobs.results.log_times import RankTimes
from rayjobs.results.logs import Logs, Part
from rayjobs.results.merged_logs import Timed, merged_lines, rank_set, split

POLL_S = 0.05
FRESH_S = 0.2  # maximum age of the cached record of a followed job
# Equal lines that several ranks print within this time are shown once.
TOGETHER_S = 0.2
# After this time, a line without an end (a progress bar) is shown unchanged.
PARTIAL_S = 2.0
NEW_SOURCES_S = 0.5
# The backlog counts as read after this many polls without a full part, or after this long.
SHORT_POLLS = 20
PAST_S = 30.0
_MOST_BYTES = 4 << 20  # bytes of the backlog merged at a time


@dataclass(frozen=True)
class Line:
    """One line of a log, without its newline.

    Attributes:
        ranks: The processes that printed it, ascending.
        at: When it was printed, in seconds of the wall clock (see `log_times`); None: unknown.
    """

    job: str
    ranks: tuple[int, ...]
    attempt: int
    at: float | None
    data: bytes


@dataclass(frozen=True)
class Source:
    """A job's logs to show, and the prefix of their lines.

    Attributes:
        label: The job; empty when it is the only one.
        ranks: Its ranks to show.
        names_ranks: Whether lines say which ranks printed them.
    """

    logs: Logs
    label: str
    ranks: Sequence[int]
    names_ranks: bool
    _times: dict[tuple[int, int], RankTimes] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def job(self) -> str:
        """The job's id."""
        return self.logs.job_id

    def times(self, rank: int) -> RankTimes:
        """Return the line times of a rank of the newest attempt, cached."""
        key = (self.logs.attempt, rank)
        if key not in self._times:
            self._times[key] = self.logs.times(rank)
        return self._times[key]

    def prefix(self, ranks: Sequence[int]) -> bytes:
        """Return a line's prefix, such as ``[train-3 ranks 0-3] ``."""
        words = [word for word in (self.label, rank_set(ranks) if self.names_ranks else "") if word]
        return f"[{' '.join(words)}] ".encode() if words else b""


@dataclass(frozen=True)
class Wanted:
    """Which lines are shown.

    Attributes:
        since: From this time on, in seconds of the wall clock. Lines whose time is unknown are
            kept if their rank may have printed them afterwards.
        matches: Whether a line's bytes are wanted.
    """

    since: float | None = None
    matches: Callable[[bytes], bool] = lambda _data: True

    def takes(self, data: bytes, at: float | None) -> bool:
        """Return whether a line is shown."""
        return (self.since is None or at is None or at >= self.since) and self.matches(data)


def read_lines(source: Source, wanted: Wanted, *, fold: bool = True) -> Iterator[Line]:
    """Yield the existing lines of a job's newest attempt.

    Args:
        fold: Show equal lines of several ranks once; otherwise rank after rank.

    Raises:
        NotFoundError: none of the ranks has a log.
    """
    lines: dict[int, Iterator[Timed]] = {}
    names = set(source.logs.names())
    for rank in source.ranks:
        name = source.logs.driver_name(rank)
        if name in names or len(source.ranks) == 1:
            lines[rank] = _timed(source, name, rank, wanted)
    if not lines:
        source.logs.read()  # raises with the reason
    attempt = source.logs.attempt
    if fold:
        for ranks, data, at in merged_lines(lines):
            yield Line(source.job, ranks, attempt, at, data)
        return
    for rank, timed in lines.items():
        for data, at in timed:
            yield Line(source.job, (rank,), attempt, at, data)


def _timed(source: Source, name: str, rank: int, wanted: Wanted) -> Iterator[Timed]:
    times = source.times(rank)
    ended_at = source.logs.ended_at(rank)
    if wanted.since is not None and ended_at is not None and ended_at < wanted.since:
        return
    end = 0
    for data in split(source.logs.chunks(name)):
        end += len(data)
        at = times.at(end)
        end += 1  # its newline
        if wanted.takes(data, at):
            yield data, at


def has_unknown_times(source: Source) -> bool:
    """Return whether a job's newest attempt has printed lines whose times are unknown."""
    return any(source.times(rank).at(1 << 62) is None for rank in source.ranks)


@dataclass
class _Stream:
    """One rank's log while it is followed."""

    source: Source
    rank: int
    parts: Iterator[Part]
    attempt: int = 0
    times: RankTimes = field(default_factory=RankTimes)
    end: int = 0
    rest: bytes = b""
    rest_since_s: float = 0.0

    def lines(self, part: Part, now_s: float) -> list[Timed]:
        found: list[Timed] = []
        if part.attempt != self.attempt:
            found += self.left()
            self.attempt, self.end = part.attempt, 0
            self.times = self.source.logs.times(self.rank, part.attempt)
        if part.data:
            *whole, rest = part.data.split(b"\n")
            for data in whole:
                self.end += len(data) + 1
                found.append((self.rest + data, self.times.at(self.end - 1)))
                self.rest = b""
            self.end += len(rest)
            if rest:
                self.rest += rest
                self.rest_since_s = now_s
        elif self.rest and now_s - self.rest_since_s >= PARTIAL_S:
            found += self.left()
        return found

    def left(self) -> list[Timed]:
        """Return the incomplete last line; for a progress bar, its current state."""
        rest, self.rest = self.rest, b""
        shown = rest.rstrip(b"\r").rpartition(b"\r")[2]
        return [(shown, self.times.at(self.end))] if shown else []


class _Pending:
    """Lines that have arrived and are not shown yet.

    Attributes:
        size: Their bytes.
        since_s: When the oldest of them arrived.
    """

    def __init__(self) -> None:
        self.size, self.since_s = 0, 0.0
        self._lines: dict[str, dict[int, list[Timed]]] = {}
        self._newest: dict[str, _Stream] = {}

    def add(self, stream: _Stream, lines: list[Timed], now_s: float) -> None:
        """Add lines of a rank."""
        if not lines:
            return
        self.since_s = self.since_s if self.size else now_s
        self.size += sum(len(data) + 1 for data, _ in lines)
        job = stream.source.job
        self._newest[job] = stream
        self._lines.setdefault(job, {}).setdefault(stream.rank, []).extend(lines)

    def take(self, *, fold: bool) -> list[Line]:
        """Return all lines in order, and keep none."""
        merged = [
            _merged(self._newest[job].source, self._newest[job].attempt, lines, fold)
            for job, lines in self._lines.items()
        ]
        self._lines, self.size = {}, 0
        return list(heapq.merge(*merged, key=lambda line: line.at or 0.0))


def follow_lines(
    sources: Callable[[], Iterable[Source]],
    wanted: Wanted,
    *,
    is_over: Callable[[], bool] = lambda: True,
    fold: bool = True,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[list[Line]]:
    """Yield the output of ranks in order of arrival, until their jobs have ended.

    Each poll without news yields an empty list, so that the caller keeps control of the loop. The
    backlog comes first, followed by an empty list even if the output never pauses.

    Args:
        sources: Returns new logs to follow; called from time to time.
        is_over: Whether no new sources will come.
    """
    streams: list[_Stream] = []
    pending = _Pending()
    listed_s = float("-inf")
    is_past, began_s, short_polls = True, time.monotonic(), 0
    while True:
        now_s = time.monotonic()
        was_over = is_over()
        if now_s - listed_s >= NEW_SOURCES_S or was_over:
            listed_s = now_s
            streams += [
                _Stream(source, rank, source.logs.follow(rank, poll_s=0.0))
                for source in sources()
                for rank in source.ranks
            ]
        is_news, is_full = _poll(streams, pending, wanted, now_s)
        is_end = not streams and was_over
        several = len(streams) > 1
        waits = now_s - pending.since_s < TOGETHER_S and (is_news or several)
        short_polls = 0 if is_full else short_polls + 1
        ends_past = is_past and (short_polls >= SHORT_POLLS or now_s - began_s >= PAST_S)
        if pending.size and (is_end or pending.size >= _MOST_BYTES or ends_past or not waits):
            yield pending.take(fold=fold)
            is_pause = ends_past
        else:
            is_pause = ends_past or not (is_news or pending.size)
        if is_pause:
            is_past = False
            yield []
        if is_end:
            return
        if not is_full:
            pause(POLL_S)


def _poll(
    streams: list[_Stream], pending: _Pending, wanted: Wanted, now_s: float
) -> tuple[bool, bool]:
    """Read what the streams have, and drop those that have ended.

    Returns:
        Whether there was anything, and whether there may be more at once.
    """
    is_news = is_full = False
    for stream in [*streams]:
        part = next(stream.parts, None)
        if part is None:
            streams.remove(stream)
            lines = stream.left()
        else:
            is_news = is_news or bool(part.data)
            is_full = is_full or len(part.data) >= CHUNK_BYTES
            lines = stream.lines(part, now_s)
        pending.add(stream, [one for one in lines if wanted.takes(*one)], now_s)
    return is_news, is_full


def _merged(
    source: Source, attempt: int, lines: dict[int, list[Timed]], fold: bool
) -> Iterator[Line]:
    if fold:
        for ranks, data, at in merged_lines({rank: iter(lines[rank]) for rank in lines}):
            yield Line(source.job, ranks, attempt, at, data)
        return
    for rank in sorted(lines):
        for data, at in lines[rank]:
            yield Line(source.job, (rank,), attempt, at, data)
