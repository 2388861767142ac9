"""`RunDetails`: a live view of a run for notebooks.

Source: ``azureml.widgets.RunDetails``.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from html import escape
from typing import Any

from rayjobs.api import html
from rayjobs.core.errors import RayjobsError
from rayjobs.core.terminal import plain_text
from rayjobs.results.metrics import number_text

POLL_S = 1.0
LOG_LINES = 15
ENDS = frozenset({"Completed", "Failed", "Canceled", "Finished"})
Show = Callable[[str], None]
"""Replaces the displayed HTML."""

log = logging.getLogger(__name__)


class RunDetails:
    """State, metrics, output and trials of a run, updated until it ends.

    In a notebook, it is an ipywidgets widget if that package is installed, else an output cell
    that is replaced as the run proceeds. Elsewhere it is text, printed once.

    Args:
        run_instance: The run of a script, sweep or pipeline, or an interactive run.
    """

    def __init__(self, run_instance: Any) -> None:
        self.run = run_instance
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, render_lib: Any = None, widget_settings: Any = None) -> None:
        """Show the run, and return at once; in a notebook, the view is updated until the run ends.

        Args:
            render_lib: Accepted but unused: the notebook decides.
            widget_settings: Accepted but unused.
        """
        show = _shower()
        if show is None:
            sys.stdout.write(self.text() + "\n")
            return
        shown = self.html()
        show(shown)
        if self._thread is None and self.run.get_status() not in ENDS:
            self._thread = threading.Thread(
                target=self._follow, args=(show, shown), name="run-details", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the updates; the display stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the view is final; return whether it is."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _follow(self, show: Show, shown: str) -> None:
        is_over = False
        while not is_over and not self._stop.wait(POLL_S):
            try:
                # The status is read first: data that is read after the end is complete.
                is_over = self.run.get_status() in ENDS
                fresh = self.html()
            except RayjobsError as error:
                # The store may be busy for a moment; that is no reason to end the view.
                log.info("the view of %s could not be updated: %s", self.run.id, error)
                continue
            if fresh != shown:
                show(fresh)
                shown = fresh

    # -- the displayed data --------------------------------------------------------------------
    def get_widget_data(self, widget_settings: Any = None) -> dict[str, Any]:
        """Return the displayed data as plain values: status, run_id, metrics, log, children."""
        run = self.run
        details = run.get_details()
        error = (details.get("error") or {}).get("error", {}).get("message", "")
        is_sweep = html.is_sweep(run)
        name, text = _end_of_log(run)
        return {
            "run_id": run.id,
            "experiment": run.experiment.name,
            "status": run.get_status(),
            "reason": _reason(run),
            "start_time": details.get("startTimeUtc"),
            "end_time": details.get("endTimeUtc"),
            "error": error,
            "metrics": {} if is_sweep else html.numbers_of(run.get_metrics()),
            "log_name": name,
            "log": text,
            "children": run.get_children_sorted_by_primary_metric() if is_sweep else [],
        }

    def html(self) -> str:
        """Return the view as HTML."""
        data = self.get_widget_data()
        facts: list[tuple[str, Any]] = [
            ("Experiment", data["experiment"]),
            ("Run", data["run_id"]),
            ("Status", html.state(data["status"])),
            ("Why", data["reason"]),
            ("Started", data["start_time"]),
            ("Ended", data["end_time"]),
            ("Error", data["error"]),
        ]
        parts = [html.table(("Run details", ""), [fact for fact in facts if fact[1]])]
        if data["metrics"]:
            parts.append(html.curves_html(data["metrics"]))
        if html.is_sweep(self.run):
            parts.append(html.trials_html(self.run))
        if data["log"]:
            style = "max-height:16em;overflow:auto;margin:4px 0;white-space:pre-wrap"
            parts.append(f"<div>{escape(data['log_name'])}</div>")
            parts.append(f'<pre style="{style}">{escape(data["log"])}</pre>')
        return "".join(parts)

    def text(self) -> str:
        """Return the view as text."""
        data = self.get_widget_data()
        lines = [f"Run {data['run_id']} of experiment {data['experiment']}: {data['status']}"]
        lines += [data[key] for key in ("reason", "error") if data[key]]
        for name, values in data["metrics"].items():
            lines.append(f"  {name}: {number_text(values[-1])}")
        for child in data["children"][: html.MOST_TRIALS]:
            best = child["best_primary_metric"]
            lines.append(
                f"  {child['run_id']}: {child['status']}, {best} {child['hyperparameters']}"
            )
        if data["status"] not in ENDS:
            lines.append("To follow it, call run.wait_for_completion(show_output=True).")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.html()


def _reason(run: Any) -> str:
    detailed = getattr(run, "get_detailed_status", None)
    return "" if detailed is None else str(detailed().get("details") or "")


def _end_of_log(run: Any) -> tuple[str, str]:
    """Return the name and last lines of rank 0's log; ("", "") while there is none."""
    files = getattr(run, "_files", None)
    if files is None:
        return "", ""
    found = files.logs
    names = found.names()
    name = next((one for one in names if "driver_log" in one), names[0] if names else "")
    if not name:
        return "", ""
    with contextlib.suppress(RayjobsError):  # the listed log may be moving to the store just now
        return name, plain_text(found.tail(name, lines=LOG_LINES).decode("utf-8", "replace"))
    return "", ""


def _shower() -> Show | None:
    """Return a function that shows HTML in place of the last; None if HTML cannot be shown."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display

    try:
        import ipywidgets
    except ImportError:
        handle = display(HTML(""), display_id=True)
        return lambda text: handle.update(HTML(text))
    widget = ipywidgets.HTML()
    display(widget)

    def show(text: str) -> None:
        widget.value = text

    return show
