"""A sweep as one self-contained HTML page, with three SVG plots and the table of its trials."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.text import duration_text
from rayjobs.tuning import plot_data
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.plots import KINDS, Kind, check_drawable, make_figure
from rayjobs.tuning.results import rows
from rayjobs.tuning.space import stripped
from rayjobs.tuning.trials import TrialRecord

_HEADINGS: dict[Kind, str] = {
    "history": "History",
    "parallel": "Parallel coordinates",
    "curves": "Learning curves",
}
_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #222222;
       padding: 0 1rem; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #dddddd;
         vertical-align: top; }
th { cursor: pointer; white-space: nowrap; }
th[aria-sort=ascending]::after { content: " \\25b2"; }
th[aria-sort=descending]::after { content: " \\25bc"; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.word { white-space: nowrap; }
td:last-child { min-width: 18rem; }
tr.best { background: #e8f3e8; font-weight: 600; }
tbody tr:hover { background: #f2f2f2; }
.lit path { stroke-width: 5px !important; opacity: 1 !important; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
"""
# Sorts the table by the clicked column, and thickens the lines of the row under the pointer.
_SCRIPT = """
const table = document.getElementById("trials"), body = table.tBodies[0];
for (const head of table.tHead.rows[0].cells) head.onclick = () => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].innerText;
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === "" || y === "") return (x === "") - (y === "");  // without a value: always last
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? order : -order;
  });
  body.append(...rows);
};
for (const row of body.rows) {
  const light = lit => {
    for (const kind of ["curves", "parallel"])
      document.getElementById(`${kind}-t${row.dataset.trial}`)?.classList.toggle("lit", lit);
  };
  row.onmouseenter = () => light(true);
  row.onmouseleave = () => light(false);
}
"""


def write_html(
    path: str | Path,
    trials: Sequence[TrialRecord],
    *,
    name: str,
    metric: str,
    goal: PrimaryMetricGoal,
) -> Path:
    """Write the page and its folder; return its path. The page is about 100 KB in size.

    It loads nothing. Names, parameters and reasons come from users and scripts, so they are escaped
    in the page's text and in the plots. Pointing at a row of the table highlights its trial in the
    plots; a click on a column's header sorts by it.

    Raises:
        SweepUsageError: no trial has reported a finite value yet.
        TuningDependencyError: matplotlib is not installed.
    """
    check_drawable("history", trials, metric=metric, goal=goal)
    what: dict[str, Any] = {"name": name, "metric": metric, "goal": goal}
    parts = [
        f"<h2>{_HEADINGS[kind]}</h2>\n{_svg(make_figure(kind, trials, **what))}" for kind in KINDS
    ]
    listed = rows(trials, goal)
    best = next((row for row in listed if row.is_best), None)
    found = "no trial has completed yet"
    if best is not None:
        found = f"best: trial {best.number}, {metric} = {best.best:.6g}"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(name)}</h1>\n<p>{html.escape(str(goal).lower())} {html.escape(metric)}"
        f" · {html.escape(plot_data.counts_text(trials))} · {html.escape(found)}</p>\n"
        + "\n".join(parts)
        + f"\n<h2>Trials</h2>\n<div class=wide>{_table(trials, goal, metric)}</div>\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _svg(figure: Any) -> str:
    """Return a figure as an element for a page; its texts remain text."""
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    return text[text.index("<svg") :]


def _table(trials: Sequence[TrialRecord], goal: PrimaryMetricGoal, metric: str) -> str:
    by_number = {trial.number: trial for trial in trials}
    keys = list(dict.fromkeys(key for trial in trials for key in trial.parameters))
    heads = ["trial", "state", f"best {metric}", f"last {metric}", "reports", "duration"]
    heads += [stripped(key) for key in keys] + ["job", "reason"]
    lines = [f"<th>{html.escape(head)}</th>" for head in heads]
    lines = ['<table id="trials"><thead><tr>' + "".join(lines) + "</tr></thead>\n<tbody>"]
    for row in rows(trials, goal):
        trial = by_number[row.number]
        seconds = None
        if trial.started_at is not None and trial.ended_at is not None:
            seconds = (trial.ended_at - trial.started_at).total_seconds()
        cells = [
            _cell(row.number),
            _word(plot_data.LABELS[row.state]),
            _cell(row.best),
            _cell(row.last),
            _cell(row.intervals),
            _cell(seconds, "" if seconds is None else duration_text(seconds)),
            *(_parameter(trial.parameters.get(key)) for key in keys),
            _word(trial.job_id or ""),
            f"<td>{html.escape(row.note)}</td>",
        ]
        mark = ' class="best"' if row.is_best else ""
        lines.append(f'<tr{mark} data-trial="{row.number}">{"".join(cells)}</tr>')
    return "\n".join([*lines, "</tbody></table>"])


def _cell(value: float | None, text: str | None = None) -> str:
    """Return a number's cell: it shows four digits, and sorts by all of them."""
    if value is None:
        return '<td class="number" data-value=""></td>'
    shown = f"{value:.4g}" if text is None else text
    return f'<td class="number" data-value="{value!r}" title="{value!r}">{shown}</td>'


def _word(text: str) -> str:
    return f'<td class="word">{html.escape(text)}</td>'


def _parameter(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _cell(value, str(value) if isinstance(value, int) else None)
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return f"<td>{html.escape(text)}</td>"
