"""A sweep as one self-contained HTML page (plotly): three plots and the table of trials."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.tuning import plot_data
from rayjobs.tuning.errors import TuningDependencyError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.plots import COLOURS, LABELS, check_drawable
from rayjobs.tuning.results import Row, best_trial, rows
from rayjobs.tuning.trials import TrialRecord

_ALL_TICKS = 25
_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #222222;
       padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #dddddd; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.best { background: #e8f3e8; font-weight: 600; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
"""


def write_html(
    path: str | Path,
    trials: Sequence[TrialRecord],
    *,
    name: str,
    metric: str,
    goal: PrimaryMetricGoal,
) -> Path:
    """Write the page and its folder; return its path. It is about 5 MB: it carries plotly's script.

    It loads nothing from anywhere. Names, parameters and reasons come from users and scripts:
    they are escaped, in the page's text and in the plots.

    Raises:
        SweepUsageError: no trial has reported a finite value yet.
        TuningDependencyError: plotly is not installed.
    """
    check_drawable("history", trials, metric=metric, goal=goal)
    try:
        import plotly.graph_objects as graph
        import plotly.io
    except ImportError as exc:
        raise TuningDependencyError("Drawing an HTML page", "plotly", "plots") from exc
    figures = {
        "History": _history(graph, plot_data.history(trials, goal), metric),
        "Parallel coordinates": _parallel(graph, plot_data.parallel(trials, goal, metric), goal),
        "Learning curves": _curves(graph, plot_data.curves(trials), metric),
    }
    parts = []
    for position, (heading, figure) in enumerate(figures.items()):
        drawn = plotly.io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=position == 0,  # once, inline
            config={
                "displaylogo": False,
                "responsive": True,
                # Named one by one: plotly's own choice has a button that sends data elsewhere.
                "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
            },
            div_id=f"plot-{position}",
        )
        parts.append(f"<h2>{heading}</h2>\n{drawn}")
    best = best_trial(trials, goal)
    found = "no trial has completed yet"
    if best is not None:
        found = f"best: trial {best.number}, {metric} = {best.best(goal):.6g}"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(name)}</h1>\n<p>{html.escape(str(goal).lower())} "
        f"{html.escape(metric)} · {len(trials)} trials · {html.escape(found)}</p>\n"
        + "\n".join(parts)
        + f"\n<h2>Trials</h2>\n{_table(rows(trials, goal))}\n</body>\n</html>\n"
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _history(graph: Any, data: plot_data.History, metric: str) -> Any:
    figure = graph.Figure()
    for state, colour in COLOURS.items():
        chosen = [(number, value) for number, value, at in data.points if at is state]
        if chosen:
            numbers, values = zip(*chosen, strict=True)
            figure.add_scatter(
                x=numbers, y=values, mode="markers", name=LABELS[state], marker={"color": colour}
            )
    if data.leader:
        numbers, values = zip(*data.leader, strict=True)
        figure.add_scatter(
            x=numbers,
            y=values,
            mode="lines",
            name="best so far",
            line={"color": "#222222", "shape": "hv"},
        )
    return _framed(figure, len(data.points), "trial", f"best {metric}")


def _curves(graph: Any, data: Sequence[plot_data.Curve], metric: str) -> Any:
    figure = graph.Figure()
    for curve in data:
        figure.add_scatter(
            x=list(range(1, len(curve.values) + 1)),
            y=[None if math.isnan(value) else value for value in curve.values],
            mode="lines+markers",
            name=f"{curve.number} {LABELS[curve.state]}",
            line={"color": COLOURS[curve.state]},
            marker={"size": 4},
            opacity=0.8,
        )
    longest = max((len(curve.values) for curve in data), default=0)
    return _framed(figure, longest, "interval (report of the metric)", metric)


def _parallel(graph: Any, data: plot_data.Parallel, goal: PrimaryMetricGoal) -> Any:
    dimensions = []
    for axis in data.axes:
        low, high = min(axis.values), max(axis.values)
        margin = 0.0 if high > low else 0.5  # an axis of one value still needs a length
        dimensions.append(
            {
                "label": _shown(axis.label),
                "values": list(axis.values),
                "range": [low - margin, high + margin],
                "tickvals": [position for position, _ in axis.ticks],
                "ticktext": [text for _, text in axis.ticks],  # drawn as plain text
            }
        )
    figure = graph.Figure(
        graph.Parcoords(
            dimensions=dimensions,
            line={
                "color": list(data.colours),
                "colorscale": "Viridis",
                "reversescale": goal is PrimaryMetricGoal.MINIMIZE,
                "showscale": True,
            },
        )
    )
    figure.update_layout(margin={"l": 70, "r": 30, "t": 60, "b": 30}, height=420)
    return figure


def _framed(figure: Any, count: int, across: str, up: str) -> Any:
    figure.update_layout(
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis_title=_shown(across),
        yaxis_title=_shown(up),
        showlegend=True,
    )
    figure.update_xaxes(tickformat="d")
    if count <= _ALL_TICKS:
        figure.update_xaxes(dtick=1)  # no tick between two trials
    return figure


def _shown(text: str) -> str:
    # Plotly takes text for its own small HTML, with links; entities are shown as written.
    return html.escape(text, quote=False)


def _table(listed: Sequence[Row]) -> str:
    lines = [
        "<table>\n<tr><th>trial</th><th>state</th><th>best</th><th>last</th><th>reports</th>"
        "<th>parameters</th><th>note</th></tr>"
    ]
    for row in listed:
        parameters = ", ".join(f"{key}={value}" for key, value in row.parameters.items())
        mark = ' class="best"' if row.is_best else ""
        lines.append(
            f'<tr{mark}><td class="number">{row.number}</td><td>{row.state}</td>'
            f'<td class="number">{_number(row.best)}</td>'
            f'<td class="number">{_number(row.last)}</td>'
            f'<td class="number">{row.intervals}</td><td>{html.escape(parameters)}</td>'
            f"<td>{html.escape(row.note)}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
