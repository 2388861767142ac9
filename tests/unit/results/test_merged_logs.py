"""The logs of several ranks as one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rayjobs.results.merged_logs import WINDOW_LINES, Timed, merged, merged_lines, rank_set


def together(*logs: str) -> list[str]:
    chunks = {rank: iter([text[:3].encode(), text[3:].encode()]) for rank, text in enumerate(logs)}
    return b"".join(merged(chunks)).decode().splitlines()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1], "ranks 0-1"), ([0, 1, 2, 5, 7, 8], "ranks 0-2,5,7-8")],
)
def test_rank_ranges_as_text(ranks: list[int], text: str) -> None:
    assert rank_set(ranks) == text


def test_equal_lines_are_shown_once() -> None:
    assert together("start\nloss 1\nend\n", "start\nloss 2\nend\n") == [
        "[ranks 0-1] start",
        "[rank 0] loss 1",
        "[rank 1] loss 2",
        "[ranks 0-1] end",
    ]


def test_lines_of_a_single_rank_do_not_split_the_rest() -> None:
    assert together("a\nb\nc", "a\nextra\nb\nc\n", "a\nb\nc\n") == [
        "[ranks 0-2] a",
        "[rank 1] extra",
        "[ranks 0-2] b",
        "[ranks 0-2] c",
    ]


def test_lines_in_another_order_are_all_shown() -> None:
    assert sorted(together("x\ny\n", "y\nx\n")) == ["[rank 0] x", "[rank 1] x", "[ranks 0-1] y"]


def test_rank_without_output_is_handled() -> None:
    assert together("", "a") == ["[rank 1] a"]
    assert together("", "") == []


@pytest.mark.parametrize("seed", range(20))
def test_all_lines_of_each_rank_are_kept_in_order(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([5, 50, 3 * WINDOW_LINES])
    logs = [[chance.choice("abcd") for _ in range(chance.randrange(count))] for _ in range(3)]
    found = list(merged({rank: iter(["\n".join(log).encode()]) for rank, log in enumerate(logs)}))
    for rank, log in enumerate(logs):
        own = [
            line.decode().rpartition("] ")[2].rstrip("\n")
            for line in found
            if rank in _ranks(line.decode())
        ]
        assert own == log


class Counted(bytes):
    """A line that counts how often it is looked up or compared."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        Counted.looks += 1
        return super().__ne__(other)


@pytest.mark.parametrize("every", [1, 2, 10**6])
def test_the_work_per_line_does_not_grow_with_the_ranks(every: int) -> None:
    def log(rank: int) -> Iterator[Timed]:
        for number in range(20):
            own = b"" if number % every else b"rank %d " % rank
            yield Counted(own + b"line %d" % number), float(number)

    def looks_per_line(ranks: int) -> float:
        Counted.looks = 0
        lines = sum(len(shown) for shown, _, _ in merged_lines({n: log(n) for n in range(ranks)}))
        assert lines == 20 * ranks
        return Counted.looks / lines

    assert looks_per_line(64) < 2 * looks_per_line(4)


@pytest.mark.parametrize("seed", range(20))
def test_next_line_is_one_no_other_rank_is_about_to_print(seed: int) -> None:
    chance = random.Random(seed)
    logs: list[list[Timed]] = [
        [
            (chance.choice([b"a", b"b", b"c", b"%d" % rank]), chance.choice([None, 1.0, 2.0, 3.0]))
            for _ in range(chance.randrange(WINDOW_LINES // 4))
        ]
        for rank in range(chance.randrange(1, 6))
    ]
    found = merged_lines({rank: iter(log) for rank, log in enumerate(logs)})
    for ranks, line, at in found:
        heads = {log[0][0] for log in logs if log}
        ready = {
            head
            for head in heads
            if not any(log[0][0] != head and head in dict(log) for log in logs if log)
        }
        firsts = {
            head: [(log[0][1] or 0.0, n) for n, log in enumerate(logs) if log and log[0][0] == head]
            for head in ready or heads
        }
        key = {
            head: (min(at for at, _ in first), min(n for _, n in first))
            for head, first in firsts.items()
        }
        assert line == min(key, key=key.__getitem__)
        assert list(ranks) == [rank for rank, log in enumerate(logs) if log and log[0][0] == line]
        times = [logs[rank].pop(0)[1] for rank in ranks]
        assert at == min((time for time in times if time is not None), default=None)
    assert not any(logs)


def _ranks(line: str) -> set[int]:
    ranks = set()
    for part in line[1:].partition("]")[0].split()[1].split(","):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks
