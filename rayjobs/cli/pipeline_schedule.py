"""`rayjobs pipeline schedule`: run published pipelines at set times, or when files change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.output import ago_text, facts, print_json, table
from rayjobs.cli.params import Names, pairs
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.errors import UsageError

if TYPE_CHECKING:
    from rayjobs.jobs.records import ScheduleRecord

SCHEDULE = click.argument("schedule", metavar="SCHEDULE", type=Names("schedules"))
EVERY = re.compile(r"^(\d+)?\s*(minute|hour|day|week|month)s?$")

EPILOG = """\b
Examples:
  rayjobs pipeline schedule create digits --every day --at 03:00
  rayjobs pipeline schedule create digits --when-changed workspaceblobstore/in
  rayjobs pipeline schedule ls
"""


@click.group(cls=CommandList, epilog=EPILOG)
def schedule() -> None:
    """Run published pipelines at set times, or when stored files change."""


@schedule.command(
    epilog="\b\nExamples:\n"
    "  rayjobs pipeline schedule create digits --every day --at 03:00\n"
    "  rayjobs pipeline schedule create digits --every '2 weeks' --on Monday\n"
    "  rayjobs pipeline schedule create digits --when-changed workspaceblobstore/in --poll 1\n"
)
@click.argument("pipeline", metavar="PIPELINE", type=Names("published pipelines"))
@click.option("--name", metavar="NAME", help="Name (default: the pipeline's).")
@click.option("-e", "--experiment", metavar="NAME", help="Experiment of its runs.")
@click.option("-p", "--parameter", metavar="NAME=VALUE", multiple=True, help="Set a parameter.")
@click.option("--every", metavar="TEXT", help="minute, hour, day, week, month, or '2 weeks'.")
@click.option("--at", metavar="HH:MM", help="Time of the day, with days and weeks.")
@click.option("--on", metavar="DAY", multiple=True, help="Day of the week, with weeks.")
@click.option("--start", metavar="TIME", help="First time, e.g. 2026-11-27T09:30:00.")
@click.option("--time-zone", metavar="NAME", default="UTC", help="Time zone of these times (UTC).")
@click.option(
    "--when-changed",
    metavar="DATASTORE[/PATH]",
    type=Names("data paths"),
    help="Run when these files change.",
)
@click.option(
    "--poll", metavar="MINUTES", type=float, default=5.0, help="Minutes between checks (5)."
)
@click.option("--path-parameter", metavar="NAME", help="Parameter that gets the changed path.")
@json_option
@common_options
@click.pass_obj
def create(
    settings: Settings,
    /,
    pipeline: str,
    name: str | None,
    experiment: str | None,
    parameter: tuple[str, ...],
    when_changed: str | None,
    poll: float,
    path_parameter: str | None,
    **times: Any,
) -> None:
    """Run the published PIPELINE at set times, or when stored files change."""
    from rayjobs.pipelines.schedule import create as create_schedule

    if (times["every"] is None) == (when_changed is None):
        raise click.UsageError("say when: --every TEXT, or --when-changed DATASTORE/PATH.")
    recurrence = None if times["every"] is None else recurrence_of_options(**times)
    watched = None
    if when_changed is not None:
        store, _, path = when_changed.partition("/")
        watched = {
            "datastore": store,
            "path": path.strip("/"),
            "polling_interval": poll,
            "parameter": path_parameter,
        }
    elif path_parameter is not None:
        raise click.UsageError("--path-parameter requires --when-changed.")
    with settings.open() as workspace:
        published = workspace.store.published_pipeline(pipeline)
        record = create_schedule(
            workspace,
            name or published.name,
            experiment=experiment or published.name,
            pipeline=published.id,
            recurrence=recurrence,
            watched=watched,
            parameters=pairs(parameter, option="-p", example="epochs=5"),
        )
    _print(settings, record)


def recurrence_of_options(
    every: str, at: str | None, on: tuple[str, ...], start: str | None, time_zone: str
) -> Any:
    """Return the recurrence that the options describe.

    Raises:
        UsageError: they do not describe one.
    """
    from rayjobs.pipelines.recurrence import ScheduleRecurrence

    match = EVERY.match(every.strip().lower())
    if match is None:
        raise UsageError(f"--every {every!r}: write minute, hour, day, week, month, or '2 weeks'")
    return ScheduleRecurrence(
        match[2].capitalize(),
        int(match[1] or 1),
        start_time=start,
        time_zone=time_zone,
        week_days=[one.capitalize() for one in on] or None,
        time_of_day=at,
    )


@schedule.command(epilog="\b\nExample:\n  rayjobs pipeline schedule ls --all\n")
@click.option("-a", "--all", "show_all", is_flag=True, help="Also list disabled ones.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, show_all: bool) -> None:
    """List schedules, newest first."""
    with settings.open() as workspace:
        found = workspace.store.schedules(active=not show_all)
    if settings.as_json:
        print_json([schedule_json(one) for one in found])
        return
    if not found:
        settings.note(
            "No schedules. Make one: rayjobs pipeline schedule create PIPELINE --every day"
        )
        return
    rows = [
        (one.id[:12], one.name, one.created_by or "-", when_text(one), next_text(one), one.note)
        for one in found
    ]
    click.echo(table(rows, ("ID", "NAME", "USER", "WHEN", "NEXT (UTC)", "")))


@schedule.command(epilog="\b\nExample:\n  rayjobs pipeline schedule show nightly\n")
@SCHEDULE
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, schedule: str) -> None:
    """Show what a schedule runs and when, and its last run."""
    with settings.open() as workspace:
        record = workspace.store.schedule(schedule)
    if settings.as_json:
        print_json(schedule_json(record))
        return
    values = ", ".join(f"{name}={value}" for name, value in record.parameters.items())
    click.echo(
        facts(
            [
                ("Schedule", record.id),
                ("Name", record.name),
                ("User", record.created_by),
                ("Pipeline", record.pipeline or f"endpoint {record.endpoint}"),
                ("When", when_text(record)),
                ("Next", next_text(record)),
                ("Last run", record.last_run or ""),
                ("Note", record.note),
                ("Parameters", values),
                ("Created", ago_text(record.created_at)),
            ],
            colours={},
        )
    )


def _switch(settings: Settings, name: str, *, active: bool) -> None:
    from rayjobs.pipelines.schedule import set_active

    with settings.open() as workspace:
        record = set_active(workspace, workspace.store.schedule(name), active=active)
    _print(settings, record)


@schedule.command(epilog="\b\nExample:\n  rayjobs pipeline schedule enable nightly\n")
@SCHEDULE
@json_option
@common_options
@click.pass_obj
def enable(settings: Settings, schedule: str) -> None:
    """Let a schedule start runs again."""
    _switch(settings, schedule, active=True)


@schedule.command(epilog="\b\nExample:\n  rayjobs pipeline schedule disable nightly\n")
@SCHEDULE
@json_option
@common_options
@click.pass_obj
def disable(settings: Settings, schedule: str) -> None:
    """Stop a schedule from starting runs."""
    _switch(settings, schedule, active=False)


@schedule.command(epilog="\b\nExample:\n  rayjobs pipeline schedule rm nightly\n")
@SCHEDULE
@json_option
@common_options
@click.pass_obj
def rm(settings: Settings, schedule: str) -> None:
    """Remove a schedule; its runs stay."""
    from rayjobs.pipelines.schedule import drop

    with settings.open() as workspace:
        record = workspace.store.schedule(schedule)
        drop(workspace, record)
    if settings.as_json:
        print_json({"id": record.id, "removed": True})
    else:
        click.echo(f"{record.id}: removed")


def when_text(record: ScheduleRecord) -> str:
    """Return in a few words when a schedule runs."""
    from rayjobs.pipelines.recurrence import recurrence_of

    if record.recurrence is not None:
        return recurrence_of(record.recurrence).text
    assert record.watched is not None
    source = "/".join(filter(None, (record.watched["datastore"], record.watched["path"])))
    return f"when {source} changes (every {record.watched['polling_interval']:g} min)"


def next_text(record: ScheduleRecord) -> str:
    """Return when a schedule is next due, in UTC; ``disabled``, or a dash if it is never due."""
    if not record.is_active:
        return "disabled"
    return "-" if record.next_at is None else f"{record.next_at:%Y-%m-%d %H:%M:%S}"


def schedule_json(record: ScheduleRecord) -> dict[str, Any]:
    """Return a schedule as JSON data; its keys are part of the command line's contract."""
    values = {name: value for name, value in vars(record).items() if name != "seen"}
    return {**values, "parameters": dict(record.parameters)}


def _print(settings: Settings, record: ScheduleRecord) -> None:
    if settings.as_json:
        print_json(schedule_json(record))
        return
    click.echo(record.id)
    settings.note(f"{record.name}: {when_text(record)}; next: {next_text(record)}")
