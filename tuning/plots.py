"""Plots of a sweep with matplotlib: history, parallel coordinates, learning curves."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rayjobs.tuning import plot_data
from rayjobs.tuning.errors import SweepUsageError, TuningDependencyError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.results import best_trial
from rayjobs.tuning.trials import TrialRecord, TrialState

Kind = Literal["history", "parallel", "curves"]
KINDS: tuple[Kind, ...] = ("history", "parallel", "curves")

# Size of a number at a curve's end, as fractions of the plot's width and height.
_NUMBER_WIDTH = 0.03
_NUMBER_HEIGHT = 0.026
_NUMBER_REACH = 0.22
_MOST_NUMBERED = 20  # curves that are numbered
# For the parallel coordinates: characters of all axes' names side by side, and a tick's text as a
# fraction of an axis.
_LABEL_CHARACTERS = 130
_LINE_HEIGHT = 0.034
_BASE = -0.1  # where lines of trials without a value end, below the axes (0 … 1)

FORMATS = (".png", ".svg", ".pdf")

COLOURS = {
    TrialState.COMPLETED: "#1f6fb2",
    TrialState.CANCELED: "#d98e04",
    TrialState.FAILED: "#c0392b",
    TrialState.RUNNING: "#2e8b57",
    TrialState.PLANNED: "#999999",
}


def write_plot(
    path: str | Path,
    kind: Kind,
    trials: Sequence[TrialRecord],
    *,
    name: str,
    metric: str,
    goal: PrimaryMetricGoal,
) -> Path:
    """Draw one plot of a sweep into a file, create its folder, and return the path.

    Args:
        path: The suffix chooses the format: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        SweepUsageError: no such kind or format, or no trial has reported a finite value yet.
        TuningDependencyError: matplotlib is not installed.
    """
    target = Path(path)
    if target.suffix not in FORMATS:
        raise SweepUsageError(
            f"{target.name}: the format of a plot is unknown. End its name with one of "
            f"{', '.join(FORMATS)}."
        )
    figure = make_figure(kind, trials, name=name, metric=metric, goal=goal)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format=target.suffix[1:])
    return target


def make_figure(
    kind: Kind,
    trials: Sequence[TrialRecord],
    *,
    name: str,
    metric: str,
    goal: PrimaryMetricGoal,
) -> Any:
    """Return one plot as a matplotlib figure. Raises the same errors as `write_plot`."""
    check_drawable(kind, trials, metric=metric, goal=goal)
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise TuningDependencyError("Drawing a plot", "matplotlib", "plots") from exc
    # A separate Figure, without pyplot: no window system, no global state, thread-safe.
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    found = best_trial(trials, goal)
    best = None if found is None else found.number
    if kind == "history":
        what = f"best {metric} of each trial"
        _history(figure, plot_data.history(trials, goal), metric, best)
    elif kind == "curves":
        what = f"{metric} as each trial reported it"
        _curves(figure, plot_data.curves(trials), metric, best)
    else:
        what = f"parameters and best {metric} of each trial"
        _parallel(figure, plot_data.parallel(trials, goal, metric), goal, metric, best)
    # "$" would start a formula.
    best_text = "" if found is None else f" · best: trial {best}, {metric} = {found.best(goal):.6g}"
    figure.suptitle(f"{_plain(name)}: {_plain(what)}", fontsize=12)
    figure.axes[0].set_title(
        _plain(f"{plot_data.counts_text(trials)}{best_text}"),
        fontsize=9,
        color="#555555",
        loc="left",
    )
    return figure


def check_drawable(
    kind: str, trials: Sequence[TrialRecord], *, metric: str, goal: PrimaryMetricGoal
) -> None:
    """Check that the plot can be drawn.

    Raises:
        SweepUsageError: no such kind, or nothing to draw.
    """
    if kind not in KINDS:
        raise SweepUsageError(f"there is no plot {kind!r}. Use one of {', '.join(KINDS)}.")
    if trials and all(trial.is_final and trial.best(goal) is None for trial in trials):
        names = sorted({name for trial in trials for name in trial.metric_names})
        others = f" They reported: {', '.join(names)}." if names else ""
        raise SweepUsageError(
            f"none of the {len(trials)} trials reported a finite value of {metric!r}, so there is "
            f"nothing to draw.{others}"
        )
    if all(trial.best(goal) is None for trial in trials):
        raise SweepUsageError(
            f"none of the {len(trials)} trials has reported a finite value of {metric!r} yet, "
            "so there is nothing to draw. Wait for the first report."
        )


def _history(figure: Any, data: plot_data.History, metric: str, best: int | None) -> None:
    axes = figure.add_subplot()
    for state, colour in COLOURS.items():
        chosen = [(number, value) for number, value, at in data.points if at is state]
        if chosen:
            mark = "x" if state is TrialState.FAILED else "o"
            label = plot_data.LABELS[state]
            axes.scatter(*zip(*chosen, strict=True), s=28, color=colour, label=label, marker=mark)
    if data.without:
        axes.scatter(
            data.without,
            [0.02] * len(data.without),
            s=34,
            marker="x",
            color=COLOURS[TrialState.FAILED],
            transform=axes.get_xaxis_transform(),
            label="ended without a value",
            clip_on=False,
        )
    if data.leader:
        xs, ys = zip(*data.leader, strict=True)
        axes.step(xs, ys, where="post", color="#222222", linewidth=1.4, label="best so far")
    # Matplotlib's limits ignore the marks on the base line.
    numbers = [*(number for number, _, _ in data.points), *data.without]
    if numbers:
        margin = max(0.6, 0.03 * (max(numbers) - min(numbers)))
        axes.set_xlim(min(numbers) - margin, max(numbers) + margin)
    axes.set_xlabel("trial (in order of start)")
    axes.set_ylabel(f"best {_plain(metric)}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(y=0.12)
    axes.grid(alpha=0.25)
    _legend(figure)
    for number, value, _ in data.points:
        if number == best:
            _mark_best(axes, number, value, best)


def _legend(figure: Any) -> None:
    """Draw the legend outside the axes, where it covers no marks."""
    figure.legend(loc="outside lower center", ncols=6, fontsize=9)


def _mark_best(axes: Any, x: float, y: float, best: int) -> None:
    is_left = x < sum(axes.get_xlim()) / 2  # its text is on the side with more space
    axes.scatter([x], [y], s=130, facecolors="none", edgecolors="#222222", linewidths=1.6, zorder=5)
    axes.annotate(
        f"best: trial {best}",
        (x, y),
        xytext=(10 if is_left else -10, 8),
        textcoords="offset points",
        ha="left" if is_left else "right",
        fontsize=8,
        fontweight="bold",
        zorder=6,
    )


def _curves(figure: Any, data: Sequence[plot_data.Curve], metric: str, best: int | None) -> None:
    axes = figure.add_subplot()
    labelled: set[TrialState] = set()
    for curve in data:
        label = plot_data.LABELS[curve.state] if curve.state not in labelled else None
        labelled.add(curve.state)
        intervals = range(1, len(curve.values) + 1)
        is_best = curve.number == best
        axes.plot(
            intervals,
            curve.values,
            color=COLOURS[curve.state],
            alpha=1.0 if is_best else 0.6,
            linewidth=2.8 if is_best else 1.2,
            zorder=4 if is_best else 2,
            marker="o",
            markersize=3,
            label=label,
            gid=f"curves-t{curve.number}",
        )
        if curve.end is not None and curve.state is TrialState.FAILED:
            axes.scatter(*curve.end, s=44, marker="x", color=COLOURS[curve.state], zorder=5)
    axes.margins(x=0.08, y=0.12)  # before placing the texts within the limits
    chosen = list(data)
    if len(data) > _MOST_NUMBERED:  # too many numbers to read: only number the best
        chosen = [curve for curve in data if curve.number == best]
    for curve in data:
        if curve.number == best and curve.end is not None:
            _mark_best(axes, *curve.end, best)
            chosen.remove(curve)
    _number_curves(axes, chosen)
    axes.set_xlabel(f"report of {_plain(metric)} (1 is a trial's first)")
    axes.set_ylabel(_plain(metric))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    _legend(figure)


def _number_curves(axes: Any, data: Sequence[plot_data.Curve]) -> None:
    """Write each trial's number at its curve's end, without overlaps."""
    ends = [(curve, *end) for curve in data if (end := curve.end) is not None]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set_ylim(low, high)
    heights = plot_data.apart(
        [((x - left) / (right - left), (y - low) / (high - low)) for _, x, y in ends],
        across=_NUMBER_WIDTH,
        up=_NUMBER_HEIGHT,
        reach=_NUMBER_REACH,
    )
    for (curve, x, y), height in zip(ends, heights, strict=True):
        if height is None:
            continue  # not all of them fit; the page names each curve
        axes.annotate(
            str(curve.number),
            (x, (y - low) / (high - low)),
            xytext=(x + _NUMBER_WIDTH / 3 * (right - left), height),
            xycoords=axes.get_xaxis_transform(),
            textcoords=axes.get_xaxis_transform(),
            fontsize=7,
            color=COLOURS[curve.state],
            va="center",
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.3},
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": COLOURS[curve.state]},
        )


def _parallel(
    figure: Any,
    data: plot_data.Parallel,
    goal: PrimaryMetricGoal,
    metric: str,
    best: int | None,
) -> None:
    import numpy
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    axes = figure.add_subplot()
    known = [value for value in data.colours if value is not None]
    low, high = min(known), max(known)
    shades = ScalarMappable(
        Normalize(low, high if high > low else low + 1),
        "viridis" if goal is PrimaryMetricGoal.MAXIMIZE else "viridis_r",
    )
    heights = [_unit(axis) for axis in data.axes]
    for position, (number, value) in enumerate(zip(data.numbers, data.colours, strict=True)):
        levels = [
            scale(axis.values[position]) for scale, axis in zip(heights, data.axes, strict=True)
        ]
        columns = range(len(data.axes))
        if value is None:  # its line ends below the metric's axis
            levels[-1] = _BASE
            failed = COLOURS[TrialState.FAILED]
            axes.plot(columns, levels, color=failed, alpha=0.55, linewidth=1, linestyle="--",
                      zorder=2, gid=f"parallel-t{number}")  # fmt: skip
            axes.scatter([columns[-1]], [_BASE], marker="x", s=44, color=failed, zorder=6)
            continue
        is_best = number == best
        rank = goal.sign * (value - low) / ((high - low) or 1)
        if is_best:
            axes.plot(columns, levels, color="#222222", linewidth=5, zorder=4)
        axes.plot(
            columns,
            levels,
            color=shades.to_rgba(numpy.asarray([value]))[0],
            alpha=1.0 if is_best else 0.75,
            linewidth=3 if is_best else 1.3,
            zorder=5 if is_best else 3 + 0.1 * rank,
            gid=f"parallel-t{number}",
        )
    if any(value is None for value in data.colours):
        axes.annotate("ended without a value", (len(data.axes) - 1, _BASE), xytext=(-8, -3),
                      textcoords="offset points", fontsize=7, ha="right", va="top",
                      color=COLOURS[TrialState.FAILED])  # fmt: skip
    for column, (scale, axis) in enumerate(zip(heights, data.axes, strict=True)):
        axes.plot([column, column], [0, 1], color="#555555", linewidth=0.9, zorder=6)
        free_from = -1.0  # the height above the last text
        for value, text in axis.ticks:
            axes.plot([column - 0.012, column + 0.012], [scale(value)] * 2, color="#555555",
                      linewidth=0.9, zorder=6)  # fmt: skip
            half = _LINE_HEIGHT / 2 * (text.count("\n") + 1)
            if scale(value) - half < free_from:
                continue
            free_from = scale(value) + half
            axes.annotate(
                _plain(text),
                (column, scale(value)),
                xytext=(5, 0),
                textcoords="offset points",
                fontsize=7.5,
                va="center",
                zorder=7,
                bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.6},
            )
    across = max(6, _LABEL_CHARACTERS // len(data.axes))
    labels = [_plain("\n".join(textwrap.wrap(axis.label, across))) for axis in data.axes]
    axes.set_xticks(range(len(data.axes)), labels, fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(_BASE - 0.06, 1.06)
    axes.set_xlim(-0.1, len(data.axes) - 1 + 0.3)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", length=0)
    figure.colorbar(shades, ax=axes, label=_plain(f"best {metric}"), fraction=0.04, pad=0.02)


def _unit(axis: plot_data.Axis) -> Any:
    low, high = axis.ends
    if high <= low:
        return lambda value: 0.5
    return lambda value: (value - low) / (high - low)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
