"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from rayjobs.core.clock import from_text, to_text


def test_times_are_written_in_utc_with_all_microseconds() -> None:
    whole = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert to_text(whole) == "2026-01-02T03:04:05.000000Z"
    there = datetime(2026, 1, 2, 5, 34, 5, 7, tzinfo=timezone(timedelta(hours=2, minutes=30)))
    assert to_text(there) == "2026-01-02T03:04:05.000007Z"


def test_text_sorts_like_the_times_and_is_read_back() -> None:
    begin = datetime(999, 12, 31, tzinfo=UTC)
    times = [begin + timedelta(days=400 * n, microseconds=n) for n in range(1000)]
    texts = [to_text(one) for one in times]
    assert sorted(texts) == texts
    assert [from_text(text) for text in texts] == times
