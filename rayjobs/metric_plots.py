"""A picture of a run's metrics. matplotlib is imported on use, and only here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rayjobs.errors import NotFoundError, UsageError
from rayjobs.metrics import Series, number_text, thin

MOST_POINTS = 2000
MOST_PANELS = 24
COLUMNS = 2
COLOUR = "#1f5fa8"


def plot(series: Sequence[Series], path: Path, *, title: str) -> Path:
    """Draw one panel per metric into `path` (.png, .svg or .pdf) and return it.

    Long series are thinned, keeping their extremes. Values that are no numbers leave gaps.

    Raises:
        NotFoundError: there is nothing to draw.
        UsageError: matplotlib is missing, or the ending names no picture.
    """
    drawable = [one for one in series if one.finite]
    if not drawable:
        raise NotFoundError("the run has logged no numbers that could be drawn")
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
    for index, one in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        _panel(axes, one)
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        figure.savefig(temporary, dpi=120)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _panel(axes: object, one: Series) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axes, Axes)
    few = thin(one, MOST_POINTS)
    values = [value if math.isfinite(value) else math.nan for value in few.values]
    marker = "o" if len(values) <= 60 else ""
    axes.plot(few.steps, values, color=COLOUR, linewidth=1.5, marker=marker, markersize=3.5)
    axes.set_title(one.name[:60], fontsize=10, loc="left")
    axes.set_title(f"last {number_text(one.last)}", fontsize=9, loc="right", color="#555555")
    axes.set_xlabel("step" if one.has_steps else "logged value", fontsize=9)
    axes.set_ylabel(one.name.rpartition("/")[2][:30], fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
