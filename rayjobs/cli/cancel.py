"""`rayjobs cancel`: ask jobs to end."""

from __future__ import annotations

import getpass
from typing import Any

import click

from rayjobs.cli.jobviews import short_id
from rayjobs.cli.output import print_json
from rayjobs.cli.params import JobId
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.waking import wake_quietly
from rayjobs.core.errors import RayjobsError
from rayjobs.core.paths import home
from rayjobs.jobs.records import Job, JobLine
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.submit import copies
from rayjobs.target import abandoned
from rayjobs.target.condition import Standing

EPILOG = """\b
Examples:
  rayjobs cancel 1f3c
  rayjobs cancel 1f3c 88aa
  rayjobs cancel '1f3c[3]'       a member of an array; 1f3c alone: all of them
  rayjobs cancel -e mnist        all unfinished jobs of the experiment
"""


@click.command(epilog=EPILOG)
@click.argument("jobs", nargs=-1, type=JobId(), metavar="[JOB]...")
@click.option("-e", "--experiment", metavar="NAME", help="All unfinished jobs of an experiment.")
@click.option("-a", "--all", "cancel_all", is_flag=True, help="All unfinished jobs.")
@click.option(
    "--force",
    is_flag=True,
    help="Also end jobs whose target was removed or whose cluster cannot be reached.",
)
@json_option
@common_options
@click.pass_obj
def cancel(
    settings: Settings,
    jobs: tuple[str, ...],
    experiment: str | None,
    cancel_all: bool,
    force: bool,
) -> None:
    """Cancel jobs: SIGTERM, the job's grace period, then SIGKILL for its whole process tree.

    A queued job is canceled at once. Canceling a job that has ended changes nothing and exits 0.

    A job whose cluster is gone cannot be ended there. --force ends its record anyway: processes
    that may still run there are left alone, and whatever they report is ignored.
    """
    if sum((bool(jobs), experiment is not None, cancel_all)) != 1:
        raise click.UsageError("name the jobs, or give one of --experiment and --all.")
    with settings.open() as workspace:
        store = workspace.store
        if jobs:
            found: list[Job | JobLine] = []
            for text in jobs:
                try:
                    found.append(store.find(text))
                except RayjobsError:
                    if len(jobs) > 1:
                        settings.note(f"nothing was canceled, because of the name {text!r}:")
                    raise
        else:
            unfinished = [state for state in JobState if state not in FINAL]
            found = [
                *store.job_lines(JobFilter(states=unfinished, experiment=experiment, members=False))
            ]
            if not found:
                from rayjobs.cli.unknown_names import require_experiment

                require_experiment(store, experiment)
        results: list[dict[str, Any]] = []
        for job in {job.id: job for job in found}.values():
            copies.require_own(workspace, job, "cancel")
            state = store.request_cancel(job.id, by=getpass.getuser())
            results.append({"id": job.id, "state": state, "was": job.state})
            if state.is_final:
                continue
            condition = wake_quietly(job.target, workspace.path)
            if condition.standing is Standing.RUNNING:
                continue
            why = abandoned.why_gone(job.target, home=home())
            if force and why:
                abandoned.end(store, job.id, by=getpass.getuser(), why=why)
                results[-1]["state"] = store.job(job.id).state
            elif why:
                settings.note(
                    f"{job.id} cannot be ended there: {why}. If that cluster is gone for good, "
                    f"`rayjobs cancel --force {short_id(job)}` ends the job's record"
                )
            else:
                settings.note(f"{condition.reason}; {job.id} ends once it runs")
    if settings.as_json:
        print_json(results)
        return
    for result in results:
        click.echo(f"{result['id']}{_outcome(result['was'], result['state'])}")
    if not results:
        settings.note("Nothing to cancel.")


def _outcome(was: JobState, now: JobState) -> str:
    if was.is_final:
        return f" has already ended ({was})"
    if now.is_final:
        return f": {now}"
    return f": cancel requested (still {now})"
