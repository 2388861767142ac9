"""Reports of `rayjobs azureml check`, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.azureml.checking import Report, State
from rayjobs.core.text import counted

_COLUMNS = (
    State.SUPPORTED,
    State.SUBSTITUTED,
    State.REFUSED,
    State.PIPELINES,
    State.MISSING,
)


def runs(report: Report) -> bool:
    """Return whether nothing that the program uses is refused or missing."""
    stops = (State.REFUSED, State.PIPELINES, State.MISSING)
    return report.problem is None and not any(report.count(state) for state in stops)


def lines(report: Report, *, everything: bool = False) -> str:
    """Return a program's report: a line for each use, and the counts."""
    out = [str(report.path)]
    if report.problem is not None:
        out.append(f"  cannot be read: {report.problem}")
    for use in report.uses:
        if use.state is State.SUPPORTED and not everything:
            continue
        note = f": {use.note}" if use.note else ""
        out.append(f"  {use.at:>16}  {use.name}  {use.state}{note}")
    out += [f"  {f'cell {cell}':>16}  is not Python: {why}" for cell, why in report.unread]
    counts = ", ".join(f"{report.count(state)} {state}" for state in _COLUMNS)
    return "\n".join([*out, f"  {counts}"])


def table(reports: Sequence[Report], *, root: Path | None = None) -> str:
    """Return a table: a line for each program, and the totals.

    Args:
        root: Show paths relative to this folder, to tell programs of the same name apart.
    """
    rows = [("program", *(str(state) for state in _COLUMNS))]
    for report in reports:
        path = report.path if root is None else report.path.relative_to(root)
        if report.problem is not None:
            rows.append((str(path), *("-" for _ in _COLUMNS)))
            continue
        rows.append((str(path), *(str(report.count(state)) for state in _COLUMNS)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    text = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(one.rjust(width) for one, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    answered = sum(report.is_answered for report in reports)
    ready = sum(runs(report) for report in reports)
    text.append(
        f"{counted(len(reports), 'program')}: in {answered} every name is supported, substituted "
        f"or refused by name; {ready} use nothing that is refused"
    )
    unread = [report for report in reports if report.problem is not None]
    text += [f"cannot be read: {report.path}: {report.problem}" for report in unread]
    return "\n".join(text)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as plain data."""
    return {
        "path": str(report.path),
        "problem": report.problem,
        "driver": report.is_driver,
        "counts": {str(state): report.count(state) for state in _COLUMNS},
        "uses": [
            {
                "name": use.name,
                "state": str(use.state),
                "cell": use.cell,
                "line": use.line,
                "note": use.note,
            }
            for use in report.uses
        ],
    }
