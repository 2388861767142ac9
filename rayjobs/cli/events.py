"""`rayjobs events`: a job's history."""

from __future__ import annotations

from dataclasses import asdict

import click

from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json, print_json_line, table
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.terminal import plain_text
from rayjobs.jobs.events import AgentLost
from rayjobs.jobs.records import Event
from rayjobs.remote.events import follow as follow_events

EPILOG = """\b
Examples:
  rayjobs events 1f3c
  rayjobs events -f 1f3c          until the job ends
  rayjobs events 1f3c --json
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Follow until the job ends.")
@json_option
@common_options
@click.pass_obj
def events(settings: Settings, job: str, follow: bool) -> None:
    """List a job's history: every step, request and retry, with its reason.

    With -v, each line shows the full text of an error; without it, only the beginning.
    """
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        if follow:
            for event in follow_events(workspace, found.id):
                if settings.as_json:
                    print_json_line(asdict(event))
                else:
                    click.echo("  ".join(part for part in _row(event, settings.verbose) if part))
            return
        listed = workspace.store.events(found.id)
        if settings.as_json:
            print_json([asdict(event) for event in listed])
        elif listed:
            header = ("TIME", "ATTEMPT", "EVENT", "")
            click.echo(
                table([_row(event, settings.verbose) for event in listed], header, right=(1,))
            )


def _row(event: Event, verbose: bool) -> tuple[str, str, str, str]:
    at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    attempt = str(event.attempt) if event.attempt else ""
    lost = AgentLost.of(event) if verbose else None
    detail = "" if lost is None else lost.detail
    message = f"{event.message} ({detail})" if detail else event.message
    return at, attempt, event.kind, plain_text(" ".join(message.split()))
