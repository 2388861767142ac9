"""Draws a pipeline's graph as text: one line per step, and lanes for the data passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GLYPHS = {
    "Completed": "✔",
    "Reused": "↺",
    "Failed": "✘",
    "Canceled": "–",
    "Queued": "○",
}
RUNNING = "●"
# A wider drawing is unreadable; a list of names is clearer.
MOST_WIDTH = 24
MOST_INDENT = 8
MOST_NAMED = 2


def glyph_of(status: str) -> str:
    """Return the symbol of a step's state."""
    return GLYPHS.get(status, RUNNING)


def cells_of(
    before: Mapping[str, Sequence[str]], statuses: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return a table cell for each step, and the step; see `draw`.

    A graph that is too wide becomes a list in which each step names the steps that it waits for.
    """
    drawn = draw(before, statuses)
    if max((len(line) for line, _ in drawn), default=0) <= MOST_WIDTH:
        return [(f"{line}  {name}", name) for line, name in drawn]
    levels: dict[str, int] = {}
    cells = []
    for name, needed in before.items():
        levels[name] = 1 + max((levels[one] for one in needed), default=-1)
        after = ", ".join(needed[:MOST_NAMED])
        more = len(needed) - MOST_NAMED
        after += f" and {more} more" if more > 0 else ""
        indent = "  " * min(levels[name], MOST_INDENT)
        text = f"{indent}{glyph_of(statuses.get(name, ''))} {name}"
        cells.append((f"{text}  ← {after}" if after else text, name))
    return cells


def draw(before: Mapping[str, Sequence[str]], statuses: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the drawing to the left of each step.

    Args:
        before: Step → the steps that it waits for, in topological order.
        statuses: Step → its state.

    Returns:
        Pairs of drawing and step, in the order of `before`.
    """
    readers: dict[str, list[str]] = {name: [] for name in before}
    for name, needed in before.items():
        for one in needed:
            readers[one].append(name)
    lanes: list[str | None] = []  # the step whose outputs each lane carries
    rows: list[tuple[str, str]] = []
    for name, needed in before.items():
        taken = [index for index, lane in enumerate(lanes) if lane in needed]
        ending = [index for index in taken if readers[lanes[index] or ""][-1] == name]
        at = _lane_of(lanes, taken, ending)
        while len(lanes) <= at:
            lanes.append(None)
        first, last = min(taken, default=at), max([*taken, at])
        line = ""
        for index, lane in enumerate(lanes):
            if index == at:
                line += glyph_of(statuses.get(name, ""))
            elif index in taken:
                line += _joint(index, first, at, ends=index in ending)
            else:
                line += _passed(index, first, at, last, is_used=lane is not None)
            if index < len(lanes) - 1:
                line += "─" if first <= index < last else " "
        for index in ending:
            lanes[index] = None
        lanes[at] = name if readers[name] else lanes[at] if at not in ending else None
        while lanes and lanes[-1] is None:
            lanes.pop()
        rows.append((line.rstrip(), name))
    return rows


def _lane_of(lanes: list[str | None], taken: list[int], ending: list[int]) -> int:
    """Return the lane of a new step: its only input's lane, or a free one."""
    if len(taken) == 1 and ending == taken:
        return taken[0]
    start = max(taken, default=-1) + 1
    for index in range(start, len(lanes)):
        if lanes[index] is None:
            return index
    return max(start, len(lanes)) if start > 0 or lanes else 0


def _joint(index: int, first: int, at: int, *, ends: bool) -> str:
    """Return the character where a lane meets the line to the step that reads it, in lane `at`."""
    if index > at:
        return "╯" if ends else "┤"
    if index == first:
        return "╰" if ends else "├"
    return "┴" if ends else "┼"


def _passed(index: int, first: int, at: int, last: int, *, is_used: bool) -> str:
    """Return the character in a lane that the step does not read."""
    if is_used:
        return "┼" if first < index < at else "│"
    return "─" if first < index < at or at < index < last else " "
