"""Follows a job: its stages, its output as it is printed, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayjobs.core.errors import JobFailedError
from rayjobs.core.paths import home as default_home
from rayjobs.core.text import duration_text
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

POLL_S = 0.1
CARE_EVERY_S = 2.0


def attach(
    workspace: OpenWorkspace,
    job_id: str,
    *,
    show: Callable[[bytes], None] | None = None,
    on_stage: Callable[[str, Job], None] = lambda _stage, _job: None,
    on_start: Callable[[str], None] = lambda _text: None,
    start_target: bool = True,
    rank: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Job:
    """Follow a job to its end, or until `stop` returns True; return the job as it is then.

    Ctrl-C stops following the job; it never ends the job.

    Args:
        show: Gets a rank's output as bytes; None follows only the stages.
        on_stage: Called with Queued, Provisioning, Preparing, Running, Finalizing or the final
            state, each time it (or the reason to wait) changes.
        on_start: Gets the stages of the target's own start, if it does not run.
        start_target: Start the target if it does not run; otherwise wait for another process to
            start it.
        stop: Called repeatedly; True ends the call, but not the job.

    Raises:
        TargetError: the target could not be started; the job stays queued.
    """
    store = workspace.store
    shown: tuple[str, str] | None = None

    def look() -> Job:
        nonlocal shown
        job = store.job(job_id)
        stage = str(job.state)
        reason = job.reason if job.state is JobState.QUEUED else ""
        if (stage, reason) != shown:
            shown = (stage, reason)
            on_stage(stage, job)
        return job

    care = _Care(workspace)
    job = look()
    if start_target and not job.state.is_final:
        from rayjobs.target.starting import ensure_target

        ensure_target(job.target, home=default_home(), workspace=workspace.path, on_stage=on_start)
    if show is not None:
        for part in Logs(workspace, job_id).follow(rank, stop=stop):
            care.look(look())
            if part.data:
                show(part.data)
    while not (job := look()).state.is_final and not stop():
        care.look(job)
        time.sleep(POLL_S)
    return job


class _Care:
    """Restarts a target that dies while a caller waits for its job."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._path = workspace.path
        self._looked_s = time.monotonic()

    def look(self, job: Job) -> None:
        """Check the job's target from time to time."""
        if job.state.is_final or time.monotonic() - self._looked_s < CARE_EVERY_S:
            return
        self._looked_s = time.monotonic()
        from rayjobs.target.revive import look_after

        look_after(job.target, home=default_home(), workspace=self._path)


def wait(workspace: OpenWorkspace, job_id: str, *, timeout_s: float | None = None) -> Job:
    """Return a job once it is final, or (not final) after `timeout_s`.

    A target that died is restarted; one that a user stopped is not.
    """
    care = _Care(workspace)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        job = workspace.store.job(job_id)
        if job.state.is_final or (deadline is not None and time.monotonic() >= deadline):
            return job
        care.look(job)
        time.sleep(POLL_S)


def not_in_time(job: Job, timeout_s: float) -> TimeoutError:
    """Return the error for a job that did not end within `timeout_s`."""
    waited = duration_text(timeout_s, exact=True)
    return TimeoutError(f"{job.id} is {job.state} after {waited}; it continues")


def end_text(job: Job) -> str:
    """Return one sentence on how a final job ended."""
    if job.state is JobState.FAILED and job.failure is not None:
        return f"job {job.id} failed ({job.failure.failure_class}): {job.failure.message}"
    reason = f": {job.reason}" if job.reason and job.state is not JobState.COMPLETED else ""
    return f"job {job.id} is {job.state}{reason}"


def raise_for_end(job: Job) -> None:
    """Raise JobFailedError, with the last output lines, if a job Failed.

    Source: Azure ML v1, where ``wait_for_completion`` does not raise for a canceled run.
    """
    if job.state is not JobState.FAILED:
        return
    text = end_text(job)
    if job.failure is not None and job.failure.lines:
        text += "\n" + "\n".join(f"    {line}" for line in job.failure.lines)
    raise JobFailedError(text, job=job.id, state=str(job.state))
