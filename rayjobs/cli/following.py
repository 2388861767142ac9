"""Follows jobs to their end: stages on stderr, the jobs' output on stdout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rayjobs.cli.jobviews import short_id
from rayjobs.cli.outlook import NOT_RESPONDING, outlooks, state_now
from rayjobs.cli.screen import Screen
from rayjobs.core.errors import StoreError
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.driver_log import last_lines
from rayjobs.results.logs import Logs, Part
from rayjobs.submit import copies
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

Result = TypeVar("Result")
LOOK_EVERY_S = 0.1
OUTLOOK_EVERY_S = 2.0
KEPT_BYTES = 16 << 20
_BEFORE_OUTPUT = (JobState.PROVISIONING, JobState.PREPARING)


class Stages:
    """Reports on stderr what has changed about one job since the last `look`.

    Args:
        say: Gets each line.
        label: Prefix of each line, where several jobs are watched.
    """

    def __init__(
        self, workspace: OpenWorkspace, job_id: str, say: Callable[[str], None], *, label: str = ""
    ) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._say = say
        self._label = label
        self._announced = ""
        self._reason = ""
        self._attempt = 0
        self._printed = 0  # the last attempt with shown output
        self._was_over = False
        self._held: str | None = None
        self._looked_s = float("-inf")
        self._outlook_s = time.monotonic()
        self.job: Job = workspace.store.job(job_id)

    def look(self) -> Job:
        """Return the job as it is (at most 0.1 s old); report what changed.

        Raises:
            UsageError: the workspace is a copy, and the job runs in the original.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return self.job
        is_first = self._looked_s == float("-inf")
        self._looked_s = now_s
        self.job = job = self._workspace.store.job(self._job_id)
        if is_first:
            copies.require_own(self._workspace, job, "wait")
        if job.state.is_final:
            self._was_over = is_first
            return job
        if job.attempt == self._printed and job.state in _BEFORE_OUTPUT:
            return job  # it has output, so it runs, although its target has not recorded that yet
        stage = _stage(state_now(job), job.attempt)
        again = job.state is JobState.QUEUED and job.attempt > self._attempt
        self._attempt = job.attempt
        if stage != self._announced or again:
            # Once a job was put back into the queue, its reason says how its last attempt ended.
            reason = job.reason if job.state is JobState.QUEUED and job.attempt else ""
            self._announced, self._reason = stage, reason
            self._tell(stage, reason)
        if job.held != self._held:
            self._held = job.held
            self._say_held(job)
        if now_s - self._outlook_s >= OUTLOOK_EVERY_S:
            self._outlook_s = now_s
            self._look_ahead(job)
        return job

    def printed(self, attempt: int) -> None:
        """Print that an attempt is running, before its first output is shown.

        The state is read only at intervals; meanwhile the job may have printed everything and
        ended.
        """
        if attempt <= self._printed or self._was_over:
            return
        self._printed = attempt
        if self.job.state is JobState.QUEUED and self.job.attempt >= attempt:
            self._tell(f"attempt {attempt}, which has ended, printed:", "")
            return
        stage = _stage(JobState.RUNNING, attempt)
        if self._announced not in (stage, _stage(JobState.FINALIZING, attempt)):
            self._announced, self._reason = stage, ""
            self._tell(stage, "")

    def _look_ahead(self, job: Job) -> None:
        outlook = outlooks(self._workspace.path, [job], store=self._workspace.store)[job.id]
        is_array = job.kind == "array"
        is_other = outlook.state == NOT_RESPONDING or (
            not is_array and outlook.state != str(state_now(job))
        )
        is_news = state_now(job) is JobState.QUEUED or is_array or is_other
        if is_news and outlook.reason and outlook.reason != self._reason:
            self._reason = outlook.reason
            number = f", number {outlook.position}" if outlook.position else ""
            shown = outlook.state if is_other else self._announced
            self._tell(f"{shown}{number}", outlook.reason)

    def _say_held(self, job: Job) -> None:
        """Print once what ends the wait for a held job."""
        if job.held is None:
            return
        short = short_id(job)
        self._say(
            f"{self._label}{short} is on hold until you decide: `rayjobs update {short} "
            f"--release` lets it start, `rayjobs cancel {short}` cancels it"
        )

    def _tell(self, stage: str, reason: str) -> None:
        text = f"{stage}: {reason}" if reason else stage
        self._say(f"{self._label}{text}")


def _stage(state: JobState, attempt: int) -> str:
    is_again = attempt > 1 and state is not JobState.QUEUED
    return f"{state} (attempt {attempt})" if is_again else str(state)


def where_it_is(
    workspace: OpenWorkspace, follow: Callable[[OpenWorkspace], Result], say: Callable[[str], None]
) -> Result:
    """Follow something in a workspace; if the workspace is moved, continue at its new path.

    Args:
        follow: Called again with the workspace at its new path.
        say: Gets the new path.

    Raises:
        StoreError: the workspace is gone, and its new path is unknown.
    """
    with contextlib.ExitStack() as stack:
        while True:
            try:
                return follow(workspace)
            except StoreError as error:
                moved = error.values.get("moved_to")
                if not moved:
                    raise
                say(f"the workspace was moved to {moved}; following it there")
                workspace = stack.enter_context(open_workspace(Path(moved), create=False))


@dataclass
class Shown:
    """How much of an attempt's log was shown, so that following it again shows only what is new."""

    attempt: int = 0
    size: int = 0

    def rest(self, part: Part, skip: Shown) -> bytes:
        """Return the new bytes of a part; `skip` says how much was shown before."""
        if part.attempt != self.attempt:
            self.attempt, self.size = part.attempt, 0
        at = self.size
        self.size += len(part.data)
        seen = skip.size - at if part.attempt == skip.attempt else 0
        return part.data[seen:] if seen > 0 else part.data


def follow_logs(
    workspace: OpenWorkspace,
    job_id: str,
    screen: Screen,
    *,
    rank: int = 0,
    tail: int | None = None,
    shown: Shown | None = None,
) -> Job:
    """Show what a rank prints until the job has ended; return the job as it ended.

    Args:
        tail: The number of earlier lines to show; None shows all.
        shown: What an earlier call has shown already; kept up to date.
    """
    shown = Shown() if shown is None else shown
    skip = replace(shown)
    if skip.attempt:
        tail = None
    shown.attempt = 0
    stages = Stages(workspace, job_id, screen.note)
    stages.look()
    past = _Past(tail) if tail is not None else None
    for part in Logs(workspace, job_id).follow(rank):
        data = shown.rest(part, skip)
        stages.look()
        if past is None:
            if data:
                stages.printed(part.attempt)
            screen.write(data)
        elif data:
            past.add(data)
        else:
            # The first pause: everything after it is new.
            screen.write(past.last())
            past = None
    if past is not None:
        screen.write(past.last())
    screen.end()
    return await_end(workspace, [job_id], lambda _text: None)[0]


class _Past:
    """The last lines of earlier output; uses little memory unless the lines are long."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = KEPT_BYTES

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._parts = [self.last()]
            self._size = len(self._parts[0])
            self._limit = max(KEPT_BYTES, 2 * self._size)

    def last(self) -> bytes:
        return last_lines(b"".join(self._parts), self._lines)


def await_end(
    workspace: OpenWorkspace,
    job_ids: list[str],
    say: Callable[[str], None],
    *,
    timeout_s: float | None = None,
) -> list[Job]:
    """Return the jobs once all have ended, in the given order.

    Raises:
        TimeoutError: a job did not end within `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    several = len(job_ids) > 1
    watched = {
        job_id: Stages(
            workspace, job_id, say, label=f"{short_id(workspace.store.job(job_id))}  " * several
        )
        for job_id in job_ids
    }
    ended: dict[str, Job] = {}
    while True:
        for job_id, stages in watched.items():
            if job_id not in ended and (job := stages.look()).state.is_final:
                ended[job_id] = job
        if len(ended) == len(watched):
            return [ended[job_id] for job_id in job_ids]
        if deadline is not None and time.monotonic() >= deadline:
            late = [job_id for job_id in watched if job_id not in ended]
            raise TimeoutError(f"not ended after {duration_text(timeout_s)}: {', '.join(late)}")
        time.sleep(LOOK_EVERY_S)


def detached_text(job: Job) -> str:
    """Return the note after Ctrl-C: the job continues, and how to follow or end it."""
    short = short_id(job)
    return (
        f"detached; {job.id} continues.\n"
        f"  rayjobs logs -f {short}   follow it again\n"
        f"  rayjobs cancel {short}    cancel it"
    )
