"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from rayjobs.core.errors import UsageError
from rayjobs.core.units import parse_duration, parse_size
from rayjobs.injob.parallel_settings import table_bytes_of
from rayjobs.injob.text import bytes_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6h", 21_600), ("30m", 1_800), ("1d12h", 129_600), ("90s", 90), ("90", 90), (90, 90),
        ("1.5h", 5_400), ("1h 30m", 5_400), ("2 days", 172_800), ("1W", 604_800), ("500ms", 0.5),
        ("1m500ms", 60.5), ("10 Minutes", 600), (0, 0),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "6x", "6 h 5", "30m1h", "1h1h", "-1h", "1,5h", "nan", "inf", "6h!", True]
)
def test_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="6h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "gib"),
    [("8GiB", 8), ("8G", 8), ("8gi", 8), ("512MiB", 0.5), ("1 TiB", 1024), ("8", 8), (1.5, 1.5),
     ("1073741824B", 1), ("1GB", 10**9 / 2**30)],
)  # fmt: skip
def test_a_size_is_read(text: str | float, gib: float) -> None:
    assert parse_size(text, unit=1024**3) == gib


@pytest.mark.parametrize("text", ["", "GiB", "8x", "-1GiB", "8 G iB", "nan"])
def test_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="8GiB"):
        parse_size(text, unit=1024**3)


def test_a_kb_has_1024_bytes_only_where_that_is_asked_for() -> None:
    assert parse_size("10MB", unit=1) == bytes_of("10MB") == 10 * 10**6
    assert table_bytes_of("10MB") == bytes_of("10MiB") == 10 * 2**20
    assert bytes_of("9" * 400 + "GB") is None
