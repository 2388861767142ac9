"""A report on the queue: predicted and actual starts, waits, and utilization. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.queue_records import Prediction, QueueRow, Usage

# A shorter wait counts as this long: twice a wait of zero is meaningless.
LEAST_S = 1.0
# A job that starts at once still takes a moment, and gets no estimate.
AT_ONCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The accuracy of the estimates of some jobs.

    Attributes:
        name: The target, or the basis of the estimates.
        count: Jobs that had an estimate and have since got an allocation.
        median_error_s: Median difference between the predicted and the actual start.
        median_late_s: The same with its sign: above 0, jobs started later than predicted.
        within_twice: Share of jobs that waited between half and twice as long as predicted.
    """

    name: str
    count: int
    median_error_s: float
    median_late_s: float
    within_twice: float


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """How many jobs had an estimate: the others are not in the figures of `Predicted`.

    Attributes:
        waited: Jobs that had to wait for their first allocation, for more than `AT_ONCE_S`.
        waited_without: Those of them without an estimate.
        waiting, waiting_without: The same for jobs that still wait.
        placed: All jobs that got an allocation, including those that got it at once.
        placed_with: Those of them with an estimate.
        still: All jobs that wait.
        ended: Jobs that ended without an allocation.
    """

    placed: int
    placed_with: int
    still: int
    ended: int
    waited: int
    waited_without: int
    waiting: int
    waiting_without: int


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long some jobs waited for their first allocation.

    Attributes:
        placed: Jobs that got one. The figures are those of these jobs; None if there are none.
        waiting: Jobs that still wait, the longest for `waiting_longest_s`.
    """

    name: str
    placed: int
    median_s: float | None
    p90_s: float | None
    longest_s: float | None
    waiting: int
    waiting_longest_s: float | None


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The use of a target during the report's time.

    Attributes:
        cpu_hours, gpu_hours: Used by attempts.
        cpus, gpus: Shares of the target's current capacity over the whole time; None if that is
            unknown or zero.
    """

    name: str
    cpu_hours: float
    gpu_hours: float
    cpus: float | None
    gpus: float | None


@dataclass(frozen=True, kw_only=True)
class QueueReport:
    """The report. `first` is each job's first estimate, `last` the last one before its start."""

    since: datetime | None
    until: datetime
    jobs: int
    estimated: Estimated
    first_by_target: tuple[Predicted, ...]
    last_by_target: tuple[Predicted, ...]
    first_by_basis: tuple[Predicted, ...]
    waits: Waits
    waits_by_priority: tuple[Waits, ...]
    waits_by_user: tuple[Waits, ...]
    waits_by_group: tuple[Waits, ...]
    in_use: tuple[InUse, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; times stay `datetime` objects."""
        return asdict(self)


def queue_report(
    rows: Sequence[QueueRow],
    usage: Sequence[Usage],
    *,
    now: datetime,
    since: datetime | None = None,
    capacity: Mapping[str, tuple[float, float]] | None = None,
) -> QueueReport:
    """Return the report on the queue.

    Args:
        rows: The jobs to report on.
        since: The start of the report; None: the first submit.
        capacity: CPUs and GPUs of the nodes of each target that run now.
    """
    start = since or min((row.submitted_at for row in rows), default=now)
    return QueueReport(
        since=since,
        until=now,
        jobs=len(rows),
        estimated=_estimated(rows, now),
        first_by_target=_predicted(rows, _first, lambda row, _one: row.target),
        last_by_target=_predicted(rows, _last, lambda row, _one: row.target),
        first_by_basis=_predicted(rows, _first, lambda _row, one: one.basis),
        waits=_waits("all", rows, now),
        waits_by_priority=tuple(
            _waits(str(priority), some, now)
            for priority, some in sorted(_by(rows, lambda row: row.priority).items(), reverse=True)
        ),
        waits_by_user=_named_waits(rows, lambda row: row.user, now),
        waits_by_group=_named_waits(
            [row for row in rows if row.parent is not None], lambda row: str(row.parent), now
        ),
        in_use=tuple(
            _in_use(target, some, start, now, (capacity or {}).get(target))
            for target, some in sorted(_by(usage, lambda one: one.target).items())
        ),
    )


def _estimated(rows: Sequence[QueueRow], now: datetime) -> Estimated:
    waited: list[QueueRow] = []
    waiting: list[QueueRow] = []
    placed = [row for row in rows if row.placed_at is not None]
    ended = sum(row.placed_at is None and row.state.is_final for row in rows)
    for row in rows:
        if row.placed_at is None and row.state.is_final:
            continue
        if ((row.placed_at or now) - row.submitted_at).total_seconds() > AT_ONCE_S:
            (waiting if row.placed_at is None else waited).append(row)
    return Estimated(
        placed=len(placed),
        placed_with=sum(_has_estimate(row) for row in placed),
        still=len(rows) - len(placed) - ended,
        ended=ended,
        waited=len(waited),
        waited_without=sum(row.predicted_first is None for row in waited),
        waiting=len(waiting),
        waiting_without=sum(row.predicted_first is None for row in waiting),
    )


def _has_estimate(row: QueueRow) -> bool:
    one = row.predicted_first
    return one is not None and one.made_at is not None


def _first(row: QueueRow) -> Prediction | None:
    return row.predicted_first


def _last(row: QueueRow) -> Prediction | None:
    return row.predicted_last


def _by(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _predicted(
    rows: Sequence[QueueRow],
    which: Callable[[QueueRow], Prediction | None],
    name: Callable[[QueueRow, Prediction], str],
) -> tuple[Predicted, ...]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        one = which(row)
        if one is None or one.made_at is None or row.placed_at is None:
            continue
        predicted_s = (one.starts_at - one.made_at).total_seconds()
        waited_s = (row.placed_at - one.made_at).total_seconds()
        groups.setdefault(name(row, one), []).append((predicted_s, waited_s))
    return tuple(_figures(key, pairs) for key, pairs in sorted(groups.items()))


def _figures(name: str, pairs: list[tuple[float, float]]) -> Predicted:
    near = sum(
        0.5 <= max(waited_s, LEAST_S) / max(predicted_s, LEAST_S) <= 2.0
        for predicted_s, waited_s in pairs
    )
    return Predicted(
        name=name,
        count=len(pairs),
        median_error_s=statistics.median(abs(waited - predicted) for predicted, waited in pairs),
        median_late_s=statistics.median(waited - predicted for predicted, waited in pairs),
        within_twice=near / len(pairs),
    )


def _named_waits(
    rows: Sequence[QueueRow], key: Callable[[QueueRow], str], now: datetime
) -> tuple[Waits, ...]:
    return tuple(_waits(name, some, now) for name, some in sorted(_by(rows, key).items()))


def _waits(name: str, rows: Sequence[QueueRow], now: datetime) -> Waits:
    waited = sorted(
        max(0.0, (row.placed_at - row.submitted_at).total_seconds())
        for row in rows
        if row.placed_at is not None
    )
    still = [
        max(0.0, (now - row.submitted_at).total_seconds())
        for row in rows
        if row.placed_at is None and not row.state.is_final
    ]
    return Waits(
        name=name,
        placed=len(waited),
        median_s=statistics.median(waited) if waited else None,
        p90_s=waited[min(len(waited) - 1, int(0.9 * len(waited)))] if waited else None,
        longest_s=waited[-1] if waited else None,
        waiting=len(still),
        waiting_longest_s=max(still) if still else None,
    )


def _in_use(
    target: str,
    usage: Sequence[Usage],
    start: datetime,
    now: datetime,
    capacity: tuple[float, float] | None,
) -> InUse:
    cpu_s = gpu_s = 0.0
    for one in usage:
        seconds = (min(one.until or now, now) - max(one.since, start)).total_seconds()
        nodes = one.shape.get("nodes", 1.0)
        cpu_s += max(0.0, seconds) * nodes * one.shape.get("cpus", 0.0)
        gpu_s += max(0.0, seconds) * nodes * one.shape.get("gpus", 0.0)
    window_s = (now - start).total_seconds()
    cpus, gpus = capacity or (0.0, 0.0)
    return InUse(
        name=target,
        cpu_hours=cpu_s / 3600,
        gpu_hours=gpu_s / 3600,
        cpus=cpu_s / (cpus * window_s) if cpus * window_s > 0 else None,
        gpus=gpu_s / (gpus * window_s) if gpus * window_s > 0 else None,
    )
