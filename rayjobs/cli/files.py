"""`rayjobs files`: a job's stored files."""

from __future__ import annotations

import click

from rayjobs.cli.fetching import chosen_files
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import local_time, print_json, table
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.unknown_names import require_single_job
from rayjobs.core.terminal import one_line
from rayjobs.core.text import size_text
from rayjobs.results.gone import why_gone

EPILOG = """\b
Examples:
  rayjobs files 1f3c
  rayjobs files 1f3c outputs/
  rayjobs files 1f3c '*.pt'
"""


@click.command(epilog=EPILOG)
@job_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@common_options
@click.pass_obj
def files(settings: Settings, job: str, names: tuple[str, ...]) -> None:
    """List a job's stored files. NAME is a file, a folder or a pattern."""
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        all_files = workspace.store.files(found.id)
        if not all_files:
            require_single_job(workspace.store, found, "files", what="files")
        gone = "" if all_files else why_gone(workspace.store, found)
        stored = chosen_files(found.id, all_files, names, gone=gone)
    if settings.as_json:
        print_json(
            [
                {
                    "name": one.name,
                    "size": one.size,
                    "digest": one.digest,
                    "attempt": one.attempt,
                    "stored_at": one.stored_at,
                }
                for one in stored
            ]
        )
    elif stored:
        rows = [
            (size_text(one.size), local_time(one.stored_at), one_line(one.name)) for one in stored
        ]
        click.echo(table(rows, ("SIZE", "STORED", "NAME"), right=(0,), columns=10_000))
    else:
        why = f": {gone}" if gone else "" if found.state.is_final else " yet"
        settings.note(f"{found.id} has no files{why}")
