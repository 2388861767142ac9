"""Durations, sizes, counts and names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.core.text import counted, duration_text, name_from, size_text
from rayjobs.core.units import parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (-3.0, "0s"), (0, "0s"), (0.04, "0.04s"), (0.44, "0.44s"), (5.04, "5s"),
        (9.96, "10s"), (12.4, "12s"), (59.6, "1m"), (185, "3m5s"), (3599.6, "1h"), (7259, "2h1m"),
        (7620, "2h7m"), (86_399, "1d"), (4 * 86400 + 3 * 3600 + 1, "4d3h"),
    ],
)  # fmt: skip
def test_a_duration_has_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5s"), (12.25, "12.25s"), (5410, "1h30m10s"), (86_401, "1d1s")]
)
def test_an_exact_duration_keeps_every_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds, exact=True) == text


@given(st.integers(1, 10**7))
@pytest.mark.long
def test_an_exact_duration_can_be_read_back(seconds: int) -> None:
    assert parse_duration(duration_text(seconds, exact=True)) == seconds


@given(st.floats(0, 10**7))
def test_a_duration_can_be_read_back_to_its_second_unit(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, rel=0.03, abs=0.005)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (10_000, "9.77 KiB"), (2**20 - 1, "1 MiB"),
        (300 << 20, "300 MiB"), (3 << 29, "1.5 GiB"), (64 << 30, "64 GiB"), (2e15, "1819 TiB"),
        (503.38 * 2**30, "503.4 GiB"),
    ],
)  # fmt: skip
def test_a_size_is_in_powers_of_1024(size: float, text: str) -> None:
    assert size_text(size) == text


def test_count_of_one_is_singular() -> None:
    shown = [counted(number, "CPU") for number in (0, 0.5, 1, 1.0, 2, 1_234_567)]
    assert shown == ["0 CPUs", "0.5 CPUs", "1 CPU", "1 CPU", "2 CPUs", "1,234,567 CPUs"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("train", "train"), ("my model (2)", "my-model-2-"), ("_--x.y", "x.y"), ("ä", "job")],
)
def test_a_name_is_made_of_valid_characters(text: str, name: str) -> None:
    assert name_from(text, default="job") == name
    assert len(name_from("a" * 300, default="job")) == 128
