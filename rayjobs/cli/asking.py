"""Asks a running target something of one of its jobs, over its wake socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayjobs.errors import NotFoundError, TargetError, UsageError
from rayjobs.records import Job
from rayjobs.states import JobState


def check_running(job: Job) -> None:
    """Check that a job is running.

    Raises:
        UsageError: it is not.
    """
    if job.state is not JobState.RUNNING:
        raise UsageError(
            f"job {job.id} is {job.state}: only a running job has processes. "
            f"`rayjobs why {job.id}` says what it waits for, `rayjobs show {job.id}` how it ended."
        )


def ask_target(
    job: Job, workspace: Path, request: dict[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    """Return what the job's target answers to `request`, to which the job is added.

    Raises:
        TargetError: the target does not answer, or not in time.
        NotFoundError: it has no attempt of the job that runs.
    """
    from rayjobs.compute.wakeclient import ask, socket_of
    from rayjobs.paths import home

    asked = {**request, "workspace": str(workspace), "job": job.id}
    try:
        answer = ask(socket_of(job.target, home()), asked, timeout_s=timeout_s)
    except TimeoutError as error:
        raise TargetError(
            f"target {job.target!r} does not answer: {error}. Ask again; `rayjobs target show "
            f"{job.target}` shows what it does."
        ) from error
    if answer is None:
        raise TargetError(
            f"target {job.target!r} does not answer. Start it with "
            f"`rayjobs target start {job.target}`; running jobs go on meanwhile."
        )
    if not answer.get("ok"):
        raise NotFoundError(f"{answer.get('error') or 'the target refused'}.")
    return answer
