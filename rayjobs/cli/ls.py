"""`rayjobs ls`: list unfinished and recently ended jobs."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.jobviews import (
    bounded_runs,
    earlier_runs,
    job_json,
    ran_s,
    ran_text,
    short_id,
    waited_s,
)
from rayjobs.cli.outlook import Outlook, outlooks
from rayjobs.cli.output import (
    ago_text,
    cut_inside,
    print_json_rows,
    state_colour,
    table,
    width,
)
from rayjobs.cli.params import Names, pairs
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.numbers import for_json
from rayjobs.core.terminal import plain_text
from rayjobs.core.text import counted, duration_text, verb
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import name_of
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.jobs.records import JobLine
    from rayjobs.results.values import Filter, Values
    from rayjobs.store.base import Store
    from rayjobs.workspace.folder import OpenWorkspace

FINISHED_SHOWN = 10
WATCH_EVERY_S = 1.0
REASON_WANTED = 40  # columns; on a narrower terminal, other columns are left out
STATES = {str(state).lower(): state for state in JobState}

EPILOG = """\b
Examples:
  rayjobs ls                      unfinished jobs, and the last 10 that ended
  rayjobs ls -a -s failed         all failed jobs
  rayjobs ls -e mnist --tag seed=3
  rayjobs ls --columns lr,val_accuracy --sort -val_accuracy -n 20
  rayjobs ls --filter 'accuracy>0.9' --filter lr=0.1 --filter state=Completed
  rayjobs ls --parent 1f3c        the members of an array, the trials of a sweep
  rayjobs ls --expand             each member and trial on its own line
  rayjobs ls --json | jq '.[].id'
  rayjobs queue                   running and waiting jobs, in queue order

Columns, --sort and --filter take metrics (their last value), arguments of the
script, tags, and: name, experiment, state, user, target, priority, attempt,
failure, reason, age, waited, ran. Write metric:NAME, arg:NAME or tag:NAME where
two of them have the same name. Operators of --filter: = != > >= < <= and ~
(contains); text may hold * as a wildcard. Without -n, --sort and --filter look
at all jobs.
"""


@dataclass(frozen=True)
class _Listing:
    """Jobs in the order in which they are shown, with their details."""

    jobs: Sequence[JobLine] = ()
    seen: Mapping[str, Outlook] = field(default_factory=dict)
    earlier_s: Mapping[str, float] = field(default_factory=dict)
    bounded: frozenset[str] = frozenset()
    columns: Sequence[Values] = ()
    is_empty: bool = False  # the workspace has no jobs
    hint: str = ""  # why no job matches
    where: str | None = None
    hidden: int = 0  # unfinished jobs left out by a limit


@click.command(epilog=EPILOG)
@click.option("-a", "--all", "show_all", is_flag=True, help="List all jobs, including old ones.")
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    type=click.Choice(sorted(STATES), case_sensitive=False),
    help="Only jobs in this state (repeatable).",
)
@click.option(
    "-e",
    "--experiment",
    metavar="NAME",
    help="Only jobs of this experiment.",
)
@click.option(
    "--parent",
    metavar="JOB",
    help="Only the children of an array, a sweep, a pipeline run or a run.",
)
@click.option("--expand", is_flag=True, help="List members of arrays and trials of sweeps.")
@click.option("--target", metavar="NAME", help="Only jobs for this target.")
@click.option("--tag", metavar="K=V", help="Only jobs with this tag.")
@click.option(
    "-c",
    "--columns",
    multiple=True,
    metavar="NAME,...",
    type=Names("columns", separator=","),
    help="Show these metrics, arguments or tags as columns.",
)
@click.option(
    "--sort",
    metavar="[-]NAME",
    help="Sort by a column; -NAME: highest first.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="CONDITION",
    help="Only jobs that match, e.g. 'accuracy>0.9'; repeatable, all must match.",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="At most N jobs.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, /, *, watch: bool, **chosen: Any) -> int:
    """List jobs: the unfinished ones, and the last ones that ended.

    An array or a sweep takes one line, which counts its members or trials in each state. --expand
    and --parent list them in their order.

    ID is the last part of a job's id; every command accepts it. RAN is how long its attempts ran,
    marked ≤ if one ended, or may have ended, unseen while the target was down. For an array or a
    sweep, RAN is the time from the start of its first job to its end.
    """
    chosen["is_queue"] = click.get_current_context().info_name == "queue"
    chosen["columns"] = [
        name.strip() for text in chosen["columns"] for name in text.split(",") if name.strip()
    ]
    if watch and settings.as_json:
        raise click.UsageError("--watch cannot be combined with --json: JSON is printed once.")
    if watch:
        _watch(settings, chosen)
        return 0
    found = _read(settings, chosen)
    if settings.as_json:
        print_json_rows([_row_json(job, found) for job in found.jobs])
    elif found.jobs:
        click.echo(_table(found, settings))
        for one in found.columns:
            if one.note:
                settings.note(f"{one.note}.")
        if found.hidden:
            jobs, are = counted(found.hidden, "unfinished job"), verb(found.hidden, "is", "are")
            settings.note(f"{jobs} {are} not shown (--limit); `rayjobs queue` lists all.")
    elif found.where is not None:
        settings.note(_none_text(found, chosen))
    return 0


def _none_text(found: _Listing, chosen: Mapping[str, Any]) -> str:
    if found.is_empty:
        return f"No jobs yet in {found.where}. Submit one: rayjobs submit train.py"
    if chosen["is_queue"]:
        return "No job is running or waiting; `rayjobs ls` lists the last ones that ended."
    which = f" {found.hint}" if found.hint else " `rayjobs ls -a` lists all."
    return f"No job in {found.where} matches{_conditions(chosen)}.{which}"


def _conditions(chosen: Mapping[str, Any]) -> str:
    """Return the filters as typed."""
    typed = [f"--state {state}" for state in chosen["states"]]
    for name in ("experiment", "parent", "target", "tag"):
        if chosen[name]:
            typed.append(f"--{name} {chosen[name]}")
    typed += [f"--filter {text!r}" for text in chosen["filters"]]
    return f" {' '.join(typed)}" if typed else ""


def _read(settings: Settings, chosen: dict[str, Any]) -> _Listing:
    try:
        opened = settings.open()
    except NotFoundError as error:
        if settings.workspace is not None or chosen["parent"]:
            raise
        settings.note(f"{error.message}.")
        return _Listing()
    with opened as workspace:
        store = workspace.store
        jobs, columns = _select(store, chosen)
        seen = outlooks(workspace.path, jobs, store=store)
        if chosen["is_queue"] and not chosen["sort"]:
            jobs = sorted(jobs, key=lambda job: _queue_order(job, seen[job.id]))
            jobs = jobs[: chosen["limit"]]
        return _Listing(
            jobs=jobs,
            seen=seen,
            earlier_s=earlier_runs(store, jobs),
            bounded=bounded_runs(store, jobs, seen),
            columns=columns,
            is_empty=not jobs and not store.counts(),
            hint="" if jobs else _check_names(store, chosen),
            where=_where(workspace),
            hidden=_hidden(store, chosen, jobs),
        )


def _where(workspace: OpenWorkspace) -> str:
    """Return the workspace as the user reaches it; a server's path is of no use to its clients."""
    server = workspace.server
    return str(workspace.path) if server is None else f"the workspace of {server.address}"


def _hidden(store: Store, chosen: Mapping[str, Any], shown: Sequence[JobLine]) -> int:
    """Return how many unfinished jobs a limit leaves out of an unfiltered list."""
    filters = ("states", "parent", "tag", "filters", "sort", "experiment", "target", "expand")
    if not chosen["limit"] or any(chosen[name] for name in filters):
        return 0
    unfinished = [state for state in JobState if state not in FINAL]
    listed = {job.id for job in shown}
    lines = store.job_lines(JobFilter(states=unfinished, members=False, trials=False))
    return sum(line.id not in listed for line in lines)


def _check_names(store: Store, chosen: Mapping[str, Any]) -> str:
    """Check the names in filters that match no job; return a hint, which may be empty.

    Raises:
        UsageError: a name does not exist.
    """
    from rayjobs.cli.unknown_names import require_experiment, require_tag, require_target

    require_experiment(store, chosen["experiment"])
    require_target(store, chosen["target"])
    return require_tag(store, _tag(chosen))


def _tag(chosen: Mapping[str, Any]) -> tuple[str, str] | None:
    if not chosen["tag"]:
        return None
    [found] = pairs([chosen["tag"]], option="--tag", example="seed=3").items()
    return found


def _queue_order(job: JobLine, outlook: Outlook) -> tuple[int, int, int, int]:
    """Return a job's sort key in the queue: running jobs, waiting ones by position, ended ones."""
    if job.state in FINAL:
        return (3, 0, 0, -job.serial)
    if job.state is not JobState.QUEUED and outlook.state != str(JobState.QUEUED):
        return (0, 0, 0, job.serial)
    if (
        outlook.position
    ):  # 0: it is not in the queue yet, for example while it waits for another job
        return (1, outlook.position, 0, 0)
    return (2, 0, -job.priority, job.serial)


def _select(store: Store, chosen: dict[str, Any]) -> tuple[list[JobLine], list[Values]]:
    which = JobFilter(
        experiment=chosen["experiment"],
        target=chosen["target"],
        members=chosen["expand"],
        trials=chosen["expand"],
        tag=_tag(chosen) if chosen["tag"] else None,
        limit=chosen["limit"],
    )
    if chosen["parent"]:
        parent = store.find(chosen["parent"])
        if parent.kind == "job" and not store.job_lines(JobFilter(parent=parent.id, limit=1)):
            raise UsageError(
                f"{parent.id} has no children; --parent takes an array, a sweep, a pipeline "
                "run, or a run with child runs. "
                "`rayjobs ls -a` shows which jobs are arrays and sweeps."
            )
        which = replace(which, parent=parent.id, members=True, trials=True)
    if chosen["columns"] or chosen["sort"] or chosen["filters"]:
        return _with_values(store, chosen, which)
    if chosen["is_queue"]:
        which = replace(which, limit=None)  # cut after sorting
    found = _in_scope(store, chosen, which)
    return (_in_families(found) if chosen["expand"] else found), []


def _in_families(jobs: Sequence[JobLine]) -> list[JobLine]:
    """Return jobs newest first, with members and trials in order below their array or sweep."""
    first: dict[str, int] = {}  # parent → serial, or that of its first listed child
    for job in sorted(jobs, key=lambda job: job.serial):
        first.setdefault(job.parent or job.id, job.serial)
    return sorted(jobs, key=lambda job: (-first[job.parent or job.id], job.serial))


def _in_scope(store: Store, chosen: dict[str, Any], which: JobFilter) -> list[JobLine]:
    wanted = [STATES[name.lower()] for name in chosen["states"]]
    unfinished = [state for state in JobState if state not in FINAL]
    if chosen["is_queue"] and not wanted and not chosen["show_all"]:
        wanted = unfinished
    is_all = chosen["show_all"] or chosen["parent"] or chosen["tag"] or chosen["filters"]
    if wanted or is_all or chosen["sort"]:
        in_order = bool(chosen["parent"]) and not chosen["sort"]  # index by index
        return store.job_lines(replace(which, states=wanted or None, newest_first=not in_order))
    limit = which.limit
    waiting = store.job_lines(replace(which, states=unfinished))
    ended = store.job_lines(replace(which, states=sorted(FINAL), limit=limit or FINISHED_SHOWN))
    both = sorted([*waiting, *ended], key=lambda job: -job.serial)
    return both[:limit] if limit else both


def _with_values(
    store: Store, chosen: dict[str, Any], which: JobFilter
) -> tuple[list[JobLine], list[Values]]:
    """Return the jobs that match the filters, in order, and the requested columns."""
    from rayjobs.results.values import ValueReader, parse_filter, sorted_by

    conditions = [parse_filter(text) for text in chosen["filters"]]
    sort = chosen["sort"] or ""
    key = sort.removeprefix("-")
    is_cut_late = bool(conditions or sort)
    jobs = _in_scope(store, chosen, replace(which, limit=None) if is_cut_late else which)
    names = [*chosen["columns"], *([key] if key else []), *(one.name for one in conditions)]
    reader = ValueReader(store, jobs, names)
    for condition in conditions:
        values = reader.values(condition.name)
        condition.check_against(values)
        if condition.name.lower() == "state":
            jobs = _in_state(store, jobs, condition)
        else:
            jobs = [job for job in jobs if condition.admits(values.of(job))]
    if key:
        jobs = sorted_by(jobs, reader.values(key), descending=sort.startswith("-"))
    elif chosen["limit"]:
        jobs = jobs[: chosen["limit"]]
    return jobs[: chosen["limit"]], [
        reader.values(name, may_miss=True) for name in chosen["columns"]
    ]


def _in_state(store: Store, jobs: list[JobLine], condition: Filter) -> list[JobLine]:
    """Return the jobs in these states; an unfinished array has those of its unfinished members."""
    unfinished = [job.id for job in jobs if job.kind == "array" and not job.state.is_final]
    members = store.member_counts(unfinished) if unfinished else {}

    def states(job: JobLine) -> list[JobState]:
        return [one for one in members.get(job.id, ()) if not one.is_final] or [job.state]

    return [job for job in jobs if any(condition.admits(str(one)) for one in states(job))]


def _row_json(job: JobLine, found: _Listing) -> dict[str, Any]:
    row = job_json(
        job,
        found.seen[job.id],
        earlier_s=found.earlier_s.get(job.id),
        at_most=job.id in found.bounded,
    )
    if found.columns:
        row["columns"] = {one.name: for_json(one.of(job)) for one in found.columns}
    return row


def _reason(job: JobLine, outlook: Outlook) -> str:
    if outlook.trial:
        return " ".join(outlook.trial.split())
    if job.state is JobState.COMPLETED and job.kind == "job":
        return ""
    is_canceled = job.state is JobState.CANCELED
    reason = outlook.reason_at(ago_text(job.ended_at)) if is_canceled else outlook.reason
    text = " ".join(reason.split())
    return f"#{outlook.position} {text}" if outlook.position else text


def _table(found: _Listing, settings: Settings, *, columns: int | None = None) -> str:
    """Return the table, without columns that add nothing or do not fit on the terminal."""
    columns = width() if columns is None else columns
    jobs, seen, earlier = found.jobs, found.seen, found.earlier_s
    name_columns = 24 if columns >= 100 else 16
    now = datetime.now(UTC)
    cells: dict[str, list[str]] = {
        "ID": [short_id(job) for job in jobs],
        "NAME": [cut_inside(name_of(job), name_columns) for job in jobs],
        "EXPERIMENT": [cut_inside(job.experiment, 20) for job in jobs],
        "STATE": [seen[job.id].state for job in jobs],
        "PRIORITY": [str(job.priority) for job in jobs],
        "SUBMITTED": [ago_text(job.submitted_at, now=now) for job in jobs],
        "WAITED": [
            duration_text(waited_s(job, earlier_s=earlier.get(job.id), now=now)) for job in jobs
        ],
        "RAN": [
            ran_text(
                ran_s(job, earlier_s=earlier.get(job.id), now=now), at_most=job.id in found.bounded
            )
            for job in jobs
        ],
    }
    if all(job.experiment == job.name for job in jobs):
        del cells["EXPERIMENT"]
    if not any(job.priority and job.state not in FINAL for job in jobs):
        del cells["PRIORITY"]
    own = [one for one in found.columns if one.name.upper() not in cells]
    for one in own:
        cells[one.name] = [_cell(one.name, one.of(job)) for job in jobs]
    reasons = [_reason(job, seen[job.id]) for job in jobs]
    longest = max(len(reason) for reason in reasons)
    for name in ("WAITED", "SUBMITTED", "EXPERIMENT"):
        available = columns - sum(_wide(title, part) + 2 for title, part in cells.items())
        if available >= min(longest, REASON_WANTED):
            break
        cells.pop(name, None)
    header = [*cells, "REASON" if longest else ""]
    rows = list(zip(*cells.values(), reasons, strict=True))
    right = [at for at, name in enumerate(header) if name in ("PRIORITY", "WAITED", "RAN")]
    right += range(len(cells) - len(own), len(cells))
    colours: list[list[str | None]] | None = None
    if settings.colours():
        at = header.index("STATE")
        before, after = [None] * at, [None] * (len(header) - at - 1)
        colours = [[*before, state_colour(state), *after] for state in cells["STATE"]]
    return table(rows, header, right=right, colours=colours, columns=columns)


def _wide(title: str, cells: Sequence[str]) -> int:
    return max(len(title), *map(len, cells))


def _cell(name: str, value: Any) -> str:
    from rayjobs.results.metrics import number_text
    from rayjobs.results.values import DURATIONS

    if value is not None and name.lower() in DURATIONS:
        return duration_text(value)
    return cut_inside(plain_text(number_text(_as_number(value))), 24)


def _as_number(value: Any) -> Any:
    """Return an argument such as ``0.07340659336461612`` as a number, which displays shorter."""
    if isinstance(value, str) and len(value) > 8 and re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", value):
        return float(value)
    return value


def _watch(settings: Settings, chosen: dict[str, Any]) -> None:
    """Show the list repeatedly; on a terminal, redraw it in place, so that no copies pile up."""
    if not sys.stdout.isatty():
        shown = ""
        while True:
            text = _text(settings, chosen)
            if text != shown:
                click.echo(text)
                shown = text
            time.sleep(WATCH_EVERY_S)
    enter, leave, home, clear_line, clear_rest = (
        "\x1b[?1049h",  # the alternate screen: the scrollback stays unchanged
        "\x1b[?1049l",
        "\x1b[H",
        "\x1b[K",
        "\x1b[J",
    )
    text = ""
    sys.stdout.write(enter)
    try:
        while True:
            text = _text(settings, chosen)
            lines = text.splitlines()
            rows = max(2, shutil.get_terminal_size().lines - 1)
            if len(lines) > rows:
                left = len(lines) - rows + 1
                lines = [*lines[: rows - 1], f"… and {left} more; `-n` limits the list"]
            drawn = "".join(f"{line}{clear_line}\n" for line in lines)
            sys.stdout.write(f"{home}{drawn}{clear_rest}")
            sys.stdout.flush()
            time.sleep(WATCH_EVERY_S)
    finally:
        sys.stdout.write(leave)
        if text:
            click.echo(text)  # the last list, which stays in the scrollback
        sys.stdout.flush()


def _text(settings: Settings, chosen: dict[str, Any]) -> str:
    found = _read(settings, chosen)
    return _table(found, settings) if found.jobs else _none_text(found, chosen)
