"""`rayjobs schema`: the JSON schema of job files."""

from __future__ import annotations

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import common_options

EPILOG = """\b
Example:
  rayjobs schema > job.schema.json
Then put this line at the top of a job file, and editors check it while you write:
  # yaml-language-server: $schema=job.schema.json
"""


@click.command(epilog=EPILOG)
@common_options
def schema() -> None:
    """Print the JSON schema of job files (`submit -f`), for editors and programs."""
    from rayjobs.spec.file import editor_schema

    print_json(editor_schema())
