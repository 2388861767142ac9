"""`rayjobs resume`: continue from a job's newest complete checkpoint, in a new job."""

from __future__ import annotations

import sys
from typing import Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.cli.submit import note_submitted, stay, tell
from rayjobs.core.errors import SpecError

EPILOG = """\b
Examples:
  rayjobs resume 1f3c                      the same code, from where it was
  rayjobs resume 1f3c --max-duration 12h
  rayjobs resume -q 1f3c                   prints nothing but the new id

A retry (see --retries) resumes by itself; this command is for a job that has ended.
Its script finds the checkpoint with rayjobs.checkpoint.latest(), or in
RAYJOBS_RESUME_FROM.
"""
CHANGES = ("name", "target", "priority", "max_duration")


@click.command(epilog=EPILOG)
@job_argument
@click.option("-n", "--name", metavar="NAME", help="Name of the new job (default: the same name).")
@click.option("--target", metavar="NAME", help="Where to run (default: where the job ran).")
@click.option("--priority", metavar="N", help="Higher starts earlier.")
@click.option("--max-duration", metavar="TIME", help="Limit of an attempt, e.g. 6h.")
@click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow the job.")
@click.option("--attach", is_flag=True, help="Follow the job even without a terminal.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="A repeated call with the same key returns the first job.",
)
@quiet_option("Print only the id; do not follow the job.")
@json_option
@common_options
@click.pass_obj
def resume(
    settings: Settings,
    /,
    *,
    job: str,
    detach: bool,
    attach: bool,
    idempotency_key: str | None,
    **options: Any,
) -> int:
    """Submit a new job that continues from JOB's newest complete checkpoint, with the same code.

    Incomplete checkpoints are skipped. Only files that the script saved with
    rayjobs.checkpoint.save() count as checkpoints.
    """
    from rayjobs.cli.spec_options import named_by_option
    from rayjobs.submit import submitting

    if attach and (detach or settings.quiet or settings.as_json):
        raise click.UsageError("--attach cannot be combined with -d, -q or --json.")
    changes = {name: options[name] for name in CHANGES if options[name] is not None}
    try:
        with settings.open() as workspace:
            done = submitting.resume(
                workspace, job, changes=changes, idempotency_key=idempotency_key
            )
            note_submitted(settings, done, workspace)
            settings.note(f"continues from {done.job.spec.resume_from}")
            stays = attach or (sys.stdout.isatty() and not (detach or settings.quiet))
            if stays and not settings.as_json:
                return stay(settings, workspace, done)
            tell(settings, done)
    except SpecError as error:
        raise named_by_option(error, options) from error.__cause__
    return Exit.DONE
