"""From points to values, series, sparklines, tables and pictures."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.metrics_file import LoggedRecord
from rayjobs.jobs.records import MetricPoint
from rayjobs.results import metrics
from rayjobs.results.metric_plots import plot
from rayjobs.results.metrics import Series

AT = datetime(2026, 1, 1, tzinfo=UTC)


def points(*logged: tuple[str, Any], rank: int = 0, step: int | None = None) -> list[MetricPoint]:
    return [
        MetricPoint(attempt=1, rank=rank, sequence=number, name=name, value=value, step=step, at=AT)
        for number, (name, value) in enumerate(logged)
    ]


def test_a_record_becomes_a_point() -> None:
    record = LoggedRecord("row", {"x": 1}, "fit", at_s=2.5, position=77)
    point = metrics.point_of(record, attempt=2, rank=3)
    assert point is not None
    assert (point.attempt, point.rank, point.sequence) == (2, 3, 77)
    assert point.value == {"kind": "row", "value": {"x": 1}}
    assert point.at == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "record",
    [
        LoggedRecord("tag", "b", "a"),
        LoggedRecord("metric", 1),
    ],
)
def test_record_that_is_not_a_metric_is_not_a_point(record: LoggedRecord) -> None:
    assert metrics.point_of(record, attempt=1, rank=0) is None


def test_odd_times_and_steps_do_no_harm() -> None:
    line = b'{"k": "metric", "name": "a", "value": 1, "step": "x", "t": 1e300}'
    record = LoggedRecord.from_line(line, 0)
    assert record is not None
    point = metrics.point_of(record, attempt=1, rank=0)
    assert point is not None
    assert (point.step, point.at.timestamp()) == (None, 0)


def test_single_value_is_a_scalar_and_several_are_a_list() -> None:
    found = metrics.values_by_name(
        points(
            ("once", 1.5),
            ("often", 1),
            ("often", 2),
            ("row", {"kind": "row", "value": {"x": 1, "y": 2}}),
            ("row", {"kind": "row", "value": {"x": 3}}),
            ("table", {"kind": "table", "value": {"a": [1, "NaN"]}}),
            ("list", {"kind": "list", "value": [1, 2]}),
            ("list", {"kind": "list", "value": [3]}),
        )
    )
    assert math.isnan(found["table"]["a"].pop())
    assert found == {
        "once": 1.5,
        "often": [1, 2],
        "row": {"x": [1, 3], "y": [2, None]},
        "table": {"a": [1]},
        "list": [1, 2, 3],
    }


def test_lowest_rank_counts() -> None:
    both = points(("loss", 1.0), rank=0) + points(("loss", 9.0), ("own", 4.0), rank=1)
    assert metrics.values_by_name(both) == {"loss": 1.0, "own": 4.0}


def test_series_hold_numbers_and_columns() -> None:
    found = metrics.series(
        points(
            ("loss", 1.0),
            ("loss", "NaN"),
            ("fit", {"kind": "row", "value": {"x": 1, "label": "a"}}),
            ("note", "text"),
            ("image", {"kind": "image", "value": "a.png"}),
        )
    )
    assert list(found) == ["loss", "fit.x"]
    assert found["loss"].steps == (0, 1)
    assert math.isnan(found["loss"].last)
    assert found["loss"].finite == [1.0]


def test_an_unknown_name_lists_the_known_ones() -> None:
    logged = points(("loss", 1.0))
    assert metrics.pick(logged, ["loss"]) == logged
    with pytest.raises(NotFoundError, match=r"'lss'.*it has logged: loss"):
        metrics.pick(logged, ["lss"])
    with pytest.raises(NotFoundError, match="nothing so far"):
        metrics.pick([], ["loss"])


def series(values: list[float]) -> Series:
    return Series("m", tuple(range(len(values))), tuple(values), True)


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300),
    most=st.integers(min_value=1, max_value=50),
)
@pytest.mark.long
def test_thinning_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    thin = metrics.thin(series(values), most)
    assert len(thin.values) <= max(4, most)
    assert list(thin.steps) == sorted(set(thin.steps))
    if len(values) <= max(4, most):
        assert len(thin.values) == len(values)
    assert (thin.steps[0], thin.steps[-1]) == (0, len(values) - 1)
    inside = [value for value in values if not math.isnan(value)]
    if inside:
        kept = [value for value in thin.values if not math.isnan(value)]
        assert (min(kept), max(kept)) == (min(inside), max(inside))


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200),
    width=st.integers(min_value=0, max_value=60),
)
@pytest.mark.long
def test_a_sparkline_never_fails_and_never_exceeds_its_width(
    values: list[float], width: int
) -> None:
    line = metrics.sparkline(values, width=width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(metrics.BLOCKS + metrics.GAP)


def test_a_sparkline_rises_with_its_values() -> None:
    assert metrics.sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == "▁▂▃▄▅▆▇█"
    assert metrics.sparkline([3, 3, 3], width=8) == "▁▁▁"
    assert metrics.sparkline([0, math.nan, 1], width=8) == "▁·█"
    assert metrics.sparkline([-1.7e308, 1.7e308], width=8) == "▁█"


def test_the_table_shows_each_metric_in_a_line() -> None:
    logged = points(("loss", 2.0), ("loss", 0.5), ("loss", 0.25), ("note", "a\x1b[31mb"))
    lines = metrics.table(logged).splitlines()
    assert lines[0].split() == ["METRIC", "LAST", "MIN", "MAX", "COUNT"]
    assert lines[1].split() == ["loss", "0.25", "0.25", "2", "3", "█▂▁"]
    assert lines[2].split()[:2] == ["note", "a�[31mb"]


@pytest.mark.long
def test_many_points_are_summarized() -> None:
    logged = points(*[("loss", float(number % 97)) for number in range(20_000)])
    (one,) = metrics.summaries(logged, width=30)
    assert (one.count, one.best_low, one.best_high) == (20_000, 0.0, 96.0)
    assert len(one.line) == 30


@pytest.mark.long
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    some = [series([1.0, math.nan, 3.0]), series([2.0]), series([math.nan])]
    path = plot(some, tmp_path / "m.png", title="a run")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [one.name for one in tmp_path.iterdir()] == ["m.png"]
    with pytest.raises(NotFoundError, match="no numbers"):
        plot([series([math.nan])], tmp_path / "n.png", title="a run")
    with pytest.raises(UsageError, match=r"\.png"):
        plot(some, tmp_path / "m.txt", title="a run")
