"""The data of a sweep's plots: points, curves, axes with round ticks."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence

from rayjobs.core.text import counted
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.space import stripped
from rayjobs.tuning.trials import TrialRecord, TrialState

LABELS = {
    TrialState.COMPLETED: "completed",
    TrialState.CANCELED: "stopped",
    TrialState.FAILED: "failed",
    TrialState.RUNNING: "running",
    TrialState.PLANNED: "planned",
}
_LOG_RATIO = 50.0  # positive values with a larger ratio are drawn on a logarithmic axis
_MAX_TICKS = 12
_LINE = 18  # characters of a choice on one line


@dataclass(frozen=True)
class History:
    """Best value of each trial, and the best completed one so far.

    Attributes:
        points: (trial number, best value, state) of every trial with a finite value.
        without: Numbers of ended trials without a finite value.
        leader: (trial number, best so far among completed trials whose last report was finite);
            it only ever improves.
    """

    points: tuple[tuple[int, float, TrialState], ...]
    leader: tuple[tuple[int, float], ...]
    without: tuple[int, ...] = ()


@dataclass(frozen=True)
class Axis:
    """One axis of the parallel coordinates.

    Attributes:
        values: Position of every drawn trial on the axis.
        ticks: (position, text), ascending; round numbers that enclose all values.
    """

    label: str
    values: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest position."""
        known = [value for value in self.values if math.isfinite(value)]
        positions = [*known, *(position for position, _ in self.ticks)]
        return min(positions), max(positions)


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: an axis for each parameter, with the metric last.

    Attributes:
        numbers: The drawn trials: those that have ended, or have reported.
        colours: Their values of the metric; None for a trial without one, such as a failed one.
    """

    axes: tuple[Axis, ...]
    numbers: tuple[int, ...]
    colours: tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """One trial's reports.

    Attributes:
        values: As reported; NaN for a report that is not finite, so that the line has a gap.
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
    without: list[int] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        value = trial.best(goal)
        if value is None:
            if trial.is_final:
                without.append(trial.number)
            continue
        points.append((trial.number, value, trial.state))
        if trial.result(goal) is not None:
            ahead = not leader or goal.is_better(value, leader[-1][1])
            leader.append((trial.number, value if ahead else leader[-1][1]))
    return History(tuple(points), tuple(leader), tuple(without))


def curves(trials: Sequence[TrialRecord]) -> tuple[Curve, ...]:
    """Return every trial's learning curve, without empty ones."""
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
    """Return a height for each point's text, so that no two texts overlap.

    Args:
        points: (x, y) of each point, as fractions (0 … 1) of a plot.
        across: The width of a text: closer points share one column of texts.
        up: The height of a text.
        reach: How far a text may be from its point's height.

    Returns:
        Heights near those of the points; None for texts that do not fit.
    """
    heights: list[float | None] = [None] * len(points)
    columns: list[list[int]] = []
    for position in sorted(range(len(points)), key=lambda one: -points[one][0]):
        if columns and points[columns[-1][0]][0] - points[position][0] < across:
            columns[-1].append(position)
        else:
            columns.append([position])
    most = int(1 / up)
    for column in columns:
        column.sort(key=lambda one: points[one][1])
        if len(column) > most:
            column = [column[round(k * (len(column) - 1) / (most - 1))] for k in range(most)]
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
    """Return the axes of the parallel coordinates plot, which includes failed trials."""
    drawn = [
        (trial, trial.best(goal))
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state is not TrialState.PLANNED and (trial.is_final or trial.values)
    ]
    keys: dict[str, None] = {}
    for trial, _ in drawn:
        keys.update(dict.fromkeys(trial.parameters))
    axes = [_axis(stripped(key), [trial.parameters.get(key) for trial, _ in drawn]) for key in keys]
    known = [value for _, value in drawn if value is not None]
    if known:
        values = [math.nan if value is None else value for _, value in drawn]
        axes.append(_linear(metric, values, are_choices=False))
    return Parallel(
        tuple(axes), tuple(trial.number for trial, _ in drawn), tuple(value for _, value in drawn)
    )


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
        tuple((position, folded(text)) for text, position in known.items()),
    )


def folded(text: str) -> str:
    """Return a long text on up to three lines; for a longer one, its start and its end."""
    if len(text) > 3 * _LINE:
        half = (3 * _LINE - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "\n".join(textwrap.wrap(text, _LINE, break_on_hyphens=False)) or text


def nice_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return at most `most` round numbers, from at most `low` to at least `high`."""
    if not high > low:
        return [low]
    power = math.floor(math.log10((high - low) / most))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0):
        step = factor * 10.0**power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first + 1 <= most:
            break
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _linear(label: str, numbers: Sequence[float], *, are_choices: bool = True) -> Axis:
    distinct = sorted({number for number in numbers if math.isfinite(number)})
    are_choices &= len(distinct) <= 5 and all(
        float(f"{one:.2g}") == one or (one == int(one) and abs(one) < 10_000) for one in distinct
    )
    ticks = distinct if are_choices else nice_ticks(distinct[0], distinct[-1])
    return Axis(label, tuple(numbers), tuple((tick, f"{tick:g}") for tick in ticks))


def _logarithmic(label: str, numbers: Sequence[float]) -> Axis:
    positions = [math.log10(number) for number in numbers]
    low, high = math.floor(min(positions)), math.ceil(max(positions))
    step = max(1, (high - low) // _MAX_TICKS + 1)
    ticks = [10.0**power for power in range(low, high + 1, step)]
    if high - low <= 3:  # there is space for the necessary numbers between the powers
        ticks = sorted({*ticks, *(f * 10.0**p for p in range(low, high) for f in (2.0, 5.0))})
        least, most = min(numbers), max(numbers)
        below = [tick for tick in ticks if tick <= least * (1 + 1e-9)]
        above = [tick for tick in ticks if tick >= most * (1 - 1e-9)]
        ticks = [tick for tick in ticks if below[-1] <= tick <= above[0]]
    return Axis(label, tuple(positions), tuple((math.log10(tick), f"{tick:g}") for tick in ticks))


def counts_text(trials: Sequence[TrialRecord]) -> str:
    """Return counts of trials by state: ``10 trials: 5 completed, 1 stopped, 4 failed``."""
    parts = [
        f"{number} {word}"
        for state, word in LABELS.items()
        if (number := sum(1 for trial in trials if trial.state is state))
    ]
    return f"{counted(len(trials), 'trial')}: {', '.join(parts)}"
