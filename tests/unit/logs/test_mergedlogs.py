"""The logs of several ranks as one."""

from __future__ import annotations

import random

import pytest

from rayjobs.mergedlogs import WINDOW_LINES, merged, rank_set


def together(*logs: str) -> list[str]:
    chunks = {rank: iter([text[:3].encode(), text[3:].encode()]) for rank, text in enumerate(logs)}
    return b"".join(merged(chunks)).decode().splitlines()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1], "ranks 0-1"), ([0, 1, 2, 5, 7, 8], "ranks 0-2,5,7-8")],
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert rank_set(ranks) == text


def test_equal_lines_are_shown_once() -> None:
    assert together("start\nloss 1\nend\n", "start\nloss 2\nend\n") == [
        "[ranks 0-1] start",
        "[rank 0] loss 1",
        "[rank 1] loss 2",
        "[ranks 0-1] end",
    ]


def test_lines_that_one_rank_alone_prints_do_not_part_the_rest() -> None:
    assert together("a\nb\nc", "a\nextra\nb\nc\n", "a\nb\nc\n") == [
        "[ranks 0-2] a",
        "[rank 1] extra",
        "[ranks 0-2] b",
        "[ranks 0-2] c",
    ]


def test_lines_in_another_order_are_all_shown() -> None:
    assert sorted(together("x\ny\n", "y\nx\n")) == ["[rank 0] x", "[rank 1] x", "[ranks 0-1] y"]


def test_a_rank_that_printed_nothing_is_fine() -> None:
    assert together("", "a") == ["[rank 1] a"]
    assert together("", "") == []


@pytest.mark.parametrize("seed", range(20))
def test_every_ranks_own_lines_are_all_there_and_in_order(seed: int) -> None:
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


def _ranks(line: str) -> set[int]:
    ranks = set()
    for part in line[1:].partition("]")[0].split()[1].split(","):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks
