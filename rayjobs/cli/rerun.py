"""`rayjobs rerun`: run a job again, with changes."""

from __future__ import annotations

import sys

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.cli.submit import SubmitCommand, note_submitted, script_arguments, stay, tell

EPILOG = """\b
Examples:
  rayjobs rerun 1f3c                                  the same once more
  rayjobs rerun 1f3c --set --lr=0.01                  a new value for a script's option
  rayjobs rerun 1f3c --set resources.gpus=1 --set max_duration=12h
  rayjobs rerun 1f3c -- --epochs 10                   other arguments altogether
  rayjobs rerun 1f3c --new-code                       the source folder as it is now

The code is the job's own snapshot unless --new-code is given. To continue from a
job's checkpoint, see `rayjobs resume`.
"""


@click.command(cls=SubmitCommand, epilog=EPILOG)
@job_argument
@click.argument("extra", nargs=-1, metavar="[-- ARGUMENT]...")
@click.option(
    "--set",
    "settings_given",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the job (see `rayjobs schema`) or an option of its script; repeatable.",
)
@click.option("-n", "--name", metavar="NAME", help="Name of the new job (default: numbered).")
@click.option("--target", metavar="NAME", help="Where to run (default: where the job ran).")
@click.option("--new-code", is_flag=True, help="Pack the source folder as it is now.")
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
def rerun(
    settings: Settings,
    /,
    *,
    job: str,
    extra: tuple[str, ...],
    settings_given: tuple[str, ...],
    name: str | None,
    target: str | None,
    new_code: bool,
    detach: bool,
    attach: bool,
    idempotency_key: str | None,
) -> int:
    """Submit JOB again with the same code, data and settings, unless changed here."""
    from rayjobs.submit.rerun import rerun as submit_again

    if extra:
        raise click.UsageError(
            f"{extra[0]!r} follows the job; put arguments of the script after `--`."
        )
    if attach and (detach or settings.quiet or settings.as_json):
        raise click.UsageError("--attach cannot be combined with -d, -q or --json.")
    changes = {key: value for key, value in (("name", name), ("target", target)) if value}
    with settings.open() as workspace:
        done = submit_again(
            workspace,
            job,
            settings=settings_given,
            arguments=script_arguments(),
            changes=changes,
            new_code=new_code,
            idempotency_key=idempotency_key,
        )
        note_submitted(settings, done, workspace)
        stays = attach or (sys.stdout.isatty() and not (detach or settings.quiet))
        if stays and not settings.as_json:
            return stay(settings, workspace, done)
        tell(settings, done)
    return Exit.DONE
