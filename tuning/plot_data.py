"""The numbers behind a sweep's plots, prepared once for both the PNG and the HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.space import stripped
from rayjobs.tuning.trials import TrialRecord, TrialState

_LOG_RATIO = 50.0  # positive values that span more are drawn on a logarithmic axis
_MAX_TICKS = 12
_MAX_TEXT = 20


@dataclass(frozen=True)
class History:
    """Best value of each trial, and the best completed one so far.

    Attributes:
        points: (trial number, best value, state) of every trial with a finite value.
        leader: (trial number, best so far among completed trials whose last report was finite);
            it only ever improves.
    """

    points: tuple[tuple[int, float, TrialState], ...]
    leader: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Axis:
    """One axis of the parallel coordinates.

    Attributes:
        values: Position of every drawn trial on the axis.
        ticks: (position, text).
    """

    label: str
    values: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: an axis for each parameter, the metric last.

    Attributes:
        numbers: The drawn trials: those with a finite value.
        colours: Their values of the metric.
    """

    axes: tuple[Axis, ...]
    numbers: tuple[int, ...]
    colours: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """One trial's reports.

    Attributes:
        values: As reported; NaN where a report was not finite, so that the line has a gap.
    """

    number: int
    state: TrialState
    values: tuple[float, ...]

    @property
    def end(self) -> tuple[int, float] | None:
        """The interval and value of its last finite report; None without one."""
        finite = [pair for pair in enumerate(self.values, 1) if not math.isnan(pair[1])]
        return finite[-1] if finite else None


def history(trials: Sequence[TrialRecord], goal: PrimaryMetricGoal) -> History:
    """Return the points and the line of the history plot."""
    points: list[tuple[int, float, TrialState]] = []
    leader: list[tuple[int, float]] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        value = trial.best(goal)
        if value is None:
            continue
        points.append((trial.number, value, trial.state))
        if trial.told(goal) is not None:
            ahead = not leader or goal.is_better(value, leader[-1][1])
            leader.append((trial.number, value if ahead else leader[-1][1]))
    return History(tuple(points), tuple(leader))


def curves(trials: Sequence[TrialRecord]) -> tuple[Curve, ...]:
    """Return every trial's learning curve, empty ones left out."""
    return tuple(
        Curve(
            trial.number,
            trial.state,
            tuple(value if math.isfinite(value) else math.nan for value in trial.values),
        )
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.values
    )


def apart(
    points: Sequence[tuple[float, float]], *, across: float, up: float, reach: float
) -> list[float | None]:
    """Return a height for a text beside each point, so that no two texts overlap.

    Args:
        points: (x, y) of each, as shares (0 … 1) of a plot.
        across: A text's width: points nearer than it share one column of texts.
        up: A text's height.
        reach: How far a text may stand from its point's height.

    Returns:
        Heights near to the points' own; None for those without room.
    """
    heights: list[float | None] = [None] * len(points)
    columns: list[list[int]] = []
    for position in sorted(range(len(points)), key=lambda one: -points[one][0]):
        if columns and points[columns[-1][0]][0] - points[position][0] < across:
            columns[-1].append(position)
        else:
            columns.append([position])
    room = int(1 / up)
    for column in columns:
        column.sort(key=lambda one: points[one][1])
        if len(column) > room:
            column = [column[round(k * (len(column) - 1) / (room - 1))] for k in range(room)]
        lowest = up / 2
        placed = []
        for position in column:
            placed.append(max(points[position][1], lowest))
            lowest = placed[-1] + up
        highest = 1 - up / 2
        for k in reversed(range(len(placed))):
            placed[k] = min(placed[k], highest)
            highest = placed[k] - up
        for position, height in zip(column, placed, strict=True):
            if abs(height - points[position][1]) <= reach:
                heights[position] = height
    return heights


def parallel(trials: Sequence[TrialRecord], goal: PrimaryMetricGoal, metric: str) -> Parallel:
    """Return the axes of the parallel coordinates plot."""
    drawn: list[tuple[TrialRecord, float]] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        value = trial.best(goal)
        if value is not None:
            drawn.append((trial, value))
    keys: dict[str, None] = {}
    for trial, _ in drawn:
        keys.update(dict.fromkeys(trial.parameters))
    axes = [_axis(stripped(key), [trial.parameters.get(key) for trial, _ in drawn]) for key in keys]
    values = [value for _, value in drawn]
    if values:
        axes.append(_linear(metric, values))
    return Parallel(tuple(axes), tuple(trial.number for trial, _ in drawn), tuple(values))


def _axis(label: str, values: Sequence[object]) -> Axis:
    numbers = [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) != len(values):
        return _categories(label, values)
    if min(numbers) > 0 and max(numbers) / min(numbers) > _LOG_RATIO:
        return _logarithmic(label, numbers)
    return _linear(label, numbers)


def _categories(label: str, values: Sequence[object]) -> Axis:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    known = {text: float(position) for position, text in enumerate(sorted(set(texts)))}
    return Axis(
        label,
        tuple(known[text] for text in texts),
        tuple((position, _shortened(text)) for text, position in known.items()),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _linear(label: str, numbers: Sequence[float]) -> Axis:
    distinct = sorted(set(numbers))
    if len(distinct) <= 5:
        ticks = [(number, f"{number:.4g}") for number in distinct]
    else:
        low, high = distinct[0], distinct[-1]
        ticks = [
            (low + (high - low) * part / 4, f"{low + (high - low) * part / 4:.4g}")
            for part in range(5)
        ]
    return Axis(label, tuple(numbers), tuple(ticks))


def _logarithmic(label: str, numbers: Sequence[float]) -> Axis:
    positions = [math.log10(number) for number in numbers]
    low, high = min(positions), max(positions)
    powers = range(math.ceil(low), math.floor(high) + 1)
    step = max(1, len(powers) // _MAX_TICKS + 1)
    ticks = [(float(power), f"{10.0**power:g}") for power in powers[::step]]
    for end in (low, high):
        # An end's text would cover a power's that is close to it.
        if all(abs(end - position) > 0.08 * (high - low) for position, _ in ticks):
            ticks.append((end, f"{10**end:.2g}"))
    return Axis(label, tuple(positions), tuple(sorted(ticks)))
