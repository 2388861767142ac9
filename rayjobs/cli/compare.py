"""`rayjobs compare`: compare jobs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.jobviews import short_id
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import cut, print_json, table, width
from rayjobs.cli.params import JobId
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.numbers import for_json
from rayjobs.core.terminal import plain_text
from rayjobs.jobs.records import name_of

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.results.compare import Comparison, Row

FILES_SHOWN = 30
NARROWEST = 12
EPILOG = """\b
Examples:
  rayjobs compare train-1 train-2
  rayjobs compare 1f3c 88aa 5e01 --all
  rayjobs compare train-1 train-2 --plot curves.png
  rayjobs compare train-1 train-2 --json | jq '.rows[] | select(.section == "Metrics")'
"""


@click.command(epilog=EPILOG)
@click.argument("jobs", nargs=-1, required=True, type=JobId(), metavar="JOB JOB...")
@click.option(
    "-a", "--all", "show_all", is_flag=True, help="Also show what is the same in all jobs."
)
@click.option(
    "--plot",
    metavar="FILE",
    help="Plot their common metrics into FILE (.png, .svg or .pdf).",
)
@json_option
@common_options
@click.pass_obj
def compare(settings: Settings, jobs: tuple[str, ...], show_all: bool, plot: str | None) -> None:
    """Compare jobs: arguments, code, packages, data versions, resources and metrics.

    Shows the differences. Code is compared file by file, by the digests of the snapshots' files,
    and by git commit where one was recorded. Metrics are compared by their last values.
    """
    from rayjobs.results import compare as comparing

    if len(jobs) < 2:
        raise click.UsageError("name at least two jobs to compare.")
    with settings.open() as workspace:
        found = [newest_named(settings, workspace.store, text) for text in jobs]
        found = list({job.id: job for job in found}.values())
        if len(found) < 2:
            raise click.UsageError(f"{' and '.join(jobs)} are the same job, {found[0].id}.")
        compared = comparing.compare(workspace, found)
        if plot is not None:
            curves = comparing.common_series(workspace, found)
    if plot is not None:
        from rayjobs.results.metric_plots import plot_runs

        labels = [_label(job) for job in found]
        title = " · ".join(labels) if len(labels) <= 4 else f"{len(labels)} jobs"
        path = plot_runs(list(zip(labels, curves, strict=True)), Path(plot), title=title)
        settings.note(f"wrote the plot to {path}")
    rows = [row for row in compared.rows if show_all or row.differs]
    if settings.as_json:
        print_json(_as_json(compared, rows))
        return
    click.echo(_text(compared, rows))
    for note in compared.notes:
        settings.note(f"note: {note}")
    if not rows:
        settings.note("the recorded values do not differ; `--all` shows them.")


def _label(job: Job) -> str:
    return name_of(job) if job.display_name else short_id(job)


def _as_json(compared: Comparison, rows: list[Row]) -> dict[str, Any]:
    return {
        "jobs": [{"id": job.id, "name": name_of(job)} for job in compared.jobs],
        "rows": [
            {
                "section": row.section,
                "name": row.name,
                "differs": row.differs,
                "values": [for_json(value) for value in row.values],
            }
            for row in rows
        ],
        "notes": list(compared.notes),
    }


def _text(compared: Comparison, rows: list[Row]) -> str:
    """Return a table with a column for each job and a heading for each section that has rows."""
    cells: list[list[str]] = []
    section = ""
    left_out = files = end_of_code = 0
    for row in rows:
        if row.section == "Code" and row.name not in ("script", "snapshot"):
            files += not row.name.startswith("git ")
            if files > FILES_SHOWN and not row.name.startswith("git "):
                left_out += 1
                continue
        if row.section != section:
            section = row.section
            cells.append([section, *[""] * len(row.values)])
        cells.append([f"  {plain_text(row.name)}", *map(_cell, row.values)])
        if row.section == "Code":
            end_of_code = len(cells)
    if left_out:
        cells.insert(
            end_of_code, [f"  … {left_out} more files: --json", *[""] * len(compared.jobs)]
        )
    header = ["", *map(_label, compared.jobs)]
    available = width() - max((len(one[0]) for one in cells), default=0)
    most = max(NARROWEST, available // len(compared.jobs) - 2)
    cells = [[one[0], *[cut(cell, most) for cell in one[1:]]] for one in cells]
    lines = table(cells, header).splitlines()
    return "\n".join(lines)


def _cell(value: Any) -> str:
    from rayjobs.results.metrics import number_text

    if value is None:
        return "-"
    return plain_text(str(value) if isinstance(value, (str, bool)) else number_text(value))
