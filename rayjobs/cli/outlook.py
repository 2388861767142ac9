"""What targets say now about jobs that are not finished: why they wait, or that nobody answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rayjobs.compute.wakeclient import ask, socket_of
from rayjobs.paths import TargetPaths, home
from rayjobs.records import Job
from rayjobs.states import JobState

NOT_RESPONDING = "NotResponding"
ANSWER_S = 1.0


@dataclass(frozen=True)
class Outlook:
    """How one job stands, beyond what its record says.

    Attributes:
        state: As shown: the job's own, or NotResponding when it is live and nobody answers.
        reason: Why it waits, or what is amiss; empty when there is nothing to say.
        position: Place in the queue from 1, as the target's policy sees it; None if unknown.
    """

    state: str
    reason: str = ""
    position: int | None = None


def outlooks(workspace: Path, jobs: Iterable[Job]) -> dict[str, Outlook]:
    """Return how each job stands, asking each target at most once."""
    listed = list(jobs)
    answers = {
        target: _Answer(target)
        for target in {job.target for job in listed if not job.state.is_final}
    }
    return {job.id: _of(job, workspace, answers.get(job.target)) for job in listed}


class _Answer:
    """The status of one target."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.is_late = False
        try:
            status = ask(socket_of(target, home()), {"op": "status"}, timeout_s=ANSWER_S)
        except TimeoutError:
            self.is_late = True  # busy, or stopped by a debugger: nothing is known
            status = None
        self.status = status if status is not None and status.get("ok") else None

    @property
    def is_absent(self) -> bool:
        """Whether nobody listens there."""
        return self.status is None and not self.is_late

    @property
    def is_starting(self) -> bool:
        """Whether somebody is bringing it up."""
        from rayjobs.compute.keeper import is_kept  # only where nobody answers

        return is_kept(TargetPaths.of(self.target, under=home()))


def _of(job: Job, workspace: Path, answer: _Answer | None) -> Outlook:
    own = str(job.state)
    if job.state.is_final or answer is None:
        message = job.failure.message if job.failure is not None else job.reason
        return Outlook(own, message)
    if job.cancel_requested_at is not None:
        return Outlook(own, "its end was requested")
    if answer.is_absent:
        if job.state is JobState.QUEUED:
            if answer.is_starting:
                return Outlook(own, f"target {answer.target!r} is being started")
            return Outlook(
                own,
                f"target {answer.target!r} does not run; start it by "
                f"`rayjobs target start {answer.target}`",
            )
        return Outlook(
            NOT_RESPONDING,
            f"target {answer.target!r} does not answer; the job may still run. "
            f"`rayjobs target start {answer.target}` finds out",
        )
    if job.state is not JobState.QUEUED or answer.status is None:
        return Outlook(own, job.reason)
    waiting = answer.status.get("waiting") or {}
    entry = waiting.get(f"{workspace}::{job.id}")
    if entry is None:
        return Outlook(own, job.reason or "the target looks at it within a second")
    position = entry.get("position")
    return Outlook(
        own, str(entry.get("reason") or job.reason), position if isinstance(position, int) else None
    )
