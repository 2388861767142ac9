"""Waits for the end of a run and prints its stages and output meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayjobs.core.terminal import Shower
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.submit import attaching

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


NEVER_S = float("inf")


def wait(
    workspace: OpenWorkspace,
    run_id: str,
    *,
    show_output: bool,
    raise_on_error: bool,
    timeout_s: float = NEVER_S,
) -> None:
    """Wait for the end of a job; Ctrl-C stops waiting, and the job keeps running.

    Args:
        show_output: Print its stages and output.
        raise_on_error: Raise if it Failed.

    Raises:
        JobFailedError: it Failed, and `raise_on_error` is on.
        TargetError: the target could not be started; the job stays queued.
        TimeoutError: it did not end within `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s

    def is_late() -> bool:
        return time.monotonic() > until_s

    try:
        if show_output:
            job = _show(workspace, run_id, stop=is_late)
        else:
            job = attaching.attach(workspace, run_id, stop=is_late)
    except KeyboardInterrupt:
        say(
            f"\nNo longer following {run_id}; the job keeps running. "
            f"Cancel it with run.cancel(), or `rayjobs cancel {run_id}`."
        )
        raise
    if not job.state.is_final:
        raise attaching.not_in_time(job, timeout_s)
    if raise_on_error:
        attaching.raise_for_end(job)


def say(text: str) -> None:
    """Print a line at once."""
    _write(text + "\n")


def _show(workspace: OpenWorkspace, run_id: str, *, stop: Callable[[], bool]) -> Job:
    """Print stages and output until the end, or until `stop` returns true; return the job."""
    shower = Shower(colour=sys.stdout.isatty())
    at_line_start = True

    def show(data: bytes, *, final: bool = False) -> None:
        nonlocal at_line_start
        text = shower.show(data, final=final)
        if text:
            _write(text)
            at_line_start = text.endswith("\n")

    def stage(name: str, job: Job) -> None:
        nonlocal at_line_start
        if not at_line_start:
            _write("\n")
            at_line_start = True
        reason = f": {job.reason}" if job.reason and job.state is JobState.QUEUED else ""
        say(f"[{name}{reason}]")

    say(f"RunId: {run_id}")
    job = attaching.attach(workspace, run_id, show=show, on_stage=stage, on_start=say, stop=stop)
    show(b"", final=True)
    if not at_line_start:
        _write("\n")
    if job.state.is_final:
        say(attaching.end_text(job))
    return job


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
