"""`rayjobs why`: what a job waits for, in the words of the policy that decides."""

from __future__ import annotations

import click

from rayjobs.cli.jobviews import end_text, job_json
from rayjobs.cli.outlook import outlooks
from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, common_options, job_argument, json_option
from rayjobs.states import JobState

EPILOG = """\b
Example:
  rayjobs why 1f3c
"""


@click.command(epilog=EPILOG)
@job_argument
@json_option
@common_options
@click.pass_obj
def why(settings: Settings, job: str) -> None:
    """Say why a job waits, and at which place of the queue it stands."""
    with settings.open() as workspace:
        found = workspace.store.find(job)
        outlook = outlooks(workspace.path, [found])[found.id]
    if settings.as_json:
        print_json(job_json(found, outlook))
    elif found.state is JobState.QUEUED:
        place = f" (number {outlook.position} in the queue)" if outlook.position else ""
        click.echo(f"{found.id} waits{place}: {outlook.reason}")
    elif found.state.is_final:
        click.echo(f"{found.id} does not wait: {end_text(found)}")
    else:
        rest = f": {outlook.reason}" if outlook.reason else ""
        click.echo(f"{found.id} does not wait: {outlook.state}{rest}")
