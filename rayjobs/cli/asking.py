"""Sends a running target a request about one of its jobs, over its wake socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rayjobs.core.errors import NotFoundError, TargetError, UsageError
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.target.answers import TargetAnswer
from rayjobs.target.requests import TargetRequest

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

Kind = TypeVar("Kind", bound=TargetAnswer)


def check_running(job: Job) -> None:
    """Check that a job is running.

    Raises:
        UsageError: it is not.
    """
    if job.state is JobState.RUNNING:
        return
    if job.state.is_final:
        raise UsageError(
            f"job {job.id} has ended ({job.state}), so it has no processes. "
            f"`rayjobs show {job.id}` says how it ended."
        )
    raise UsageError(
        f"job {job.id} is {job.state}: only a running job has processes. "
        f"`rayjobs why {job.id}` says what it waits for."
    )


def ask_target(
    job: Job,
    workspace: Path,
    request: TargetRequest,
    kind: type[Kind],
    *,
    timeout_s: float,
    server: Connection | None = None,
) -> Kind:
    """Send the job's target a request about the job, and return the answer.

    Args:
        request: The request; its workspace and job are filled in here.
        kind: The class of the answer (`answers.ANSWERS`).
        server: See `wake_client.ask_target`.

    Raises:
        TargetError: the target does not answer in time.
        NotFoundError: it has no running attempt of the job.
    """
    from rayjobs.core.paths import home
    from rayjobs.target.wake_client import ask_target as ask_socket

    filled = replace(request, workspace=str(workspace), job=job.id)
    try:
        answer = ask_socket(job.target, home(), filled, kind, timeout_s=timeout_s, server=server)
    except TimeoutError as error:
        raise TargetError(
            f"target {job.target!r} does not answer: {error}. Try again; `rayjobs target show "
            f"{job.target}` shows what it is doing."
        ) from error
    if answer is None:
        raise TargetError(_why_silent(job.target))
    if not answer.ok:
        raise NotFoundError(f"{answer.error or 'the target refused'}.")
    return answer


def _why_silent(target: str) -> str:
    """Return what is wrong with a target on whose socket nothing listens."""
    from rayjobs.core.paths import home
    from rayjobs.target import reach, unfinished

    address, reason = unfinished.why_unreached(target, home=home())
    if reason:
        return reach.unreachable_text(target, address, reason)
    return (
        f"target {target!r} does not answer. Start it with `rayjobs target start {target}`; "
        "running jobs continue meanwhile."
    )
