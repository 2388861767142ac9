"""`rayjobs update`: change a submitted job."""

from __future__ import annotations

import click

from rayjobs.cli.jobviews import earlier_runs, job_json
from rayjobs.cli.output import print_json
from rayjobs.cli.params import job_argument, pairs
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.waking import wake_quietly
from rayjobs.core.terminal import plain_text
from rayjobs.store.requests import JobChanges

EPILOG = """\b
Examples:
  rayjobs update 1f3c --priority 10
  rayjobs update 1f3c --max-duration 2h
  rayjobs update 1f3c --nodes 1 --gpus-per-proc 1
  rayjobs update 1f3c --tag best=yes --untag draft
  rayjobs update 1f3c --hold "until the data is uploaded"
  rayjobs update 1f3c --release
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option(
    "--priority", type=click.IntRange(-1000, 1000), help="Jobs of higher priority start earlier."
)
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Set a tag (repeatable).")
@click.option("--untag", "untags", multiple=True, metavar="K", help="Remove a tag (repeatable).")
@click.option("--display-name", metavar="TEXT", help="The name that lists show.")
@click.option(
    "--max-duration", metavar="TIME", help="Time limit of an attempt, e.g. 6h; none: no limit."
)
@click.option("--nodes", metavar="N", help="Number of nodes.")
@click.option("--procs-per-node", metavar="N", help="Processes on each node.")
@click.option("--cpus-per-proc", metavar="N", help="CPUs of each process.")
@click.option("--gpus-per-proc", metavar="N", help="GPUs of each process; 0.5 shares one.")
@click.option("--memory-per-proc", metavar="SIZE", help="Memory limit of a process, e.g. 8GiB.")
@click.option("--hold", metavar="WHY", help="Do not start it until it is released.")
@click.option("--release", is_flag=True, help="Allow a held job to start again.")
@json_option
@common_options
@click.pass_obj
def update(
    settings: Settings,
    /,
    *,
    job: str,
    priority: int | None,
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    display_name: str | None,
    hold: str | None,
    release: bool,
    **options: str | None,
) -> None:
    """Change a waiting job's time limit, resources, priority or tags, or hold it.

    Each change creates a new revision of the job's spec. The job keeps its position in the queue
    and its code. A running job can change only its priority, tags, display name and hold. A change
    of an array applies to its waiting members; its priority and hold apply to all unfinished
    members.
    """
    from rayjobs.cli.spec_options import from_options, named_by_option
    from rayjobs.core.errors import SpecError
    from rayjobs.jobs.states import JobState
    from rayjobs.submit.revising import OF_SIZE, notes_of, revise

    if hold is not None and (release or not hold.strip()):
        raise click.UsageError("give --hold with a reason, or --release.")
    changed: dict[str, str | None] = dict.fromkeys(untags)
    changed.update(pairs(tags, option="--tag", example="best=yes"))
    revised = from_options(None, (), options, [])
    if not any((revised, changed, release, hold)) and priority is None and display_name is None:
        raise click.UsageError(
            "say what to change: --max-duration, --nodes, --procs-per-node, --cpus-per-proc, "
            "--gpus-per-proc, --memory-per-proc, --priority, --tag, --untag, --display-name, "
            "--hold, --release."
        )
    with settings.open() as workspace:
        found = workspace.store.find(job)
        is_queued = found.state is JobState.QUEUED
        if is_queued:  # priority and tags are part of the submitted spec
            revised |= {} if priority is None else {"priority": priority}
        changes = JobChanges(
            priority=priority,
            tags=changed or None,
            display_name=display_name,
            hold=None if hold is None else hold.strip(),
            release=release,
        )
        if revised or (is_queued and changed):
            try:
                new = revise(workspace, found, revised, changes)
            except SpecError as error:
                raise named_by_option(error, options) from error.__cause__
        else:
            new = workspace.store.update(found.id, changes)
        if revised or (is_queued and changed) or priority is not None or release:
            wake_quietly(new.target, workspace.path)
        earlier_s = earlier_runs(workspace.store, [new]).get(new.id)
        revision = workspace.store.revision(new.id)
        resized = any(name in revised for name in OF_SIZE)
        notes = notes_of(new.spec) if resized else ()
    for text in notes:
        settings.note(f"note: {text}")
    if settings.as_json:
        print_json({**job_json(new, earlier_s=earlier_s), "revision": revision, "notes": notes})
    else:
        listed = ", ".join(f"{key}={value}" for key, value in new.tags.items()) or "no tags"
        held = f", held: {plain_text(new.held)}" if new.held else ", released" if release else ""
        number = f", revision {revision}" if revision > 1 else ""
        named = {str(option).replace("_", "-"): value for option, value in options.items() if value}
        sizes = "".join(f", {option} {value}" for option, value in named.items())
        click.echo(f"{new.id} priority {new.priority}{sizes}, {listed}{held}{number}")
