"""`rayjobs update`: what may change of a job that was submitted."""

from __future__ import annotations

import click

from rayjobs.cli.jobviews import earlier_runs, job_json
from rayjobs.cli.output import print_json
from rayjobs.cli.params import pairs
from rayjobs.cli.settings import Settings, common_options, job_argument, json_option
from rayjobs.cli.waking import wake_quietly
from rayjobs.terminal import plain_text

EPILOG = """\b
Examples:
  rayjobs update 1f3c --priority 10
  rayjobs update 1f3c --tag best=yes --untag draft
  rayjobs update 1f3c --hold "until the data is there"
  rayjobs update 1f3c --release
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option("--priority", type=click.IntRange(-1000, 1000), help="Higher starts earlier.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Set a tag (repeatable).")
@click.option("--untag", "untags", multiple=True, metavar="K", help="Remove a tag (repeatable).")
@click.option("--display-name", metavar="TEXT", help="What lists show.")
@click.option("--hold", metavar="WHY", help="Do not start it until it is released.")
@click.option("--release", is_flag=True, help="Let a held job be started again.")
@json_option
@common_options
@click.pass_obj
def update(
    settings: Settings,
    job: str,
    priority: int | None,
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    display_name: str | None,
    hold: str | None,
    release: bool,
) -> None:
    """Change a job's priority, tags or shown name, or hold it. What it runs never changes.

    The priority and the hold of an array are those of its members that have not ended.
    """
    if hold is not None and (release or not hold.strip()):
        raise click.UsageError("give --hold with a reason, or --release.")
    changed: dict[str, str | None] = dict.fromkeys(untags)
    changed.update(pairs(tags, option="--tag", example="best=yes"))
    if not any((changed, release, hold)) and priority is None and display_name is None:
        raise click.UsageError(
            "say what to change: --priority, --tag, --untag, --display-name, --hold, --release."
        )
    with settings.open() as workspace:
        found = workspace.store.find(job)
        new = workspace.store.update(
            found.id, priority=priority, tags=changed or None, display_name=display_name
        )
        if hold is not None:
            new = workspace.store.hold(found.id, reason=hold.strip())
        elif release:
            new = workspace.store.release(found.id)
        if priority is not None or release:
            wake_quietly(new.target, workspace.path)
        earlier_s = earlier_runs(workspace.store, [new]).get(new.id)
    if settings.as_json:
        print_json(job_json(new, earlier_s=earlier_s))
    else:
        listed = ", ".join(f"{key}={value}" for key, value in new.tags.items()) or "no tags"
        held = f", held: {plain_text(new.held)}" if new.held else ""
        click.echo(f"{new.id} priority {new.priority}, {listed}{held}")
