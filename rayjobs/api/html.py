"""Renders runs, experiments, workspaces and models for notebooks, as HTML without scripts.

Text takes its color from the page, so that it stays readable with a dark theme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from rayjobs.core.text import counted
from rayjobs.results.metrics import number_text

MOST_METRICS = 12
MOST_TRIALS = 20
MOST_POINTS = 400
MOST_ROWS = 25

# The color of a state's mark; the state's name is next to the mark.
_MARKS = {
    "Completed": "#2e8b57",
    "Finished": "#2e8b57",
    "Running": "#3b82d0",
    "Finalizing": "#3b82d0",
    "Failed": "#c0392b",
    "Canceled": "#7f8c8d",
    "NotResponding": "#c0392b",
}
_WAITING = "#d68910"
_CURVE = "#3b82d0"
_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"


class Shown(Protocol):
    """The parts of a run that a notebook shows."""

    id: str
    experiment: Any

    def get_status(self) -> str:
        """Return the state's name."""
        ...


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; a cell of type `Raw` is already HTML."""
    head = "".join(f'<th style="{_CELL}">{_cell(one)}</th>' for one in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_cell(one)}</td>' for one in row) + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;margin:4px 0;color:inherit;font-size:inherit"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


class Raw(str):
    """A piece of HTML."""


def _cell(value: Any) -> str:
    return value if isinstance(value, Raw) else escape("" if value is None else str(value))


def state(name: str) -> Raw:
    """Return a state with its mark."""
    color = _MARKS.get(name, _WAITING)
    mark = f"display:inline-block;width:9px;height:9px;border-radius:5px;background:{color}"
    return Raw(f'<span style="{mark}"></span>&nbsp;{escape(name)}')


def run_html(run: Shown) -> str:
    """Return a run as one row, followed by its best trials if it is a sweep."""
    kind = str(getattr(run, "type", "run"))
    row = [run.experiment.name, run.id, kind, state(run.get_status())]
    shown = table(("Experiment", "Id", "Type", "Status"), [row])
    return shown + trials_html(run) if is_sweep(run) else shown


def is_sweep(run: Any) -> bool:
    """Whether a run has trials."""
    return hasattr(run, "get_children_sorted_by_primary_metric")


def trials_html(run: Any, *, most: int = MOST_TRIALS) -> str:
    """Return a sweep's trials, the best first."""
    children = run.get_children_sorted_by_primary_metric()
    if not children:
        return "<p>No trial has started yet.</p>"
    metric = str(run.sweep_spec.metric)
    settings = [_settings(one["hyperparameters"]) for one in children]
    names = list(dict.fromkeys(name for one in settings for name in one))
    rows = [
        (
            one["run_id"],
            state(str(one["status"])),
            _number(one["best_primary_metric"]),
            *(_number(given.get(name)) for name in names),
        )
        for one, given in zip(children[:most], settings, strict=False)
    ]
    hidden = len(children) - len(rows)
    more = f"<p>{hidden} more trials are not shown.</p>" if hidden > 0 else ""
    return table(("Trial", "Status", metric, *names), rows) + more


def _settings(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> str:
    if value is None:
        return ""
    return number_text(value) if isinstance(value, int | float) else str(value)


def experiment_html(experiment: Any) -> str:
    """Return an experiment with its newest runs."""
    head = table(("Name", "Workspace"), [(experiment.name, experiment.workspace.name)])
    rows: list[tuple[Any, ...]] = []
    for run in experiment.get_runs():
        if len(rows) == MOST_ROWS:
            break
        rows.append((run.id, run.display_name, state(run.get_status())))
    return head + (table(("Run", "Name", "Status"), rows) if rows else "<p>No runs yet.</p>")


def workspace_html(workspace: Any) -> str:
    """Return the content of a workspace."""
    counts = [
        ("Experiments", len(workspace.experiments)),
        ("Models", len(workspace.models)),
        ("Datasets", len(workspace.datasets)),
        ("Datastores", ", ".join(workspace.datastores)),
        ("Compute targets", ", ".join(workspace.compute_targets) or "none yet"),
    ]
    head = table(("Name", "Folder"), [(workspace.name, workspace.opened.path)])
    return head + table(("Content", ""), counts)


def model_html(model: Any) -> str:
    """Return a model with its origin and files."""
    facts = [
        ("Id", model.id),
        ("From", model.lineage_text),
        ("Registered", model.created_time),
        ("Framework", f"{model.model_framework} {model.model_framework_version}".strip()),
        ("Tags", ", ".join(f"{key}={value}" for key, value in model.tags.items())),
        ("Aliases", ", ".join(model.aliases)),
        ("Description", model.description),
    ]
    return table(("Model", model.name), [(name, value) for name, value in facts if value])


# -- curves ----------------------------------------------------------------------------------------


def numbers_of(logged: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the numeric series of a `get_metrics` result; columns of rows are separate."""
    found: dict[str, list[float]] = {}
    for name, value in logged.items():
        if isinstance(value, Mapping):
            for column, cells in value.items():
                found[f"{name}/{column}"] = _numbers(cells)
        else:
            found[name] = _numbers(value)
    return {name: series for name, series in found.items() if series}


def _numbers(value: Any) -> list[float]:
    items = value if isinstance(value, list | tuple) else [value]
    return [
        float(one) for one in items if isinstance(one, int | float) and not isinstance(one, bool)
    ]


def curves_html(series: Mapping[str, Sequence[float]]) -> str:
    """Return a small curve for each metric with several values; else its only value."""
    shown = list(series.items())[:MOST_METRICS]
    parts = [_curve(name, values) for name, values in shown]
    hidden = len(series) - len(shown)
    more = f"<p>{hidden} more metrics are not shown.</p>" if hidden > 0 else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(parts)}</div>{more}'


def _curve(name: str, values: Sequence[float]) -> str:
    width, height, edge = 220, 70, 4
    finite = [value for value in values if math.isfinite(value)]
    title = f"<div><b>{escape(name)}</b> {escape(number_text(values[-1]))}</div>"
    if len(finite) < 2:
        return f'<div style="min-width:{width}px">{title}</div>'
    low, high = min(finite), max(finite)
    step = max(1, math.ceil(len(values) / MOST_POINTS))
    points = []
    for index in range(0, len(values), step):
        if math.isfinite(values[index]):
            x = edge + (width - 2 * edge) * index / (len(values) - 1)
            share = (values[index] - low) / (high - low) if high > low else 0.5
            points.append(f"{x:.1f},{height - edge - (height - 2 * edge) * share:.1f}")
    line = f'fill="none" stroke="{_CURVE}" stroke-width="1.5" points="{" ".join(points)}"'
    frame = 'fill="none" stroke="currentColor" stroke-opacity="0.25"'
    return (
        f'<div style="width:{width}px">{title}'
        f'<svg width="{width}" height="{height}" role="img" aria-label="{escape(name)}">'
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" {frame}/>'
        f"<polyline {line}/></svg>"
        f'<div style="font-size:85%">{escape(number_text(low))} to {escape(number_text(high))}, '
        f"{counted(len(values), 'value')}</div></div>"
    )
