"""Draws a run's metrics. matplotlib is imported on use, and only here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.files import replacing
from rayjobs.results.metrics import Series, number_text, thin

MOST_POINTS = 2000
MOST_PANELS = 24
COLUMNS = 2
# Distinguishable with color blindness. Source: Okabe and Ito, 2008.
COLOURS = ("#1f5fa8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", ":")


def plot(series: Sequence[Series], path: Path, *, title: str) -> Path:
    """Draw one panel per metric into `path` (.png, .svg or .pdf) and return it.

    Long series are thinned, keeping their extremes. Values that are not numbers leave gaps.

    Raises:
        NotFoundError: there is nothing to draw.
        UsageError: matplotlib is missing, or the suffix is not a picture format.
    """
    drawable = [[("", one)] for one in series if one.finite]
    if not drawable:
        raise NotFoundError("the run has logged no numbers that could be drawn")
    return _draw(drawable, path, title=title)


def plot_runs(runs: Sequence[tuple[str, Mapping[str, Series]]], path: Path, *, title: str) -> Path:
    """Draw one panel per metric with a curve for each run that has it; as `plot` otherwise.

    Args:
        runs: Each run's label and its series by name.

    Raises:
        NotFoundError: no run has logged finite numbers.
        UsageError: as for `plot`.
    """
    names = dict.fromkeys(name for _, known in runs for name in known)
    panels = [
        [(label, known[name]) for label, known in runs if name in known and known[name].finite]
        for name in names
    ]
    drawable = [panel for panel in panels if panel]
    if not drawable:
        raise NotFoundError("these runs have logged no numbers that could be drawn")
    return _draw(drawable, path, title=title)


def _draw(drawable: Sequence[Sequence[tuple[str, Series]]], path: Path, *, title: str) -> Path:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"{path}: give a name that ends in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure  # without pyplot: needs no display
    except ImportError as exc:
        raise UsageError(
            "drawing needs matplotlib, which is not installed; install rayjobs[plots]"
        ) from exc
    shown = drawable[:MOST_PANELS]
    columns = 1 if len(shown) == 1 else COLUMNS
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(4.8 * columns + 0.6, 2.9 * rows + 0.7), layout="constrained")
    hidden = len(drawable) - len(shown)
    figure.suptitle(title + (f" ({hidden} more metrics not shown)" if hidden else ""), fontsize=11)
    for index, panel in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        _panel(axes, panel)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=120)
    return path


def _panel(axes: object, panel: Sequence[tuple[str, Series]]) -> None:
    """Draw the curves of one metric; a single curve has no label."""
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    for at, (label, one) in enumerate(panel):
        few = thin(one, MOST_POINTS)
        values = [value if math.isfinite(value) else math.nan for value in few.values]
        marker = "o" if len(values) <= 60 else ""
        colour = COLOURS[at % len(COLOURS)]
        axes.plot(
            few.steps,
            values,
            color=colour,
            linestyle=STYLES[at // len(COLOURS) % len(STYLES)],
            linewidth=1.5,
            marker=marker,
            markersize=3.5,
            label=label,
        )
    first = panel[0][1]
    axes.set_title(first.name[:60], fontsize=10, loc="left")
    if len(panel) == 1 and not panel[0][0]:
        axes.set_title(f"last {number_text(first.last)}", fontsize=9, loc="right", color="#555555")
    else:
        axes.legend(fontsize=8, frameon=False)
    has_steps = all(one.has_steps for _, one in panel)
    axes.set_xlabel("step" if has_steps else "logged value", fontsize=9)
    axes.set_ylabel(first.name.rpartition("/")[2][:30], fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(steps := {step for _, one in panel for step in one.steps}) == 1:
        (only,) = steps  # else its axis would have fractions of a step
        axes.set_xlim(only - 1, only + 1)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
