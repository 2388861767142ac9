"""`rayjobs ls`: the queue, and what ended lately."""

from __future__ import annotations

import time
from typing import Any

import click

from rayjobs.cli.jobviews import earlier_runs, job_json, name_of, ran_s, short_id, waited_s
from rayjobs.cli.outlook import Outlook, outlooks
from rayjobs.cli.output import ago_text, duration_text, print_json_rows, state_colour, table
from rayjobs.cli.params import pairs
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.errors import NotFoundError
from rayjobs.records import JobLine
from rayjobs.states import FINAL, JobState
from rayjobs.store.base import Store

FINISHED_SHOWN = 10
WATCH_EVERY_S = 1.0
STATES = {str(state).lower(): state for state in JobState}

EPILOG = """\b
Examples:
  rayjobs ls                      not finished, and the last 10 that ended
  rayjobs ls -a -s failed         all that failed
  rayjobs ls -e mnist --tag seed=3
  rayjobs ls --expand             each member of an array on a line of its own
  rayjobs ls --json | jq '.[].id'
"""


@click.command(epilog=EPILOG)
@click.option("-a", "--all", "show_all", is_flag=True, help="All jobs, however long ago.")
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    type=click.Choice(sorted(STATES), case_sensitive=False),
    help="Only jobs in this state (repeatable).",
)
@click.option("-e", "--experiment", metavar="NAME", help="Only jobs of this experiment.")
@click.option("--parent", metavar="JOB", help="Only the children of a sweep, or of an array.")
@click.option("--expand", is_flag=True, help="List the members of arrays too.")
@click.option("--target", metavar="NAME", help="Only jobs for this target.")
@click.option("--tag", metavar="K=V", help="Only jobs with this tag.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="At most N jobs.")
@click.option("-w", "--watch", is_flag=True, help="Show again every second, until Ctrl-C.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, /, *, watch: bool, **chosen: Any) -> int:
    """List jobs: those that are not finished, and the last ones that ended.

    An array is one line, with how many of its members are in each state.

    ID is the last part of a job's id; every command takes it.
    """
    if watch and settings.as_json:
        raise click.UsageError("--watch and --json do not go together: JSON is printed once.")
    if not watch:
        _show(settings, chosen)
        return 0
    while True:
        click.clear()
        _show(settings, chosen)
        time.sleep(WATCH_EVERY_S)


def _show(settings: Settings, chosen: dict[str, Any]) -> None:
    try:
        with settings.open() as workspace:
            jobs = _select(workspace.store, chosen)
            seen = outlooks(workspace.path, jobs, store=workspace.store)
            earlier = earlier_runs(workspace.store, jobs)
            where = workspace.path
    except NotFoundError as error:
        if settings.workspace is not None:
            raise
        jobs, seen, earlier, where = [], {}, {}, None
        settings.note(f"{error.message}.")
    if settings.as_json:
        print_json_rows(
            [job_json(job, seen[job.id], earlier_s=earlier.get(job.id)) for job in jobs]
        )
    elif jobs:
        click.echo(_table(jobs, seen, earlier, settings))
    elif where is not None:
        settings.note(f"no such jobs in {where}; `rayjobs ls -a` lists all.")


def _select(store: Store, chosen: dict[str, Any]) -> list[JobLine]:
    filters: dict[str, Any] = {
        "experiment": chosen["experiment"],
        "target": chosen["target"],
        "members": chosen["expand"],
    }
    if chosen["parent"]:
        filters["parent"] = store.find(chosen["parent"]).id
        filters["members"] = True
    if chosen["tag"]:
        [(name, value)] = pairs([chosen["tag"]], option="--tag", example="seed=3").items()
        filters["tag"] = (name, value)
    limit = chosen["limit"]
    wanted = [STATES[name.lower()] for name in chosen["states"]]
    if wanted or chosen["show_all"] or chosen["parent"] or chosen["tag"]:
        return store.job_lines(states=wanted or None, limit=limit, **filters)
    unfinished = [state for state in JobState if state not in FINAL]
    waiting = store.job_lines(states=unfinished, limit=limit, **filters)
    ended = store.job_lines(states=sorted(FINAL), limit=limit or FINISHED_SHOWN, **filters)
    both = sorted([*waiting, *ended], key=lambda job: -job.serial)
    return both[:limit] if limit else both


def _table(
    jobs: list[JobLine], seen: dict[str, Outlook], earlier: dict[str, float], settings: Settings
) -> str:
    rows, colours = [], []
    for job in jobs:
        outlook, earlier_s = seen[job.id], earlier.get(job.id)
        position = f"#{outlook.position} " if outlook.position else ""
        reason = "" if job.state is JobState.COMPLETED else outlook.reason
        rows.append(
            (
                short_id(job),
                name_of(job)[:24],
                job.experiment[:20],
                outlook.state,
                ago_text(job.submitted_at),
                duration_text(waited_s(job, earlier_s=earlier_s)),
                duration_text(ran_s(job, earlier_s=earlier_s)),
                position + " ".join(reason.split()),
            )
        )
        colour = state_colour(outlook.state) if settings.colours() else None
        colours.append([None, None, None, colour, None, None, None, None])
    header = ("ID", "NAME", "EXPERIMENT", "STATE", "SUBMITTED", "WAITED", "RAN", "")
    return table(rows, header, right=(5, 6), colours=colours)
