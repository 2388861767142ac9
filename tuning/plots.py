"""A sweep drawn as PNG (matplotlib): history, parallel coordinates, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rayjobs.tuning import plot_data
from rayjobs.tuning.errors import SweepUsageError, TuningDependencyError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.trials import TrialRecord, TrialState

Kind = Literal["history", "parallel", "curves"]
KINDS: tuple[Kind, ...] = ("history", "parallel", "curves")

# Of a number beside a curve, as shares of the plot's width and height.
_NUMBER_WIDTH = 0.03
_NUMBER_HEIGHT = 0.026
_NUMBER_REACH = 0.22

COLOURS = {
    TrialState.COMPLETED: "#1f6fb2",
    TrialState.CANCELED: "#d98e04",
    TrialState.FAILED: "#c0392b",
    TrialState.RUNNING: "#2e8b57",
    TrialState.PLANNED: "#999999",
}
LABELS = {
    TrialState.COMPLETED: "completed",
    TrialState.CANCELED: "stopped",
    TrialState.FAILED: "failed",
    TrialState.RUNNING: "running",
    TrialState.PLANNED: "planned",
}


def write_png(
    path: str | Path,
    kind: Kind,
    trials: Sequence[TrialRecord],
    *,
    name: str,
    metric: str,
    goal: PrimaryMetricGoal,
) -> Path:
    """Draw one plot of a sweep into a PNG file and return its path; makes the folder for it.

    Raises:
        SweepUsageError: no such kind, or no trial has reported a finite value yet.
        TuningDependencyError: matplotlib is not installed.
    """
    check_drawable(kind, trials, metric=metric, goal=goal)
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise TuningDependencyError("Drawing a PNG", "matplotlib", "plots") from exc
    # A Figure of its own, without pyplot: no window system, no global state, safe in threads.
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    if kind == "history":
        _history(figure, plot_data.history(trials, goal), metric)
    elif kind == "curves":
        _curves(figure, plot_data.curves(trials), metric)
    else:
        _parallel(figure, plot_data.parallel(trials, goal, metric), goal, metric)
    # "$" would start a formula.
    figure.suptitle(_plain(name), fontsize=12)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png")
    return target


def check_drawable(
    kind: str, trials: Sequence[TrialRecord], *, metric: str, goal: PrimaryMetricGoal
) -> None:
    """Refuse what cannot be drawn.

    Raises:
        SweepUsageError: no such kind, or nothing to draw.
    """
    if kind not in KINDS:
        raise SweepUsageError(f"there is no plot {kind!r}. Use one of {', '.join(KINDS)}.")
    if all(trial.best(goal) is None for trial in trials):
        raise SweepUsageError(
            f"none of the {len(trials)} trials has reported a finite value of {metric!r} yet, "
            "so there is nothing to draw. Wait for the first report."
        )


def _history(figure: Any, data: plot_data.History, metric: str) -> None:
    axes = figure.add_subplot()
    for state, colour in COLOURS.items():
        chosen = [(number, value) for number, value, at in data.points if at is state]
        if chosen:
            axes.scatter(*zip(*chosen, strict=True), s=28, color=colour, label=LABELS[state])
    if data.leader:
        xs, ys = zip(*data.leader, strict=True)
        axes.step(xs, ys, where="post", color="#222222", linewidth=1.4, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"best {_plain(metric)}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=9)


def _curves(figure: Any, data: Sequence[plot_data.Curve], metric: str) -> None:
    axes = figure.add_subplot()
    labelled: set[TrialState] = set()
    for curve in data:
        label = LABELS[curve.state] if curve.state not in labelled else None
        labelled.add(curve.state)
        intervals = range(1, len(curve.values) + 1)
        axes.plot(
            intervals,
            curve.values,
            color=COLOURS[curve.state],
            alpha=0.75,
            linewidth=1.3,
            marker="o",
            markersize=3,
            label=label,
        )
    _number_curves(axes, data)
    axes.set_xlabel("interval (report of the metric)")
    axes.set_ylabel(_plain(metric))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=9)


def _number_curves(axes: Any, data: Sequence[plot_data.Curve]) -> None:
    """Write each trial's number beside its curve's end, none over another."""
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
            continue  # no room for all of them; the page names each curve
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


def _parallel(figure: Any, data: plot_data.Parallel, goal: PrimaryMetricGoal, metric: str) -> None:
    import numpy
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    axes = figure.add_subplot()
    low, high = min(data.colours), max(data.colours)
    shades = ScalarMappable(
        Normalize(low, high if high > low else low + 1),
        "viridis" if goal is PrimaryMetricGoal.MAXIMIZE else "viridis_r",
    )
    colours = shades.to_rgba(numpy.asarray(data.colours))
    # The best are drawn last, above the others.
    order = sorted(
        range(len(data.numbers)), key=lambda position: goal.sign * data.colours[position]
    )
    heights = [_unit(axis) for axis in data.axes]
    for position in order:
        axes.plot(
            range(len(data.axes)),
            [scale(axis.values[position]) for scale, axis in zip(heights, data.axes, strict=True)],
            color=colours[position],
            alpha=0.8,
            linewidth=1.4,
        )
    for column, (scale, axis) in enumerate(zip(heights, data.axes, strict=True)):
        axes.axvline(column, color="#555555", linewidth=0.8)
        for value, text in axis.ticks:
            axes.annotate(
                _plain(text),
                (column, scale(value)),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
                bbox={"facecolor": "white", "alpha": 0.65, "linewidth": 0, "pad": 0.4},
            )
    axes.set_xticks(range(len(data.axes)), [_plain(axis.label) for axis in data.axes])
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(data.axes) - 1 + 0.35)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)
    figure.colorbar(shades, ax=axes, label=_plain(metric), fraction=0.04, pad=0.02)


def _unit(axis: plot_data.Axis) -> Any:
    low, high = min(axis.values), max(axis.values)
    if high <= low:
        return lambda value: 0.5
    return lambda value: (value - low) / (high - low)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
