"""Draws the graph of a run with matplotlib: a box for each step, with its state and run time."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.pipelines.drawing import glyph_of
from rayjobs.pipelines.views import StepView, critical_path

FORMATS = (".svg", ".png", ".pdf")
# Edge and fill of a box, by state; steps in any other state are running.
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
# The picture must fit a screen: longer rows continue below, taller columns to the right.
MOST_COLUMNS, MOST_ROWS = 6, 16
GAP_PART = 0.6  # between the parts of a tall column
LANE = 0.18  # from a box to the lines that pass it
GAP_BAND = 0.9
TOP, BOTTOM = 0.7, 0.4
NAME_CHARACTERS = 26
MOST_INCHES = 100.0


Way = tuple[tuple[float, float], ...]  # the points of a line, in inches


@dataclass(frozen=True)
class Layout:
    """The positions of boxes in a picture, in inches from its lower left corner.

    Attributes:
        centres: The centre of each step's box.
        bands: The row of columns of each step, from 0 at the top.
        tops: The upper edge of the highest box of each of these rows.
    """

    centres: Mapping[str, tuple[float, float]]
    bands: Mapping[str, int]
    tops: Sequence[float]
    width: float
    height: float


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
    """Return column and row of each step; columns are centered, steps are near predecessors."""
    levels = levels_of(before)
    columns: dict[int, list[str]] = {}
    for name, level in levels.items():
        columns.setdefault(level, []).append(name)
    positions: dict[str, tuple[int, float]] = {}
    for level in sorted(columns):
        names = columns[level]

        def near(name: str) -> float:
            rows = [positions[one][1] for one in before[name]]
            return sum(rows) / len(rows) if rows else 0.0

        if level:
            names.sort(key=near)
        for index, name in enumerate(names):
            positions[name] = (level, index - (len(names) - 1) / 2)
    return positions


def layout_of(before: Mapping[str, Sequence[str]]) -> Layout:
    """Return the position of each step's box.

    Args:
        before: Step → the steps that it waits for; each step comes after those.
    """
    columns: dict[int, list[str]] = {}
    for name, (level, _row) in sorted(places_of(before).items(), key=lambda one: one[1]):
        columns.setdefault(level, []).append(name)
    bands: list[list[list[list[str]]]] = []  # band → level → part → steps
    used = MOST_COLUMNS
    for _, names in sorted(columns.items()):
        count = -(-len(names) // MOST_ROWS)
        rows = -(-len(names) // count)
        if used + count > MOST_COLUMNS:
            bands.append([])
            used = 0
        bands[-1].append([names[at : at + rows] for at in range(0, len(names), rows)])
        used += count
    lefts: dict[str, float] = {}
    downs: dict[str, float] = {}  # from the top
    of_band: dict[str, int] = {}
    tops: list[float] = []
    width, top = 0.0, TOP
    for number, one_band in enumerate(bands):
        tall = max(len(part) for parts in one_band for part in parts) * (HEIGHT + GAP_Y)
        tops.append(top)
        left = GAP_X
        for parts in one_band:
            for part in parts:
                for index, name in enumerate(part):
                    lefts[name], of_band[name] = left, number
                    row = index - (len(part) - 1) / 2
                    downs[name] = top + tall / 2 + row * (HEIGHT + GAP_Y)
                left += WIDTH + GAP_PART
            left += GAP_X - GAP_PART
        width = max(width, left)
        top += tall + GAP_BAND
    height = top - GAP_BAND + BOTTOM
    centres = {name: (lefts[name] + WIDTH / 2, height - downs[name]) for name in before}
    uppers = [height - one - GAP_Y / 2 for one in tops]
    return Layout(centres, of_band, uppers, width, height)


def ways_of(layout: Layout, before: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Way]:
    """Return the points of each line within a row of columns; none passes through a box.

    A line that would cross a box goes through the nearest gap of that column instead.

    Args:
        layout: Where the boxes are.
        before: Step → the steps that it waits for.
    """
    columns: dict[tuple[int, float], list[float]] = {}
    for name, (x, y) in layout.centres.items():
        columns.setdefault((layout.bands[name], x), []).append(y)
    taken: Counter[tuple[int, float, float]] = Counter()
    found: dict[tuple[str, str], Way] = {}
    for name, needed in before.items():
        for one in needed:
            band = layout.bands[one]
            if band != layout.bands[name]:
                continue
            (from_x, from_y), (to_x, to_y) = layout.centres[one], layout.centres[name]
            end = (to_x - WIDTH / 2, to_y)
            way = [(from_x + WIDTH / 2, from_y)]
            for x in sorted(x for at, x in columns if at == band and from_x < x < to_x):
                left, right = x - WIDTH / 2 - LANE, x + WIDTH / 2 + LANE
                heights = [_height_at(at, way[-1], end) for at in (left, right)]
                boxes = columns[band, x]
                reach = HEIGHT / 2 + LANE / 4
                if all(max(heights) < y - reach or min(heights) > y + reach for y in boxes):
                    way += [(left, heights[0]), (right, heights[1])]  # a later detour starts here
                    continue
                gap = min(_gaps(boxes), key=lambda y: abs(y - sum(heights) / 2))
                taken[band, x, gap] += 1
                shift = (taken[band, x, gap] % 3 - 1) * GAP_Y / 5  # keep the lines of one gap apart
                way += [(left, gap + shift), (right, gap + shift)]
            found[one, name] = (*way, end)
    return found


def _height_at(x: float, start: tuple[float, float], end: tuple[float, float]) -> float:
    part = (x - start[0]) / (end[0] - start[0])
    return start[1] + part * (end[1] - start[1])


def _gaps(boxes: Sequence[float]) -> list[float]:
    """Return the middles of the gaps of a column: above, between and below its boxes."""
    ys = sorted(boxes)
    outside = (HEIGHT + GAP_Y) / 2
    return [ys[0] - outside, *((a + b) / 2 for a, b in pairwise(ys)), ys[-1] + outside]


def write_plot(path: Path, views: Sequence[StepView], order: Sequence[str], *, title: str) -> Path:
    """Draw the graph of a run into a file and return its path.

    Args:
        path: The suffix chooses the format: ``.svg``, ``.png`` or ``.pdf``.
        views: The current state of the steps.
        order: Their names, in topological order.
        title: The title above the graph.

    Raises:
        UsageError: the format is unknown, matplotlib is missing, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end with {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("a plot needs matplotlib: pip install matplotlib") from None
    by_name = {view.name: view for view in views}
    before = {name: by_name[name].row.after for name in order if name in by_name}
    layout = layout_of(before)
    size = (min(MOST_INCHES, layout.width), min(MOST_INCHES, layout.height))
    figure = Figure(figsize=size, dpi=110, facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, layout.width)
    axes.set_ylim(0, layout.height)
    centres = layout.centres
    critical = critical_path(list(views))
    along = set(pairwise(critical))
    ways = ways_of(layout, before)
    for name, needed in before.items():
        for one in needed:
            is_critical = (one, name) in along
            if (one, name) in ways:
                _arrow(axes, ways[one, name], is_critical=is_critical)
            else:
                turn = layout.tops[layout.bands[name]] + GAP_BAND / 2
                _arrow_down(axes, centres[one], centres[name], turn, is_critical=is_critical)
    for name in before:
        _box(axes, centres[name], by_name[name], is_critical=name in critical)
    axes.text(GAP_X, layout.height - 0.25, title, fontsize=11, weight="bold", va="center")
    if len(critical) > 1:
        total = sum(view.ran_s for view in views if view.name in critical)
        axes.text(
            GAP_X,
            BOTTOM / 2,
            f"thick lines: the critical path, {duration_text(total)} of run time",
            fontsize=8,
            color="#444444",
            va="center",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--plot {path}: the file cannot be written ({error.strerror})") from None
    return path


def _arrow(axes: Any, way: Way, *, is_critical: bool) -> None:
    colour = "#333333" if is_critical else "#999999"
    width = 2.2 if is_critical else 1.0
    if len(way) > 2:
        xs, ys = zip(*way[:-1], strict=True)
        axes.plot(xs, ys, color=colour, linewidth=width, zorder=0.5, solid_joinstyle="round")
    axes.annotate(
        "",
        xy=way[-1],
        xytext=way[-2],
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "linewidth": width,
            "shrinkA": 0,
            "shrinkB": 1,
            "connectionstyle": "arc3",
        },
    )


def _arrow_down(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    turn: float,
    *,
    is_critical: bool,
) -> None:
    """Draw an arrow to a lower row of columns, between the columns and above that row.

    Like all arrows, it leaves a box on the right and enters on the left. It has its own lanes, so
    that boxes that are only adjacent do not seem connected.
    """
    colour = "#333333" if is_critical else "#999999"
    width = 2.2 if is_critical else 1.0
    out, into = start[0] + WIDTH / 2 + LANE, end[0] - WIDTH / 2 - LANE
    leaves, comes = start[1] - HEIGHT / 5, end[1] + HEIGHT / 5
    xs = [start[0] + WIDTH / 2, out, out, into, into]
    ys = [leaves, leaves, turn, turn, comes]
    axes.plot(xs, ys, color=colour, linewidth=width, zorder=0.5, solid_joinstyle="round")
    axes.annotate(
        "",
        xy=(end[0] - WIDTH / 2, comes),
        xytext=(into - 0.02, comes),
        arrowprops={
            "arrowstyle": "-|>,head_length=0.25,head_width=0.12",
            "color": colour,
            "linewidth": width,
            "shrinkA": 0,
            "shrinkB": 1,
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
    # matplotlib must not read a name between dollar signs as a formula.
    name = textwrap.shorten(view.name, NAME_CHARACTERS, placeholder="…").replace("$", r"\$")
    name = name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"
    axes.text(x, y + 0.14, name, ha="center", va="center", fontsize=9.5, weight="bold")
    state = f"{glyph_of(view.status)} {view.status}"
    if view.job.started_at is not None and view.row.original is None:
        state += f", {duration_text(view.ran_s)}"
    axes.text(x, y - 0.18, state, ha="center", va="center", fontsize=8.5, color=edge)
