"""Merges the logs of several ranks: common lines are shown once."""

from __future__ import annotations

import heapq
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

# How many lines ahead to look for a line that other ranks share.
WINDOW_LINES = 200


# A line, and when it was printed (seconds of the wall clock; None: unknown).
Timed = tuple[bytes, float | None]


def merged(logs: Mapping[int, Iterator[bytes]]) -> Iterator[bytes]:
    """Yield all lines, each after the ranks that printed it: ``[ranks 0-3] epoch 1``.

    Every line ends with a newline. See `merged_lines`.
    """
    lines = {rank: ((line, None) for line in split(log)) for rank, log in logs.items()}
    for ranks, line, _ in merged_lines(lines):
        yield b"[%s] %s\n" % (rank_set(ranks).encode(), line)


def merged_lines(
    logs: Mapping[int, Iterator[Timed]],
) -> Iterator[tuple[tuple[int, ...], bytes, float | None]]:
    """Yield all lines, each with the ranks that printed it and when the first of them did.

    Each rank's lines keep their order. Of different lines of two ranks, the earlier comes first;
    if their times are equal or unknown, the order has no meaning.
    """
    merge = _Merge(logs)
    while merge.heads:
        yield merge.take()


class _Merge:
    """The next lines of all ranks."""

    def __init__(self, logs: Mapping[int, Iterator[Timed]]) -> None:
        self.heads: dict[bytes, _Head] = {}
        self._waiting = {rank: _Lines(log) for rank, log in sorted(logs.items())}
        # How many ranks have each line in their look-ahead; a head is ready when it is the next
        # line of all these ranks.
        self._windows: Counter[bytes] = Counter()
        # By time, then by rank. A ready head may become unready, so it is checked when taken.
        self._ready: list[tuple[float, int, bytes]] = []
        for lines in self._waiting.values():
            self._windows.update(lines.fill())
        for rank in self._waiting:
            self._show(rank)

    def take(self) -> tuple[tuple[int, ...], bytes, float | None]:
        """Return the next line, the ranks that printed it, and when the first of them did."""
        chosen = self._first_ready()
        if chosen is None:
            chosen = min(self.heads, key=lambda line: self.heads[line].key)
        head = self.heads.pop(chosen)
        ranks = sorted(head.ranks)
        for rank in ranks:
            lines = self._waiting[rank]
            if lines.drop():
                self._windows[chosen] -= 1
            self._windows.update(lines.fill())
        if not self._windows[chosen]:
            del self._windows[chosen]
        for rank in ranks:
            self._show(rank)
        return tuple(ranks), chosen, head.at

    def _first_ready(self) -> bytes | None:
        """Return the first line that no other rank is about to print; None: all lines wait."""
        while self._ready:
            at, first, line = heapq.heappop(self._ready)
            head = self.heads.get(line)
            if head and head.key == (at, first) and len(head.ranks) == self._windows[line]:
                return line
        return None

    def _show(self, rank: int) -> None:
        lines = self._waiting[rank]
        if not lines:
            return
        head = self.heads.setdefault(lines.head, _Head())
        head.add(rank, lines.at)
        if len(head.ranks) == self._windows[lines.head]:
            heapq.heappush(self._ready, (*head.key, lines.head))


class _Head:
    """A line that is next in the logs of some ranks."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.at: float | None = None  # the earliest time that is known
        self.key = (float("inf"), sys.maxsize)  # unknown times first, then by time and rank

    def add(self, rank: int, at: float | None) -> None:
        self.ranks.append(rank)
        if at is not None and (self.at is None or at < self.at):
            self.at = at
        self.key = (min(self.key[0], at or 0.0), min(self.key[1], rank))


def rank_set(ranks: Sequence[int]) -> str:
    """Return ascending ranks in words: ``rank 3``, ``ranks 0-2,5``."""
    parts: list[str] = []
    start = 0
    for index in range(1, len(ranks) + 1):
        if index == len(ranks) or ranks[index] != ranks[index - 1] + 1:
            first, last = ranks[start], ranks[index - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = index
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(parts)}"


class _Lines:
    """The next lines of one rank's log."""

    def __init__(self, log: Iterator[Timed]) -> None:
        self._log = log
        self._next: deque[Timed] = deque()
        self._counts: Counter[bytes] = Counter()

    def __bool__(self) -> bool:
        return bool(self._next)

    @property
    def head(self) -> bytes:
        return self._next[0][0]

    @property
    def at(self) -> float | None:
        return self._next[0][1]

    def drop(self) -> bool:
        """Remove the first line; return whether it was the only one with its text."""
        line, _ = self._next.popleft()
        self._counts[line] -= 1
        if self._counts[line]:
            return False
        del self._counts[line]
        return True

    def fill(self) -> list[bytes]:
        """Read up to the look-ahead limit; return the new lines."""
        new: list[bytes] = []
        while len(self._next) < WINDOW_LINES:
            timed = next(self._log, None)
            if timed is None:
                break
            self._next.append(timed)
            self._counts[timed[0]] += 1
            if self._counts[timed[0]] == 1:
                new.append(timed[0])
        return new


def split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a log's lines without their newlines."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        for line in lines:
            yield b"".join(rest)
            rest = [line]
    if last := b"".join(rest):
        yield last
