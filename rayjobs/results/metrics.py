"""Converts a run's metric records to points, values, columns, tables and sparklines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rayjobs.core.errors import NotFoundError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.log_values import number_of
from rayjobs.injob.metrics_file import METRIC_KINDS, LoggedRecord, combine, stored_value
from rayjobs.jobs.records import MetricPoint

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"  # a value that is not a finite number


@dataclass(frozen=True)
class Series:
    """The numbers of one metric in the order they were logged.

    Attributes:
        steps: The script's own steps, else 0, 1, 2 …
        values: NaN where the script logged NaN.
        has_steps: Whether the script gave every point a step.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    has_steps: bool

    @property
    def finite(self) -> list[float]:
        """The values that are finite numbers."""
        return [value for value in self.values if math.isfinite(value)]

    @property
    def last(self) -> float:
        """The newest value; NaN of an empty series."""
        return self.values[-1] if self.values else math.nan


def point_of(record: LoggedRecord, *, attempt: int, rank: int) -> MetricPoint | None:
    """Return a record of a metric file as a point, or None when it is not a metric.

    The point's sequence is the byte position of its line: growing and unique within the
    rank's file. A value is a scalar, or ``{"kind": list|row|table|image|chart, "value": …}``;
    NaN and infinities are strings in records; `number_of` converts them back.
    """
    if record.kind not in METRIC_KINDS or record.name is None:
        return None
    try:
        when = datetime.fromtimestamp(record.at_s, UTC)
    except (ValueError, OverflowError, OSError):
        when = datetime.fromtimestamp(0, UTC)
    return MetricPoint(
        attempt=attempt,
        rank=rank,
        sequence=record.position,
        name=record.name,
        value=stored_value(record.kind, record.value),
        step=record.step,
        at=when,
    )


def values_by_name(points: Iterable[MetricPoint]) -> dict[str, Any]:
    """Return the result of ``Run.get_metrics()``.

    A name logged once is a scalar, several times a list; rows and tables are columns.
    If several ranks logged a name, only the lowest rank's points count, so that a metric that every
    rank logs is one curve.

    Source: Azure ML SDK v1, ``Run.get_metrics``.
    """
    return combine((point.name, point.value) for point in lowest_rank(points))


def lowest_rank(points: Iterable[MetricPoint]) -> list[MetricPoint]:
    """Return, for each name, the points of the lowest rank that logged it."""
    listed = list(points)
    first: dict[str, int] = {}
    for point in listed:
        first[point.name] = min(point.rank, first.get(point.name, point.rank))
    return [point for point in listed if point.rank == first[point.name]]


def series(points: Iterable[MetricPoint]) -> dict[str, Series]:
    """Return the numeric series by name: scalars, lists, and columns as ``name.column``.

    Text, images and charts have none.
    """
    steps: dict[str, list[int | None]] = {}
    values: dict[str, list[float]] = {}
    for point in lowest_rank(points):
        for name, numbers in _numbers_of(point):
            values.setdefault(name, []).extend(numbers)
            own = point.step if len(numbers) == 1 else None
            steps.setdefault(name, []).extend([own] * len(numbers))
    found = {}
    for name, logged in values.items():
        given = steps[name]
        has_steps = all(step is not None for step in given)
        shown = [step if has_steps and step is not None else i for i, step in enumerate(given)]
        found[name] = Series(name, tuple(shown), tuple(logged), has_steps)
    return found


def _numbers_of(point: MetricPoint) -> Iterable[tuple[str, list[float]]]:
    value: Any = point.value
    kind = "metric"
    if isinstance(value, Mapping) and "kind" in value:
        kind, value = str(value["kind"]), value.get("value")
    if kind in ("row", "table") and isinstance(value, Mapping):
        columns = [(f"{point.name}.{column}", cells) for column, cells in value.items()]
    elif kind in ("metric", "list"):
        columns = [(point.name, value)]
    else:
        return
    for name, cells in columns:
        numbers = [_number(cell) for cell in (cells if isinstance(cells, list) else [cells])]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            yield name, known


def _number(cell: Any) -> float | None:
    value = number_of(cell)
    return float(value) if isinstance(value, (int, float)) else None


def pick(points: Sequence[MetricPoint], names: Sequence[str]) -> list[MetricPoint]:
    """Return the points of the given names (all when none is given).

    Raises:
        NotFoundError: nothing was logged under a name; lists the logged names.
    """
    known = list(dict.fromkeys(point.name for point in points))
    for name in names:
        if name not in known:
            listed = ", ".join(known[:20]) + (
                f" and {len(known) - 20} more" if len(known) > 20 else ""
            )
            raise NotFoundError(
                f"the run has logged nothing under {name!r}; "
                + (f"it has logged: {listed}" if known else "it has logged nothing so far")
            )
    return [point for point in points if not names or point.name in names]


def thin(one: Series, most: int) -> Series:
    """Return a series with at most `most` points (at least 4) that keeps its ends and extremes.

    The points between the ends are cut into equal parts; each part keeps its lowest and highest
    value, so that spikes survive.
    """
    most = max(4, most)
    count = len(one.values)
    if count <= most:
        return one
    parts = (most - 2) // 2
    kept = {0, count - 1}
    for part in range(parts):
        start = 1 + part * (count - 2) // parts
        end = 1 + (part + 1) * (count - 2) // parts
        inside = [i for i in range(start, end) if not math.isnan(one.values[i])]
        if inside:
            kept.add(min(inside, key=one.values.__getitem__))
            kept.add(max(inside, key=one.values.__getitem__))
        elif start < end:
            kept.add(start)  # only NaN there: shown as NaN
    order = sorted(kept)
    return Series(
        one.name,
        tuple(one.steps[i] for i in order),
        tuple(one.values[i] for i in order),
        one.has_steps,
    )


def sparkline(values: Sequence[float], *, width: int = 40) -> str:
    """Return one line of blocks for the values, at most `width` wide.

    Several values that share a block are shown by their mean; a constant is a low line. ``·``
    stands for a value that is not a number.
    """
    if not values or width < 1:
        return ""
    cells = []
    count = min(width, len(values))
    for cell in range(count):
        part = values[cell * len(values) // count : (cell + 1) * len(values) // count]
        finite = [value for value in part if math.isfinite(value)]
        # Halved first: the sum of two very large floats is infinite.
        cells.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    known = [cell for cell in cells if not math.isnan(cell)]
    if not known:
        return GAP * count
    low, high = min(known), max(known)
    return "".join(GAP if math.isnan(cell) else _block(cell, low, high) for cell in cells)


def _block(value: float, low: float, high: float) -> str:
    span = high / 2 - low / 2
    if span == 0:
        return BLOCKS[0]
    share = (value / 2 - low / 2) / span
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


@dataclass(frozen=True)
class Summary:
    """One metric in one line of ``rayjobs metrics``.

    Attributes:
        count: How many values were logged.
        last: The newest value; text for a value that is not a number.
        best_low, best_high: Lowest and highest finite value; None when there is none.
        line: A sparkline.
    """

    name: str
    count: int
    last: Any
    best_low: float | None
    best_high: float | None
    last_step: int | None
    line: str


def summaries(points: Sequence[MetricPoint], *, width: int = 40) -> list[Summary]:
    """Return one summary per metric, in the order the names first appeared."""
    numeric = series(points)
    found = []
    listed = lowest_rank(points)
    for name in dict.fromkeys(_shown_names(listed, numeric)):
        one = numeric.get(name)
        if one is None:
            of_name = [point for point in listed if point.name == name]
            last = of_name[-1].value
            last = last.get("value") if isinstance(last, Mapping) else last
            found.append(Summary(name, len(of_name), last, None, None, of_name[-1].step, ""))
            continue
        finite = one.finite
        found.append(
            Summary(
                name,
                len(one.values),
                one.last,
                min(finite) if finite else None,
                max(finite) if finite else None,
                one.steps[-1] if one.has_steps else None,
                sparkline(thin(one, 8 * width).values, width=width) if len(one.values) > 1 else "",
            )
        )
    return found


def _shown_names(points: Sequence[MetricPoint], numeric: Mapping[str, Series]) -> Iterable[str]:
    for point in points:
        columns = [name for name, _ in _numbers_of(point) if name in numeric]
        yield from columns or [point.name]


def number_text(value: Any) -> str:
    """Return a value as short text: six significant digits, whole numbers whole."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.6g}"
    text = "".join(char if char.isprintable() else "�" for char in str(value))
    return text if len(text) <= 60 else text[:59] + "…"


def table(points: Sequence[MetricPoint], *, width: int = 30) -> str:
    """Return all metrics as a plain text table with sparklines."""
    rows = [("METRIC", "LAST", "MIN", "MAX", "COUNT", "")]
    for one in summaries(points, width=width):
        rows.append(
            (
                one.name,
                number_text(one.last),
                number_text(one.best_low),
                number_text(one.best_high),
                str(one.count),
                one.line,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [row[column].rjust(widths[column]) for column in range(1, 5)]
        lines.append("  ".join([*cells, row[5]]).rstrip())
    return "\n".join(lines)
