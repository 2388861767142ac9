"""Formats text for people: times, sizes, plain tables, JSON. Cheap to import."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from rayjobs.core.clock import to_text
from rayjobs.core.terminal import one_line

_COLOURS = {
    "Completed": "green",
    "Failed": "red",
    "Canceled": "yellow",
    "Running": "cyan",
    "Finalizing": "cyan",
    "Preparing": "cyan",
    "Provisioning": "cyan",
}


def print_json(data: Any) -> None:
    """Print one JSON document to stdout; times and enumerations become text."""
    click.echo(json.dumps(data, indent=2, default=_plain, ensure_ascii=False))


def print_json_rows(rows: Sequence[Any]) -> None:
    """Print a JSON list with one row per line, which is fast for thousands of rows."""
    encode = json.JSONEncoder(default=_plain, ensure_ascii=False).encode
    lines = [encode(row) for row in rows]
    click.echo("[\n  " + ",\n  ".join(lines) + "\n]" if lines else "[]")


def print_json_line(data: Any) -> None:
    """Print one JSON object on one line, for streams of objects."""
    click.echo(json.dumps(data, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_text(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "items"):
        return dict(value.items())
    return str(value)


def state_colour(state: str) -> str:
    """Return the color of a job's state."""
    return _COLOURS.get(state, "white")


def ago_text(at: datetime | None, *, now: datetime | None = None) -> str:
    """Return how long ago something was, e.g. ``3m ago``; a dash for None."""
    if at is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if seconds < 1:
        return "just now"
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)}{unit} ago"
    return f"{int(seconds)}s ago"


def local_time(at: datetime | None) -> str:
    """Return a time in the user's own time zone, to the second."""
    return "-" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def width() -> int:
    """Return the number of columns of stdout; a large number for files, so that nothing is cut."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000


def talk(text: str) -> str:
    """Return a message for stderr: wrapped at words on a terminal, unchanged elsewhere."""
    if not sys.stderr.isatty():
        return text
    columns = shutil.get_terminal_size((80, 24)).columns
    return wrapped(text, max(40, columns))


def wrapped(text: str, columns: int) -> str:
    """Return text with its lines wrapped at `columns`; words are never cut.

    Spaces separate words, so flags, paths and ids stay whole. A continuation line is indented by
    two more than its first. Lines with columns (two spaces in a row) stay unchanged.
    """
    return "\n".join(_wrapped_line(line, columns) for line in text.split("\n"))


def _wrapped_line(line: str, columns: int) -> str:
    stripped = line.lstrip(" ")
    indent = len(line) - len(stripped)
    if _seen(line) <= columns or "  " in stripped.rstrip():
        return line
    bullet = 2 if stripped.startswith(("- ", "* ")) else 0
    lines, current, used = [], " " * indent, indent
    is_first = True
    for word in stripped.split(" "):
        size = _seen(word)
        if not is_first and used + 1 + size > columns:
            lines.append(current)
            used = indent + (bullet or 2)
            current, is_first = " " * used, True
        current += word if is_first else f" {word}"
        used += size + (not is_first)
        is_first = False
    return "\n".join([*lines, current])


def _seen(text: str) -> int:
    """Return how many columns a text takes; colors take none."""
    return len(click.unstyle(text))


def cut(text: str, most: int) -> str:
    """Return `text` cut to `most` characters, with a mark at the cut."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"


def cut_inside(text: str, most: int) -> str:
    """Return `text` with at most `most` characters; its end stays, because names differ there.

    ``digits-with-augmentation[12]`` becomes ``digits-wit…ion[12]``.
    """
    if len(text) <= most:
        return text
    end = max(1, most // 2 - 1)
    return f"{text[: most - end - 1]}…{text[-end:]}"


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    *,
    right: Sequence[int] = (),
    colours: Sequence[Sequence[str | None]] | None = None,
    columns: int | None = None,
) -> str:
    """Return aligned columns under a header.

    Args:
        right: Columns that are aligned to the right.
        colours: For each row, the color of each cell; None: no color.
        columns: The width into which the last column is cut to fit; None: the terminal's.
    """
    # Column by column: ten thousand jobs have sixty thousand cells.
    # Names chosen by a job or another user must not forge a line or move the cursor.
    cells = [[title] for title in header]
    for column, values in zip(cells, zip(*rows, strict=True), strict=bool(rows)):
        column += map(one_line, values)
    widths = [max(map(len, column)) for column in cells]
    available = (width() if columns is None else columns) - sum(widths[:-1]) - 2 * (len(widths) - 1)
    cells[-1] = [cut(cell, max(8, available)) for cell in cells[-1]]
    shown = []
    for at, (column, wide) in enumerate(zip(cells, widths, strict=True)):
        padding = [" " * (wide - len(cell)) for cell in column]  # colors take no columns
        if colours:
            filled = zip(column[1:], colours, strict=True)
            column[1:] = [
                click.style(cell, fg=row[at]) if cell and row[at] else cell for cell, row in filled
            ]
        if at in right:
            padding, column = column, padding
        shown.append([first + then for first, then in zip(column, padding, strict=True)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*shown, strict=True))


def facts(
    pairs: Sequence[tuple[str, str]], *, colours: Mapping[str, str | None] | None = None
) -> str:
    """Return one line per name and value, with aligned values; empty values are left out.

    Args:
        colours: By name, the color of a value.
    """
    # As in a table, a value chosen by a job or another user stays on its line.
    shown = [(one_line(name), one_line(value)) for name, value in pairs if value]
    wide = max((len(name) for name, _ in shown), default=0)
    fill = colours or {}
    return "\n".join(
        f"{name.ljust(wide)}  {click.style(value, fg=fill[name]) if fill.get(name) else value}"
        for name, value in shown
    )


class Redrawn:
    """Lines on a terminal; each drawing replaces the one before."""

    def __init__(self) -> None:
        self._height = 0

    def draw(self, text: str) -> None:
        """Draw what fits into the terminal; an empty text erases the last drawing."""
        columns, height = shutil.get_terminal_size((80, 24))
        lines = text.split("\n")[: height - 1] if text else []
        # A line that the terminal wraps would take two rows, and the next drawing would miss its
        # start.
        lines = [
            line if _seen(line) < columns else cut(click.unstyle(line), columns - 1)
            for line in lines
        ]
        # Overwrite the old lines: clearing them first would flicker.
        start = f"\x1b[{self._height}A" if self._height else ""
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        click.echo(f"{start}{body}\x1b[J", nl=False, color=True)
        self._height = len(lines)
