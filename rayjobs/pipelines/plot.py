"""The graph of a run as a picture: a box for each step with its state and time, by matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.core.text import duration_text
from rayjobs.pipelines.drawing import glyph_of
from rayjobs.pipelines.views import StepView, critical_path

FORMATS = (".svg", ".png", ".pdf")
# Edge and fill of a box, by state; others are running.
COLOURS = {
    "Completed": ("#1f6fb2", "#e3eef8"),
    "Reused": ("#6a51a3", "#eeeaf6"),
    "Failed": ("#c0392b", "#fbe5e2"),
    "Canceled": ("#d98e04", "#fdf1da"),
    "Queued": ("#888888", "#f2f2f2"),
}
RUNNING = ("#2e8b57", "#e2f2e9")
WIDTH, HEIGHT = 2.3, 0.8  # of a box, in inches
GAP_X, GAP_Y = 0.9, 0.35
NAME_CHARACTERS = 26
MOST_INCHES = 100.0


def levels_of(before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each step: one more than the last of those that it waits for.

    Args:
        before: Step → the steps that it waits for; each step comes after those.
    """
    found: dict[str, int] = {}
    for name, needed in before.items():
        found[name] = 1 + max((found[one] for one in needed), default=-1)
    return found


def places_of(before: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, float]]:
    """Return column and row of each step; a column is centred, its steps near those before them."""
    levels = levels_of(before)
    columns: dict[int, list[str]] = {}
    for name, level in levels.items():
        columns.setdefault(level, []).append(name)
    places: dict[str, tuple[int, float]] = {}
    for level in sorted(columns):
        names = columns[level]

        def near(name: str) -> float:
            rows = [places[one][1] for one in before[name]]
            return sum(rows) / len(rows) if rows else 0.0

        if level:
            names.sort(key=near)
        for index, name in enumerate(names):
            places[name] = (level, index - (len(names) - 1) / 2)
    return places


def write_plot(path: Path, views: Sequence[StepView], order: Sequence[str], *, title: str) -> Path:
    """Draw the graph of a run into a file and return its path.

    Args:
        path: The suffix chooses the format: ``.svg``, ``.png`` or ``.pdf``.
        views: The steps as they stand.
        order: Their names, each after all that it waits for.
        title: Above the graph.

    Raises:
        UsageError: no such format, matplotlib is not installed, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end with {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("a plot needs matplotlib: pip install matplotlib") from None
    by_name = {view.name: view for view in views}
    before = {name: by_name[name].row.after for name in order if name in by_name}
    places = places_of(before)
    columns = 1 + max(column for column, _ in places.values())
    rows = max(sum(1 for c, _ in places.values() if c == column) for column in range(columns))
    width = min(MOST_INCHES, columns * (WIDTH + GAP_X) + GAP_X)
    height = min(MOST_INCHES, rows * (HEIGHT + GAP_Y) + 1.1)
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, columns * (WIDTH + GAP_X) + GAP_X)
    middle = rows * (HEIGHT + GAP_Y) / 2
    axes.set_ylim(-0.4, rows * (HEIGHT + GAP_Y) + 0.7)
    centres = {
        name: (
            GAP_X + column * (WIDTH + GAP_X) + WIDTH / 2,
            middle - row * (HEIGHT + GAP_Y),
        )
        for name, (column, row) in places.items()
    }
    critical = critical_path(list(views))
    along = set(pairwise(critical))
    for name, needed in before.items():
        for one in needed:
            _arrow(axes, centres[one], centres[name], is_critical=(one, name) in along)
    for name in before:
        _box(axes, centres[name], by_name[name], is_critical=name in critical)
    axes.text(GAP_X, rows * (HEIGHT + GAP_Y) + 0.45, title, fontsize=11, weight="bold", va="center")
    if len(critical) > 1:
        total = sum(view.ran_s for view in views if view.name in critical)
        axes.text(
            GAP_X,
            -0.18,
            f"thick: the critical path, {duration_text(total)} of running",
            fontsize=8,
            color="#444444",
            va="center",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--plot {path}: it cannot be written ({error.strerror})") from None
    return path


def _arrow(
    axes: Any, start: tuple[float, float], end: tuple[float, float], *, is_critical: bool
) -> None:
    axes.annotate(
        "",
        xy=(end[0] - WIDTH / 2, end[1]),
        xytext=(start[0] + WIDTH / 2, start[1]),
        arrowprops={
            "arrowstyle": "-|>",
            "color": "#333333" if is_critical else "#999999",
            "linewidth": 2.2 if is_critical else 1.0,
            "shrinkA": 0,
            "shrinkB": 1,
            "connectionstyle": "arc3",
        },
    )


def _box(axes: Any, centre: tuple[float, float], view: StepView, *, is_critical: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    edge, fill = COLOURS.get(view.status, RUNNING)
    x, y = centre
    axes.add_patch(
        FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2),
            WIDTH,
            HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.08",
            edgecolor=edge,
            facecolor=fill,
            linewidth=2.4 if is_critical else 1.2,
        )
    )
    # A name between dollar signs is not a formula.
    name = textwrap.shorten(view.name, NAME_CHARACTERS, placeholder="…").replace("$", r"\$")
    name = name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"
    axes.text(x, y + 0.14, name, ha="center", va="center", fontsize=9.5, weight="bold")
    state = f"{glyph_of(view.status)} {view.status}"
    if view.job.started_at is not None and view.row.original is None:
        state += f", {duration_text(view.ran_s)}"
    axes.text(x, y - 0.18, state, ha="center", va="center", fontsize=8.5, color=edge)
