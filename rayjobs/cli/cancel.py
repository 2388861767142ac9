"""`rayjobs cancel`: ask jobs to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.jobviews import short_id
from rayjobs.cli.naming import unfinished_named
from rayjobs.cli.output import print_json
from rayjobs.cli.params import JobId
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.cli.waking import wake_quietly
from rayjobs.core.errors import RayjobsError
from rayjobs.core.paths import home
from rayjobs.core.users import user_name
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.submit import copies
from rayjobs.target import abandoned
from rayjobs.target.condition import Standing

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job, JobLine
    from rayjobs.store.base import Store
    from rayjobs.workspace.folder import OpenWorkspace

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

    A queued job is canceled at once. Canceling a job that has ended changes nothing and exits 0. If
    several jobs have the name, the only one that has not ended is meant; otherwise, give an id.

    A job whose cluster is gone cannot be ended there. --force ends its record anyway: processes
    that may still run there are left alone, and whatever they report is ignored.
    """
    if sum((bool(jobs), experiment is not None, cancel_all)) != 1:
        raise click.UsageError("name the jobs, or give one of --experiment and --all.")
    with settings.open() as workspace:
        if jobs:
            found = _named(settings, workspace.store, jobs)
        else:
            found = _unfinished(workspace.store, experiment)
        results: list[dict[str, Any]] = [
            {"id": job.id, "state": _cancel(settings, workspace, job, force), "was": job.state}
            for job in {job.id: job for job in found}.values()
        ]
    if settings.as_json:
        print_json(results)
        return
    for result in results:
        click.echo(f"{result['id']}{_outcome(result['was'], result['state'])}")
    if not results:
        settings.note("Nothing to cancel.")


def _named(settings: Settings, store: Store, names: tuple[str, ...]) -> Sequence[Job | JobLine]:
    """Return the jobs with these names. Raises what `unfinished_named` raises."""
    found = []
    for text in names:
        try:
            found.append(unfinished_named(settings, store, text))
        except RayjobsError:
            if len(names) > 1:
                settings.note(f"nothing was canceled, because of the name {text!r}:")
            raise
    return found


def _unfinished(store: Store, experiment: str | None) -> Sequence[Job | JobLine]:
    """Return the unfinished jobs of an experiment, or of all.

    Raises:
        UsageError: there is no such experiment.
    """
    states = [state for state in JobState if state not in FINAL]
    found = store.job_lines(JobFilter(states=states, experiment=experiment, members=False))
    if not found:
        from rayjobs.cli.unknown_names import require_experiment

        require_experiment(store, experiment)
    return found


def _cancel(
    settings: Settings, workspace: OpenWorkspace, job: Job | JobLine, force: bool
) -> JobState:
    """Request a job's end, wake its target, and return the job's state now.

    Raises:
        UsageError: the job runs in another workspace.
    """
    store = workspace.store
    copies.require_own(workspace, job, "cancel")
    state = store.request_cancel(job.id, by=user_name())
    if state.is_final:
        return state
    condition = wake_quietly(job.target, workspace.path)
    if condition.standing is Standing.RUNNING:
        return state
    why = abandoned.why_gone(job.target, home=home())
    if force and why:
        abandoned.end(store, job.id, by=user_name(), why=why)
        return store.job(job.id).state
    if why:
        settings.note(
            f"{job.id} cannot be ended there: {why}. If that cluster is gone for good, "
            f"`rayjobs cancel --force {short_id(job)}` ends the job's record"
        )
    else:
        settings.note(f"{condition.reason}; {job.id} ends once the target runs")
    return state


def _outcome(was: JobState, now: JobState) -> str:
    if was.is_final:
        return f" has already ended ({was})"
    if now.is_final:
        return f": {now}"
    return f": cancel requested (still {now})"
