"""The logs of several ranks as one: lines that ranks have in common are shown once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

# So many lines ahead a line that other ranks have too is waited for.
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

    Each rank's lines keep their order. Of two ranks' different lines the earlier comes first;
    where their times are equal or unknown, which comes first says nothing.
    """
    waiting = {rank: _Lines(log) for rank, log in sorted(logs.items())}
    while True:
        heads: dict[bytes, list[int]] = {}
        for rank, lines in waiting.items():
            if lines:
                heads.setdefault(lines.head, []).append(rank)
        if not heads:
            return
        # A line that another rank is about to print waits for it, unless all lines do.
        ready = [line for line in heads if _is_ready(line, waiting)]
        times = {line: [waiting[rank].at for rank in heads[line]] for line in ready or heads}
        chosen = min(times, key=lambda line: min(at or 0.0 for at in times[line]))
        ranks = heads[chosen]
        for rank in ranks:
            waiting[rank].drop()
        known = [at for at in times[chosen] if at is not None]
        yield tuple(ranks), chosen, min(known, default=None)


def _is_ready(line: bytes, waiting: Mapping[int, _Lines]) -> bool:
    return not any(
        lines and lines.head != line and lines.will_print(line) for lines in waiting.values()
    )


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
        self._fill()

    def __bool__(self) -> bool:
        return bool(self._next)

    @property
    def head(self) -> bytes:
        return self._next[0][0]

    @property
    def at(self) -> float | None:
        return self._next[0][1]

    def will_print(self, line: bytes) -> bool:
        return self._counts[line] > 0

    def drop(self) -> None:
        line, _ = self._next.popleft()
        self._counts[line] -= 1
        if not self._counts[line]:
            del self._counts[line]
        self._fill()

    def _fill(self) -> None:
        while len(self._next) < WINDOW_LINES:
            timed = next(self._log, None)
            if timed is None:
                return
            self._next.append(timed)
            self._counts[timed[0]] += 1


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
