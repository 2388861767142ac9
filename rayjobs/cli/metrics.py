"""`rayjobs metrics`: show a job's metrics as a table, JSON or a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json, width
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.unknown_names import require_single_job
from rayjobs.jobs.records import Job, MetricPoint, name_of
from rayjobs.results.metrics import pick, series, table
from rayjobs.results.usage import system_points

EPILOG = """\b
Examples:
  rayjobs metrics 1f3c
  rayjobs metrics 1f3c loss accuracy
  rayjobs metrics 1f3c --plot curves.png
  rayjobs metrics 1f3c --system              CPU cores, memory, GPUs over time
  rayjobs metrics 1f3c --json | jq '.metrics.loss[-1].value'
"""


@click.command(epilog=EPILOG)
@job_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--plot", metavar="FILE", help="Plot the metrics into FILE (.png, .svg or .pdf).")
@click.option("--all-attempts", is_flag=True, help="Include points that a later attempt replaced.")
@click.option("--system", is_flag=True, help="Show CPU, memory and GPU use instead.")
@json_option
@common_options
@click.pass_obj
def metrics(
    settings: Settings,
    job: str,
    names: tuple[str, ...],
    plot: str | None,
    all_attempts: bool,
    system: bool,
) -> None:
    """Show a job's metrics: last, lowest and highest value, and a curve."""
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        if system:
            points = system_points(workspace.store.attempts(found.id), all_attempts=all_attempts)
        else:
            points = workspace.store.metrics(found.id, all_attempts=all_attempts)
        if not points:
            require_single_job(workspace.store, found, "metrics", what="metrics")
    points = pick(points, names)
    if plot is not None:
        from rayjobs.results.metric_plots import plot as draw

        title = f"{name_of(found)} · {found.id}"
        path = draw(list(series(points).values()), Path(plot), title=title)
        settings.note(f"wrote the plot to {path}")
    if settings.as_json:
        print_json(_as_json(found, points))
    elif points:
        click.echo(table(points, width=min(40, max(10, width() - 60))))
    elif plot is None:
        settings.note(f"{found.id} has logged no metrics{'' if found.state.is_final else ' yet'}")


def _as_json(job: Job, points: list[MetricPoint]) -> dict[str, Any]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(
            {
                "value": point.value,
                "step": point.step,
                "at": point.at,
                "attempt": point.attempt,
                "rank": point.rank,
            }
        )
    return {"job": job.id, "state": str(job.state), "metrics": by_name}
