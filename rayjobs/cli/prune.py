"""`rayjobs prune`: remove stored files of finished jobs, by age, number and size."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import ago_text, print_json, table
from rayjobs.cli.params import Duration
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.clock import SystemClock
from rayjobs.core.text import counted, duration_text, size_text, verb
from rayjobs.core.users import user_name

if TYPE_CHECKING:
    from rayjobs.core.safe_delete import Removed
    from rayjobs.housekeeping.prune import PrunePlan, Rules, Unit
    from rayjobs.housekeeping.scratch import ScratchPlan
    from rayjobs.workspace.audit import Old

MOST_SHOWN = 20
_KINDS = {
    "attempt": "folders of attempts that have ended",
    "snapshot": "unpacked snapshots",
    "data": "cached inputs",
    "environment": "environments",
    "cache": "build caches of environments: conda packages, local projects of jobs",
    "image": "container images",
    "web": "cached web files",
}

EPILOG = """\b
Examples:
  rayjobs prune --dry-run                    what ended more than 30 days ago
  rayjobs prune --older-than 7d --keep 20
  rayjobs prune --max-size 50GiB --yes       the oldest, until the rest fits
  rayjobs prune --scratch --dry-run          also what is left on this machine

Jobs that are not finished, and what they resume from or wait for, the files of
registered models, and data in datastores always stay. Without --records, jobs
keep their rows: state, history and metrics.
"""


@click.command(epilog=EPILOG)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed, and its size.")
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(),
    help="Jobs that ended longer ago than this [30d, unless another rule is given].",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Keep this many of the newest finished jobs; without other rules, remove all others.",
)
@click.option(
    "--max-size", help="Remove the oldest jobs until stored files take at most this size."
)
@click.option(
    "--scratch",
    is_flag=True,
    help="Also this machine's leftovers: attempt folders, snapshots, environments, images, caches.",
)
@click.option(
    "--records", is_flag=True, help="Also remove the jobs' rows: ls no longer lists them."
)
@click.option(
    "--audit-older-than",
    "audit_older_than_s",
    type=Duration(),
    default="400d",
    show_default=True,
    help="Remove audit records of changes older than this, and tokens four weeks after they end.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask; required where there is no terminal.")
@json_option
@common_options
@click.pass_obj
def prune(
    settings: Settings,
    dry_run: bool,
    older_than_s: float | None,
    keep: int | None,
    max_size: str | None,
    scratch: bool,
    records: bool,
    audit_older_than_s: float,
    yes: bool,
) -> int:
    """Remove unneeded stored files of finished jobs, after showing them.

    A sweep is kept or removed with all its trials.
    """
    from rayjobs.workspace import audit, server_choice

    server_choice.refuse("`rayjobs prune`")
    if not (dry_run or yes) and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "without a terminal, --yes is required to remove anything; preview with --dry-run"
        )
    from rayjobs.core.paths import home
    from rayjobs.core.safe_delete import Removed
    from rayjobs.housekeeping import prune as stored
    from rayjobs.housekeeping import scratch as node
    from rayjobs.workspace.folder import WorkspaceFiles, locate

    rules = _rules(older_than_s, keep, max_size, records)
    with contextlib.ExitStack() as stack:
        workspace, plan, leftovers, old = None, None, None, None
        if not scratch or WorkspaceFiles(locate(settings.workspace)).record.exists():
            workspace = stack.enter_context(settings.open())
            if not dry_run:
                stack.enter_context(stored.pruning(workspace))
            plan = stored.plan(workspace, rules)
            now = SystemClock().now()
            before = now - timedelta(seconds=audit_older_than_s)
            old = audit.old(workspace.store, before=before, now=now)
        if scratch:
            leftovers = node.plan(
                home(),
                workspace=workspace.path if workspace else None,
                older_than_s=stored.DEFAULT_AGE_S if older_than_s is None else older_than_s,
            )
        if not settings.as_json:
            _show(settings, plan, leftovers, dry_run)
            _show_old(old)
        removed = None
        if not dry_run and _is_wanted(plan, leftovers, old, yes):
            removed = Removed()
            if workspace is not None and plan is not None:
                if old:
                    audit.forget(workspace.store, old)
                removed.add(
                    stored.apply(workspace, plan, how=_how(older_than_s, keep, max_size, records))
                )
            if leftovers is not None:
                removed.add(node.apply(leftovers))
    return _report(settings, plan, leftovers, removed, old)


def _how(older_than_s: float | None, keep: int | None, max_size: str | None, records: bool) -> str:
    """Return who prunes and with which command, for the jobs' histories."""
    given = []
    if older_than_s is not None:
        given.append(f"--older-than {duration_text(older_than_s, exact=True)}")
    if keep is not None:
        given.append(f"--keep {keep}")
    if max_size is not None:
        given.append(f"--max-size {max_size}")
    if records:
        given.append("--records")
    return f"by {user_name()} with `{' '.join(['rayjobs prune', *given])}`"


def _rules(
    older_than_s: float | None, keep: int | None, max_size: str | None, records: bool
) -> Rules:
    from rayjobs.core.units import parse_size
    from rayjobs.housekeeping.prune import DEFAULT_AGE_S, Rules

    if older_than_s is None and max_size is None:
        older_than_s = DEFAULT_AGE_S if keep is None else 0.0
    return Rules(
        older_than_s=older_than_s,
        max_bytes=None if max_size is None else int(parse_size(max_size, unit=1)),
        keep=keep or 0,
        records=records,
    )


def _is_wanted(
    plan: PrunePlan | None, leftovers: ScratchPlan | None, old: Old | None, yes: bool
) -> bool:
    """Return whether to continue, asking where needed; False if there is nothing to do."""
    if not ((plan and (plan.units or plan.going)) or (leftovers and leftovers.items) or old):
        return False
    return yes or click.confirm("Remove this?", err=True)


def _show_old(old: Old | None) -> None:
    if old is not None and old.changes:
        click.echo(f"{counted(old.changes, 'change')} in the audit log that are too old")
    if old is not None and old.tokens:
        click.echo(f"{counted(len(old.tokens), 'token')} that expired weeks ago")


def _show(
    settings: Settings, plan: PrunePlan | None, leftovers: ScratchPlan | None, dry_run: bool
) -> None:
    would = "would remove" if dry_run else "to remove:"
    if plan is not None:
        rows = [
            (
                unit.id.rpartition("_")[2],
                unit.name,
                str(len(unit.jobs)),
                ago_text(unit.ended_at),
                str(unit.rows),
                size_text(plan.size_of(unit)),
            )
            for unit in plan.units[:MOST_SHOWN]
        ]
        if rows:
            click.echo(table(rows, ("ID", "NAME", "JOBS", "ENDED", "FILES", "SIZE")))
        if len(plan.units) > MOST_SHOWN:
            click.echo(f"… and {len(plan.units) - MOST_SHOWN} more")
        if plan.unreferenced:
            click.echo(f"{counted(len(plan.unreferenced), 'stored file')} that no job refers to")
        for job, why in sorted(plan.stays.items()):
            settings.note(f"{job} stays: {why}")
        if plan.fresh:
            settings.note(
                f"{counted(plan.fresh, 'stored file')} that no job refers to "
                f"{verb(plan.fresh, 'stays', 'stay')}, used within the last hour; a later prune "
                f"removes {verb(plan.fresh, 'it', 'them')}"
            )
        if plan.units:
            jobs = len(plan.jobs)
            click.echo(
                f"{counted(jobs, 'job')} {verb(jobs, 'loses its', 'lose their')} logs and stored "
                f"files: {counted(plan.files_unreferenced(done=False), 'file')}"
                f"{_shared(plan)}"
            )
        click.echo(
            f"{would} {size_text(plan.bytes)} of stored files; {size_text(plan.bytes_left)} remain"
        )
    if leftovers is not None:
        for kind in _KINDS:
            items = [item for item in leftovers.items if item.kind == kind]
            if items:
                size = size_text(sum(item.bytes for item in items))
                click.echo(f"{_KINDS[kind]}: {len(items)}, {size}")
        for sentence in leftovers.kept:
            settings.note(f"stays: {sentence}")
        click.echo(f"{would} {size_text(leftovers.bytes)} of scratch in {leftovers.root}")


def _report(
    settings: Settings,
    plan: PrunePlan | None,
    leftovers: ScratchPlan | None,
    removed: Removed | None,
    old: Old | None,
) -> int:
    for sentence in removed.kept if removed else ():
        settings.note(sentence)
    if settings.as_json:
        print_json(
            {
                "removed": None if removed is None else asdict(removed),
                "jobs": [] if plan is None else [_unit(plan, unit) for unit in plan.units],
                "unreferenced": 0 if plan is None else len(plan.unreferenced),
                "files_shared": 0 if plan is None else len(plan.shared),
                "files_unreferenced": 0
                if plan is None
                else plan.files_unreferenced(done=removed is not None),
                "audit_changes": 0 if old is None else old.changes,
                "tokens": 0 if old is None else len(old.tokens),
                "bytes": 0 if plan is None else plan.bytes,
                "bytes_left": 0 if plan is None else plan.bytes_left,
                "stays": {} if plan is None else plan.stays,
                "scratch": None if leftovers is None else [asdict(one) for one in leftovers.items],
            }
        )
    elif removed is not None:
        if plan is not None and plan.pruned:
            jobs = len(plan.pruned)
            files = counted(plan.files_unreferenced(done=True), "file")
            click.echo(
                f"{counted(jobs, 'job')} lost {verb(jobs, 'its', 'their')} logs and stored "
                f"files: {files}{_shared(plan)}"
            )
        click.echo(
            f"removed {counted(removed.files, 'file')} from disk, {size_text(removed.bytes)}"
        )
    return Exit.FAILED if removed is not None and removed.kept else Exit.DONE


def _shared(plan: PrunePlan) -> str:
    """Return the note about bytes that other jobs or models share; empty if there are none."""
    count = len(plan.shared)
    if not count:
        return ""
    return (
        f" (the bytes of {counted(count, 'file')} stay: other jobs or models "
        f"use {verb(count, 'it', 'them')} too)"
    )


def _unit(plan: PrunePlan, unit: Unit) -> dict[str, Any]:
    return {
        "id": unit.id,
        "name": unit.name,
        "jobs": unit.jobs,
        "ended_at": unit.ended_at,
        "files": unit.rows,
        "bytes": plan.size_of(unit),
    }
