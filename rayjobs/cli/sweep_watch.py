"""Follows a sweep: with a live table on a terminal, elsewhere with a line for each event."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit, of_job
from rayjobs.cli.jobviews import end_text, short_id
from rayjobs.cli.output import Redrawn, state_colour, table, width, wrapped
from rayjobs.cli.settings import Settings
from rayjobs.cli.sweepviews import stands
from rayjobs.core.clock import SystemClock
from rayjobs.core.terminal import plain_text
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.workspace.folder import OpenWorkspace

if TYPE_CHECKING:
    from rayjobs.tuning.spec import SweepSpec
    from rayjobs.tuning.state import SweepState

LOOK_EVERY_S = 0.2
DRAW_EVERY_S = 0.5
_COLOURS = {
    "Stopping": "yellow",
    "Planned": "white",
    "Stopped early": "yellow",
}


def stay(settings: Settings, workspace: OpenWorkspace, sweep_id: str, *, start_target: bool) -> int:
    """Follow a sweep to its end; return the exit code of its outcome.

    Args:
        start_target: Start its target if it does not run, and report the start.
    """
    from rayjobs.tuning.spec import parse_sweep

    found = workspace.store.sweep(sweep_id)
    spec = parse_sweep(found.spec)
    try:
        if start_target and not found.job.state.is_final:
            from rayjobs.core.paths import home
            from rayjobs.target.starting import ensure_target

            ensure_target(
                found.job.target, home=home(), workspace=workspace.path, on_stage=settings.note
            )
        if sys.stdout.isatty() and not settings.quiet:
            job = _live(settings, workspace, sweep_id, spec)
        else:
            job = _lines(settings, workspace, sweep_id, spec)
    except KeyboardInterrupt:
        short = short_id(found.job)
        settings.note(
            f"detached; {sweep_id} continues.\n"
            f"  rayjobs sweep watch {short}    follow it again\n"
            f"  rayjobs sweep cancel {short}   cancel it"
        )
        return Exit.INTERRUPTED
    settings.note(settings.style(plain_text(end_text(job)), state_colour(str(job.state)), err=True))
    for line in job.failure.lines if job.failure is not None else ():
        settings.note(f"  {plain_text(line)}")
    from rayjobs.cli.summary import next_commands, useful_commands

    for line in useful_commands(short_id(job), next_commands(job)):
        settings.note(line)
    if spec.register_as is not None and job.state is JobState.COMPLETED:
        if "model" not in job.properties:
            settings.note(plain_text(job.reason))
            return Exit.FAILED  # a model was requested, but none was registered
        settings.note(f"registered as model {job.properties['model']}")
        _warn_of_its_end(settings, workspace, job, spec)
    return of_job(job)


def _warn_of_its_end(
    settings: Settings, workspace: OpenWorkspace, job: Job, spec: SweepSpec
) -> None:
    from rayjobs.tuning.registering import worse_at_its_end

    _, state = _look(workspace, job.id)
    warning = worse_at_its_end(spec, state.trials[int(job.properties["best_trial"])])
    if warning:
        settings.note(f"{settings.style('warning', 'yellow', err=True)}: {warning}")


def _look(workspace: OpenWorkspace, sweep_id: str) -> tuple[Job, SweepState]:
    from rayjobs.tuning.table import load_state

    # Read the job first: once it has ended, the table no longer changes.
    job = workspace.store.job(sweep_id)
    return job, load_state(workspace.store, job, now=SystemClock().now())


def _lines(settings: Settings, workspace: OpenWorkspace, sweep_id: str, spec: SweepSpec) -> Job:
    """Print a line for each event, and the final state."""
    from rayjobs.tuning.watch import News, head_line

    news, noted = News(spec), ""
    while True:
        job, state = _look(workspace, sweep_id)
        for line in news.lines(state):
            click.echo(plain_text(line))
        if spec.register_as is not None and not noted:
            noted = model_text(settings, workspace, sweep_id)
            if noted:
                click.echo(noted)
        sys.stdout.flush()
        if job.state.is_final:
            click.echo(plain_text(head_line(state, spec, now=SystemClock().now())))
            return job
        time.sleep(LOOK_EVERY_S)


def _live(settings: Settings, workspace: OpenWorkspace, sweep_id: str, spec: SweepSpec) -> Job:
    """Redraw the table in place until the end; print the last one."""
    redrawn = Redrawn()
    job, state = _look(workspace, sweep_id)
    try:
        while not job.state.is_final:
            columns, height = shutil.get_terminal_size()
            _outlook, shown = stands(workspace, job, state)
            parts = [
                _head(state, spec, columns=columns - 1, shown=shown),
                wrapped(metric_text(settings, state, spec), columns - 1),
                wrapped(model_text(settings, workspace, job.id), columns - 1),
            ]
            drawn = trials_table(
                settings, state, spec, rows=max(3, height - 5), columns=columns - 1, shown=shown
            )
            redrawn.draw("\n".join([*filter(None, parts), "", drawn]))
            time.sleep(DRAW_EVERY_S)
            job, state = _look(workspace, sweep_id)
    finally:
        redrawn.draw("")
    click.echo(trials_table(settings, state, spec))
    click.echo("\n" + _head(state, spec, columns=width()))
    return job


def metric_text(settings: Settings, state: SweepState, spec: SweepSpec) -> str:
    """Return a notice if running trials do not report the sweep's metric; else an empty text."""
    from rayjobs.tuning.state import metric_missing

    notice = metric_missing(state.trials, spec.metric)
    if notice is None:
        return ""
    level = settings.style(notice.level, "yellow") if notice.near else notice.level
    return f"{level}: {plain_text(notice.text)}"


def model_text(settings: Settings, workspace: OpenWorkspace, sweep_id: str) -> str:
    """Return a notice if completed trials store no model to register; else an empty text."""
    from rayjobs.tuning.results import MODEL_MISSING

    for event in workspace.store.events(sweep_id):
        if event.kind == MODEL_MISSING:
            return f"{settings.style('warning', 'yellow')}: {plain_text(event.message)}"
    return ""


def _head(
    state: SweepState, spec: SweepSpec, *, columns: int, shown: Mapping[int, str] | None = None
) -> str:
    from rayjobs.tuning.watch import folded, head_facts

    facts = head_facts(state, spec, now=SystemClock().now(), shown=shown)
    return folded([plain_text(fact) for fact in facts], columns)


def trials_table(
    settings: Settings,
    state: SweepState,
    spec: SweepSpec,
    *,
    rows: int | None = None,
    columns: int | None = None,
    shown: Mapping[int, str] | None = None,
) -> str:
    """Return the trial table as text: it marks the best, and gives a reason for ended trials.

    Args:
        rows: The maximum number of rows: running trials, the best, the latest.
        columns: The width to fit into; None takes the terminal's.
        shown: States of unfinished trials by number, see `sweepviews.stands`.
    """
    from rayjobs.tuning.watch import fitted, newest, table_lines

    lines = table_lines(state, spec, shown)
    if rows is not None:
        lines = newest(lines, rows)
    columns = width() if columns is None else columns
    header, cells = fitted(lines, columns)
    colours: list[list[str | None]] = []
    for line in lines:
        colour = _COLOURS.get(line.state, state_colour(line.state)) if settings.colours() else None
        best = "green" if settings.colours() and line.is_best else None
        colours.append([best, colour, *[None] * (len(header) - 2)])
    plain: list[Any] = [[plain_text(cell) for cell in row] for row in cells]
    numbers = ("TRIAL", "BEST", "LAST", "REPORTS")
    right = tuple(index for index, name in enumerate(header) if name in numbers)
    return table(plain, header, right=right, colours=colours, columns=columns)
