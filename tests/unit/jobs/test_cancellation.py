"""The sentence about a canceled job, with and without a time."""

from __future__ import annotations

import pytest

from rayjobs.jobs.cancellation import Cancellation
from rayjobs.store.rows import cancellation_of, cancellation_text


@pytest.mark.parametrize(
    ("cancellation", "sentence", "timed"),
    [
        (Cancellation(), "canceled", "canceled NOW"),
        (Cancellation("ada"), "canceled by ada", "canceled by ada NOW"),
        (Cancellation("a; b", "4 jobs; 1 lost"), "canceled by a; b; 4 jobs; 1 lost", None),
        (Cancellation("", "no room"), "canceled; no room", "canceled NOW; no room"),
        (
            Cancellation("ada", requeue_reason="lost; gone"),
            "canceled by ada instead of being queued again (lost; gone)",
            "canceled by ada NOW instead of being queued again (lost; gone)",
        ),
    ],
)
def test_time_follows_the_cancel(
    cancellation: Cancellation, sentence: str, timed: str | None
) -> None:
    assert cancellation.sentence == sentence
    assert cancellation.at("NOW") == (timed or "canceled by a; b NOW; 4 jobs; 1 lost")
    assert cancellation_of(cancellation_text(cancellation)) == cancellation
