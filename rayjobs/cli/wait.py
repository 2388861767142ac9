"""`rayjobs wait`: wait until jobs have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from rayjobs.cli.exits import Exit, of_job
from rayjobs.cli.jobviews import earlier_runs, end_text, job_json, short_id
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json, state_colour
from rayjobs.cli.params import Duration, JobId
from rayjobs.cli.settings import Settings, common_options, json_option, quiet_option
from rayjobs.core.terminal import plain_text
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

EPILOG = """\b
Examples:
  rayjobs wait 1f3c && echo it worked
  rayjobs wait --timeout 2h 1f3c 88aa
"""


@click.command(epilog=EPILOG)
@click.argument("jobs", nargs=-1, required=True, type=JobId(), metavar="JOB...")
@click.option("--timeout", type=Duration(), help="Give up after this time, with exit code 124.")
@quiet_option("Print nothing; only set the exit code.")
@json_option
@common_options
@click.pass_obj
def wait(settings: Settings, jobs: tuple[str, ...], timeout: float | None) -> int:
    """Wait until jobs have ended, and exit with their result.

    0: all completed. 124: the job reached its time limit (or --timeout passed). 1: a job
    failed or was canceled. An array has ended when all its members have, and takes the worst
    result. Ctrl-C stops waiting and exits with 130; the jobs continue.
    """
    from rayjobs.cli.following import where_it_is

    with settings.open() as workspace:
        found = list(
            dict.fromkeys(newest_named(settings, workspace.store, text).id for text in jobs)
        )
        try:
            ended, earlier, left = where_it_is(
                workspace,
                lambda at: _ended(at, found, settings.note, timeout_s=timeout),
                settings.note,
            )
        except TimeoutError as error:
            settings.note(str(error))
            return Exit.TIME_LIMIT
        except KeyboardInterrupt:
            typed = " ".join(jobs)
            settings.note(
                f"interrupted; no job was canceled. `rayjobs wait {typed}` waits again, "
                f"`rayjobs cancel {typed}` cancels what is unfinished"
            )
            return Exit.INTERRUPTED
    if settings.as_json:
        print_json([job_json(job, earlier_s=earlier.get(job.id)) for job in ended])
    elif not settings.quiet:
        for job in ended:
            _tell(settings, job, has_unstored=job.id in left)
    codes = {of_job(job) for job in ended} - {Exit.DONE}
    return codes.pop() if len(codes) == 1 else Exit.FAILED if codes else Exit.DONE


def _ended(
    workspace: OpenWorkspace,
    found: list[str],
    say: Callable[[str], None],
    *,
    timeout_s: float | None,
) -> tuple[list[Job], Mapping[str, float], set[str]]:
    """Return the ended jobs, how long their earlier attempts ran, and the ids of unstored jobs.

    Unstored jobs are those whose outputs are still to be stored.
    """
    from rayjobs.cli.following import await_end
    from rayjobs.cli.summary import has_unstored

    ended = await_end(workspace, found, say, timeout_s=timeout_s)
    left = {job.id for job in ended if has_unstored(workspace.store, job)}
    return ended, earlier_runs(workspace.store, ended), left


def _tell(settings: Settings, job: Job, *, has_unstored: bool) -> None:
    text = plain_text(end_text(job))
    click.echo(f"{job.id} {settings.style(text, state_colour(str(job.state)))}")
    if job.failure is not None:
        for line in job.failure.lines:
            click.echo(f"    {plain_text(line)}")
    if job.state is not JobState.COMPLETED:
        from rayjobs.cli.summary import next_commands, useful_commands

        for line in useful_commands(short_id(job), next_commands(job, has_unstored=has_unstored)):
            settings.note(line)
