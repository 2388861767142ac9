"""`rayjobs report`: compare the queue's estimates with what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import click

from rayjobs.cli.output import print_json, table
from rayjobs.cli.params import Duration
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.errors import RayjobsError
from rayjobs.core.text import counted, duration_text, verb
from rayjobs.policy.capacity import Capacity
from rayjobs.policy.report import (
    AT_ONCE_S,
    Estimated,
    InUse,
    Predicted,
    QueueReport,
    Waits,
    queue_report,
)

EPILOG = """\b
Examples:
  rayjobs report queue
  rayjobs report queue --since 7d --target local
  rayjobs report queue --json | jq .first_by_target
"""
NAMED_AT_MOST = 20


@click.group(cls=CommandList, epilog="\b\nExample:\n  rayjobs report queue --since 7d\n")
def report() -> None:
    """Reports about the queue."""


@report.command(epilog=EPILOG)
@click.option("--since", type=Duration(), help="Only jobs submitted within this time, e.g. 7d.")
@click.option("--target", metavar="NAME", help="Only jobs for this target.")
@json_option
@common_options
@click.pass_obj
def queue(settings: Settings, since: float | None, target: str | None) -> None:
    """Report wait times and how accurate the estimates of start times were.

    An estimate is what `rayjobs why` shows: the first one for a job, and the last one before it
    started. MEDIAN ERROR is the distance between the estimated and the actual start, MEDIAN DELAY
    counts early starts as negative, WITHIN x2 is the share of jobs that waited between half and
    twice as long as estimated. Jobs that started at once have no estimate. Jobs that waited without
    an estimate are counted.
    """
    now = datetime.now(UTC)
    begin = None if since is None else now - timedelta(seconds=since)
    with settings.open() as workspace:
        rows = workspace.store.queue_history(since=begin, target=target)
        usage = workspace.store.usage(since=begin, target=target)
    names = {row.target for row in rows} | {one.target for one in usage}
    capacities = {name: found for name in names if (found := _capacity(name)) is not None}
    made = queue_report(
        rows,
        usage,
        now=now,
        since=begin,
        capacity={name: _running(found) for name, found in capacities.items()},
    )
    if settings.as_json:
        print_json(made.to_dict())
    elif rows or usage:
        click.echo("\n\n".join(_sections(made, capacities)))
    else:
        settings.note("no jobs were submitted in that time; `rayjobs ls -a` lists all")


def _capacity(target: str) -> Capacity | None:
    """Return the capacity of a target; None if unknown."""
    from rayjobs.target.targets import capacity_of

    try:
        found = capacity_of(target)
    except RayjobsError:
        return None  # a target that has since been removed
    return found if found.nodes else None


def _running(capacity: Capacity) -> tuple[float, float]:
    """Return the CPUs and GPUs of the nodes that run now, without those that may still start."""
    nodes = capacity.nodes if capacity.running is None else capacity.running
    return sum(n.cpus * n.count for n in nodes), sum(n.gpus * n.count for n in nodes)


def _sections(made: QueueReport, capacities: Mapping[str, Capacity]) -> list[str]:
    sections = [
        _predictions("First estimates against actual starts", made.first_by_target, "TARGET"),
        _predictions("Last estimates before the start", made.last_by_target, "TARGET"),
        _predictions("First estimates by what they are based on", made.first_by_basis, "BASED ON"),
        _waiting("Waits", [made.waits], "JOBS"),
    ]
    if len(made.waits_by_priority) > 1:
        sections.append(_waiting("Waits by priority", made.waits_by_priority, "PRIORITY"))
    if len(made.waits_by_user) > 1:
        sections.append(_waiting("Waits by user", made.waits_by_user, "USER"))
    sections.append(
        _waiting("Waits by sweep, array and pipeline run", made.waits_by_group, "GROUP")
    )
    sections.append(_used(made.in_use, capacities))
    if not made.first_by_target:
        sections.insert(0, "No job with an estimate has started yet.")
    sections.insert(0, _left_out(made.estimated))
    return [section for section in sections if section]


def _left_out(counts: Estimated) -> str:
    """Return which jobs the figures cover: how many in all, and how many without an estimate."""
    jobs = counts.placed + counts.still + counts.ended
    parts = [f"{counts.placed} started ({counts.placed_with} with an estimate)"]
    if counts.still:
        parts.append(f"{counts.still} still {verb(counts.still, 'waits', 'wait')}")
    if counts.ended:
        parts.append(f"{counts.ended} ended before {verb(counts.ended, 'it', 'they')} started")
    lines = [f"{counted(jobs, 'job')}: {', '.join(parts)}."]
    at_once = duration_text(AT_ONCE_S)
    if counts.waited:
        lines.append(
            f"{counted(counts.waited, 'job')} waited more than {at_once} to start, "
            f"{counts.waited_without} without an estimate (left out of the figures for estimates)."
        )
    if counts.waiting:
        lines.append(
            f"{counted(counts.waiting, 'job')} waiting now for more than {at_once}, "
            f"{counts.waiting_without} without an estimate."
        )
    return "\n".join(lines)


def _predictions(title: str, figures: Sequence[Predicted], name: str) -> str:
    if not figures:
        return ""
    rows = [
        (
            one.name,
            str(one.count),
            duration_text(one.median_error_s),
            _signed(one.median_late_s),
            f"{100 * one.within_twice:.0f} %",
        )
        for one in figures
    ]
    header = (name, "JOBS", "MEDIAN ERROR", "MEDIAN DELAY", "WITHIN x2")
    return f"{title}\n" + table(rows, header, right=(1, 2, 3, 4))


def _signed(seconds: float) -> str:
    return f"-{duration_text(-seconds)}" if seconds < 0 else duration_text(seconds)


def _waiting(title: str, figures: Sequence[Waits], name: str) -> str:
    if not figures:
        return ""
    # Lists of groups are the longest: show those that waited longest.
    shown = sorted(figures, key=lambda one: -(one.longest_s or one.waiting_longest_s or 0.0))
    names = {one.name for one in shown[:NAMED_AT_MOST]}
    rows = [
        (
            one.name,
            str(one.placed),
            duration_text(one.median_s),
            duration_text(one.p90_s),
            duration_text(one.longest_s),
            str(one.waiting),
            duration_text(one.waiting_longest_s),
        )
        for one in figures
        if one.name in names
    ]
    header = (name, "STARTED", "MEDIAN", "P90", "LONGEST", "STILL WAITING", "LONGEST SO FAR")
    text = f"{title}\n" + table(rows, header, right=(1, 2, 3, 4, 5, 6))
    more = len(figures) - len(rows)
    return f"{text}\nand {more} more (--json)" if more > 0 else text


def _used(figures: Sequence[InUse], capacities: Mapping[str, Capacity]) -> str:
    if not figures:
        return ""
    rows = [
        (
            one.name,
            f"{one.cpu_hours:.1f}",
            _share(one.cpus),
            f"{one.gpu_hours:.1f}",
            _share(one.gpus),
        )
        for one in figures
    ]
    header = ("TARGET", "CPU HOURS", "OF ITS CPUS", "GPU HOURS", "OF ITS GPUS")
    lines = [
        "Held by jobs (percentages of the target's current capacity)",
        table(rows, header, right=(1, 2, 3, 4)),
    ]
    for one in figures:
        known = capacities.get(one.name)
        if known is not None and known.running is not None:
            running = len(known.running)
            lines.append(
                f"{one.name}: {counted(running, 'node')} of at most {known.max_nodes} "
                f"{verb(running, 'runs', 'run')} now; those that may still start do not count."
            )
    return "\n".join(lines)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
