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
from rayjobs.workspace import server_choice

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
        TargetError: the target or its cluster does not answer in time; the message names both.
        NotFoundError: it has no running attempt of the job.
    """
    from rayjobs.core.paths import home
    from rayjobs.target.wake_client import ask_target as ask_socket

    filled = replace(request, workspace=str(workspace), job=job.id)
    is_direct = (server or server_choice.active()) is None
    try:
        answer = ask_socket(job.target, home(), filled, kind, timeout_s=timeout_s, server=server)
    except TimeoutError as error:
        raise TargetError(
            f"{_checked(job.target, is_direct=is_direct)} does not answer: {error}. Try again; "
            f"`rayjobs target show {job.target}` shows what it is doing."
        ) from error
    if answer is None:
        raise TargetError(
            f"{_checked(job.target, is_direct=is_direct)} does not answer. Start it with `rayjobs "
            f"target start {job.target}`; running jobs continue meanwhile."
        )
    if not answer.ok:
        # The actor may outlive its cluster; its refusal does not name the address.
        _checked(job.target, is_direct=is_direct)
        raise NotFoundError(f"{answer.error or 'the target refused'}.")
    return answer


def _checked(target: str, *, is_direct: bool) -> str:
    """Return a target and its cluster in words, after a check that the cluster answers.

    Args:
        is_direct: This machine has the target; otherwise, a server does, and nothing is checked.

    Raises:
        TargetError: the cluster cannot be reached.
        NotFoundError: no such target.
    """
    from rayjobs.core.paths import home
    from rayjobs.target import reach, unfinished

    if not is_direct:
        return f"target {target!r}"
    address, reason = unfinished.why_unreached(target, home=home())
    if reason:
        raise TargetError(reach.unreachable_text(target, address, reason))
    return f"target {target!r} (cluster {address})" if address else f"target {target!r}"
