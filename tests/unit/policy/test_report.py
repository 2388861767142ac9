"""The figures of the queue's report, compared with figures computed by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rayjobs.jobs.queue_records import Prediction, QueueRow, Usage
from rayjobs.jobs.states import JobState
from rayjobs.policy.report import Estimated, queue_report

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def row(
    name: str, *, predicted_s: float | None = None, waited_s: float | None, **v: Any
) -> QueueRow:
    """Return a job submitted and first predicted at AT."""
    first = None
    if predicted_s is not None:
        first = Prediction(job=name, starts_at=after(predicted_s), basis="history", made_at=AT)
    values: dict[str, Any] = {
        "job": name,
        "name": name,
        "user": "ada",
        "priority": 0,
        "parent": None,
        "target": "local",
        "state": JobState.RUNNING if waited_s is not None else JobState.QUEUED,
        "submitted_at": AT,
        "placed_at": None if waited_s is None else after(waited_s),
        "ended_at": None,
        "predicted_first": first,
        "predicted_last": first,
    }
    return QueueRow(**{**values, **v})


def test_errors_and_shares_are_of_jobs_that_started() -> None:
    rows = [
        row("a", predicted_s=100, waited_s=100),
        row("b", predicted_s=100, waited_s=190),
        row("c", predicted_s=100, waited_s=300),
        row("d", predicted_s=100, waited_s=20),
        row("e", predicted_s=100, waited_s=None),
        row("f", waited_s=5),
    ]
    made = queue_report(rows, [], now=after(1000))
    (figures,) = made.first_by_target
    assert figures.count == 4
    assert figures.median_error_s == (80 + 90) / 2
    assert figures.median_late_s == (0 + 90) / 2
    assert figures.within_twice == 0.5
    assert made.last_by_target == made.first_by_target


def test_jobs_that_waited_without_an_estimate_are_counted() -> None:
    rows = [
        row("a", predicted_s=100, waited_s=100),
        row("b", waited_s=200),
        row("c", waited_s=5),  # at once
        row("d", predicted_s=100, waited_s=None),
        row("e", waited_s=None),
        row("f", waited_s=None),
        row("g", waited_s=None, state=JobState.CANCELED),
        row("h", waited_s=None, submitted_at=after(995)),
    ]
    made = queue_report(rows, [], now=after(1000))
    assert made.estimated == Estimated(
        placed=3,
        placed_with=1,
        still=4,
        ended=1,
        waited=2,
        waited_without=1,
        waiting=3,
        waiting_without=2,
    )
    assert made.to_dict()["estimated"]["waited_without"] == 1


def test_short_delays_do_not_count_as_estimation_errors() -> None:
    (figures,) = queue_report(
        [row("a", predicted_s=0, waited_s=0.9)], [], now=after(10)
    ).first_by_target
    assert figures.within_twice == 1.0


def test_waits_are_grouped_and_those_that_still_wait_are_counted() -> None:
    rows = [
        row("a", waited_s=10, user="ada", parent="sweep_1"),
        row("b", waited_s=30, user="bob", priority=5),
        row("c", waited_s=None, user="bob"),
        row("d", waited_s=None, user="bob", state=JobState.CANCELED),
    ]
    made = queue_report(rows, [], now=after(100))
    assert (made.waits.placed, made.waits.median_s, made.waits.longest_s) == (2, 20.0, 30.0)
    assert (made.waits.waiting, made.waits.waiting_longest_s) == (1, 100.0)
    assert [(one.name, one.placed) for one in made.waits_by_user] == [("ada", 1), ("bob", 1)]
    assert [(one.name, one.placed) for one in made.waits_by_priority] == [("5", 1), ("0", 1)]
    assert [one.name for one in made.waits_by_group] == ["sweep_1"]
    assert made.waits_by_group[0].p90_s == 10.0


def test_usage_counts_only_within_the_report_period() -> None:
    shape = {"nodes": 2.0, "cpus": 1.0, "gpus": 0.5}
    usage = [
        Usage(job="a", user="ada", target="t", since=after(-50), until=after(50), shape=shape),
        Usage(job="b", user="ada", target="t", since=after(50), until=None, shape=shape),
    ]
    made = queue_report([], usage, now=after(100), since=AT, capacity={"t": (8.0, 2.0)})
    (held,) = made.in_use
    assert held.gpu_hours * 3600 == 100.0
    assert (held.cpus, held.gpus) == (200 / 800, 100 / 200)
    (bare,) = queue_report([], usage, now=after(100), since=AT).in_use
    assert (bare.cpus, bare.gpus) == (None, None)


def test_a_report_of_nothing_is_empty() -> None:
    made = queue_report([], [], now=AT)
    assert (made.jobs, made.first_by_target, made.in_use) == (0, (), ())
    assert made.to_dict()["waits"]["median_s"] is None
