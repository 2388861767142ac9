"""`rayjobs update`: what may change of a job that was submitted."""

from __future__ import annotations

import click

from rayjobs.cli.jobviews import job_json
from rayjobs.cli.output import print_json
from rayjobs.cli.params import pairs
from rayjobs.cli.settings import Settings, common_options, job_argument, json_option
from rayjobs.cli.waking import wake_quietly

EPILOG = """\b
Examples:
  rayjobs update 1f3c --priority 10
  rayjobs update 1f3c --tag best=yes --untag draft
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option("--priority", type=click.IntRange(-1000, 1000), help="Higher starts earlier.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Set a tag (repeatable).")
@click.option("--untag", "untags", multiple=True, metavar="K", help="Remove a tag (repeatable).")
@click.option("--display-name", metavar="TEXT", help="What lists show.")
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
) -> None:
    """Change a job's priority, tags or shown name. What it runs never changes."""
    changed: dict[str, str | None] = dict.fromkeys(untags)
    changed.update(pairs(tags, option="--tag", example="best=yes"))
    if priority is None and not changed and display_name is None:
        raise click.UsageError("say what to change: --priority, --tag, --untag, --display-name.")
    with settings.open() as workspace:
        found = workspace.store.find(job)
        new = workspace.store.update(
            found.id, priority=priority, tags=changed or None, display_name=display_name
        )
        if priority is not None:
            wake_quietly(new.target, workspace.path)
    if settings.as_json:
        print_json(job_json(new))
    else:
        listed = ", ".join(f"{key}={value}" for key, value in new.tags.items()) or "no tags"
        click.echo(f"{new.id} priority {new.priority}, {listed}")
