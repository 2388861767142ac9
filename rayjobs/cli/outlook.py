"""What targets report about unfinished jobs: why they wait, or why no target answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rayjobs.core.paths import TargetPaths, home
from rayjobs.core.text import counted
from rayjobs.jobs.records import INTERACTIVE, Job, JobLine
from rayjobs.jobs.states import JobState
from rayjobs.target.answers import StatusAnswer
from rayjobs.target.condition import looked_after_by
from rayjobs.target.elsewhere import find_quietly
from rayjobs.target.keeper_state import is_kept
from rayjobs.target.requests import TargetRequest
from rayjobs.target.wake_client import ask_target
from rayjobs.workspace import registrations, server_choice
from rayjobs.workspace.folder import original_of
from rayjobs.workspace.orphans import end_orphans

if TYPE_CHECKING:
    from rayjobs.jobs.cancellation import Cancellation
    from rayjobs.store.base import Store
    from rayjobs.target.condition import Condition

LOCAL = "local"
NOT_RESPONDING = "NotResponding"
ANSWER_S = 1.0
# Up to this number, the request names each job; above it, it covers all waiting jobs.
ASKED_BY_NAME = 100


class Outlook(NamedTuple):  # a frozen dataclass takes five times as long to make
    """The state of one job, beyond its record.

    Attributes:
        state: The displayed state: the job's own, or NotResponding if it is live and no target
            answers.
        reason: Why it waits, or what is wrong; may be empty.
        position: Position in the queue from 1, according to the target's policy; None if unknown.
        is_scaling: Its allocation waits for nodes of the cluster to start.
        members: For an array or a sweep, the number of members or trials in each state.
        trial: For a trial's job, the trial's end where it differs from the job's.
        cancellation: The values of the reason, if the job was canceled on a request.
    """

    state: str
    reason: str = ""
    position: int | None = None
    is_scaling: bool = False
    members: Mapping[JobState, int] | None = None
    trial: str = ""
    cancellation: Cancellation | None = None

    def reason_at(self, time: str) -> str:
        """Return the reason of a canceled job with the time of the cancel or of its end."""
        if self.cancellation is not None:
            return self.cancellation.at(time)
        return f"{self.reason} {time}" if self.reason else ""


def outlooks(
    workspace: Path, jobs: Iterable[Job | JobLine], *, store: Store | None = None
) -> dict[str, Outlook]:
    """Return the outlook of each job, asking each target at most once.

    Args:
        store: Where to count members of arrays and trials of sweeps; without it, they are not
            counted.
    """
    listed = list(jobs)
    # Opening the workspace ended the runs whose process was gone then; a caller that polls needs
    # that again. With a server, their processes are not on this machine.
    if (
        store is not None
        and server_choice.active() is None
        and any(job.kind == INTERACTIVE and not job.state.is_final for job in listed)
    ):
        end_orphans(store)
    waiting: dict[str, list[str]] = {}
    for job in listed:
        if not job.state.is_final and job.kind != INTERACTIVE:  # no target knows them
            keys = waiting.setdefault(job.target, [])
            if job.state is JobState.QUEUED:
                keys.append(key_of(workspace, job))
    answers = {target: _Answer(target, keys, workspace) for target, keys in waiting.items()}
    parents = [job.id for job in listed if job.kind in ("array", "sweep")]
    counts = store.member_counts(parents) if store is not None and parents else {}
    trials = _trials(listed, store)
    found = {}
    original = original_of(workspace) if waiting else None
    for job in listed:
        if original is not None and not job.state.is_final:
            from rayjobs.submit import copies  # only where it is needed

            state = str(job.state) if job.state is JobState.QUEUED else NOT_RESPONDING
            found[job.id] = Outlook(state, copies.sentence(original))
            continue
        outlook = _of(job, workspace, answers.get(job.target))
        members = counts.get(job.id)
        if members is not None:
            of_kind = _of_array if job.kind == "array" else _of_sweep
            outlook = of_kind(job, outlook, members)
        # Not for every job: copying ten thousand outlooks would be slow.
        if (trial := trials.get(job.id)) is not None:
            outlook = outlook._replace(trial=trial)
        found[job.id] = outlook
    return found


def _trials(jobs: Iterable[Job | JobLine], store: Store | None) -> dict[str, str]:
    """Return how the listed jobs ended as trials, where that differs from the job's end."""
    if store is None:
        return {}
    ended = {job.parent for job in jobs if job.kind == "job" and job.parent and job.state.is_final}
    return {
        job: f"{_TRIAL_WORDS.get(state, str(state))} as a trial: {reason}"
        for parent in ended
        for job, (state, reason) in store.judged_trials(parent).items()
    }


def waits_for_first(job: Job | JobLine) -> bool:
    """Whether a job is an array or pipeline of which nothing has been placed yet."""
    return job.kind in ("array", "pipeline") and job.placed_at is None and not job.state.is_final


def state_now(job: Job | JobLine) -> JobState:
    """Return the state to show: Queued while nothing of an array or pipeline has been placed."""
    return JobState.QUEUED if waits_for_first(job) else job.state


def key_of(workspace: Path, job: Job | JobLine) -> str:
    """Return the job's key, unique across all workspaces of its target."""
    return f"{workspace}::{job.id}"


def members_text(members: Mapping[JobState, int]) -> str:
    """Return the states of an array's members in words, e.g. ``16 jobs: 3 Running, 13 Queued``."""
    parts = [f"{members[state]} {state}" for state in JobState if members.get(state)]
    return f"{counted(sum(members.values()), 'job')}: {', '.join(parts)}"


# The names in the sweep's own counts.
_TRIAL_WORDS = {
    JobState.COMPLETED: "completed",
    JobState.CANCELED: "stopped",
    JobState.FAILED: "failed",
}


def trials_text(members: Mapping[JobState, int]) -> str:
    """Return the states of a sweep's trials in words, e.g. ``4 trials: 3 completed, 1 failed``."""
    order = [*_TRIAL_WORDS, *(state for state in JobState if state not in _TRIAL_WORDS)]
    parts = [
        f"{members[state]} {_TRIAL_WORDS.get(state, str(state).lower())}"
        for state in order
        if members.get(state)
    ]
    return f"{counted(sum(members.values()), 'trial')}: {', '.join(parts)}"


def _of_sweep(job: Job | JobLine, outlook: Outlook, members: Mapping[JobState, int]) -> Outlook:
    if job.state.is_final or not members:
        return outlook._replace(members=members)  # its reason counts the trials at its end
    text = trials_text(members)
    reason = f"{text}; {outlook.reason}" if outlook.reason else text
    return outlook._replace(members=members, reason=reason)


def _of_array(job: Job | JobLine, outlook: Outlook, members: Mapping[JobState, int]) -> Outlook:
    text = members_text(members)
    if job.state.is_final:
        if (canceled := outlook.cancellation) is not None:
            canceled = replace(canceled, remarks=text)
            text = canceled.sentence
        reason = outlook.reason if job.failure else text
        return outlook._replace(members=members, reason=reason, cancellation=canceled)
    state = outlook.state
    if job.placed_at is None and state in (str(job.state), NOT_RESPONDING):
        state = str(JobState.QUEUED)  # none of its members has had an allocation
    reason = f"{text}; {outlook.reason}" if outlook.reason else text
    return outlook._replace(state=state, members=members, reason=reason)


class _Answer:
    """The status of one target."""

    def __init__(self, target: str, keys: list[str], workspace: Path) -> None:
        self.target = target
        self.is_late = False
        self.status: StatusAnswer | None = None
        if (serving := find_quietly(workspace, target, home=home())) is not None:
            from rayjobs.target.revive import of_elsewhere  # only where it is needed

            self.is_late = serving.is_live  # its socket is on another machine
            self.condition: Condition | None = of_elsewhere(serving)
            return
        is_few = len(keys) <= ASKED_BY_NAME
        request = TargetRequest("status", keys=tuple(keys) if is_few else None)
        try:
            status = ask_target(target, home(), request, StatusAnswer, timeout_s=ANSWER_S)
        except TimeoutError:
            self.is_late = True  # busy, or stopped by a debugger: its state is unknown
            status = None
        self.status = status if status is not None and status.ok else None
        if self.status is not None and str(workspace) not in self.status.workspaces:
            _register(target, workspace)
        self.condition = _condition(target, workspace, status is not None or self.is_late)

    @property
    def is_absent(self) -> bool:
        """Whether no process listens on its socket."""
        return self.status is None and not self.is_late


def _register(target: str, workspace: Path) -> None:
    """Register a workspace with a running target that does not know its path: it was moved."""
    if server_choice.active() is None and original_of(workspace) is None:
        with contextlib.suppress(OSError):  # a full disk: the next command tries again
            registrations.register(TargetPaths.of(target, under=home()).workspaces, workspace)


def _condition(target: str, workspace: Path, answers: bool) -> Condition | None:
    """Return the condition of a target that may need recovery, and start it; None: it is healthy.

    A target that died, or whose keeper died, is restarted in the background; this does not wait for
    it.
    """
    if (server := server_choice.active()) is not None:
        # The server looks after the keeper of a target that answers.
        return None if answers else looked_after_by(server, target)
    if answers and (target != LOCAL or is_kept(TargetPaths.of(target, under=home()))):
        return None
    from rayjobs.target.revive import look_after  # only where it is needed

    return look_after(target, home=home(), workspace=workspace, answers=answers)


def _of(job: Job | JobLine, workspace: Path, answer: _Answer | None) -> Outlook:
    current = state_now(job)
    own = current.value
    if job.state.is_final or answer is None:
        message = job.failure.message if job.failure is not None else job.reason
        return Outlook(own, message, cancellation=job.cancellation)
    is_unasked = answer.is_absent and current is not JobState.QUEUED
    if job.cancel_requested_at is not None and not is_unasked:
        is_late = job.state is JobState.FINALIZING and job.reason
        return Outlook(own, "cancel requested" + (f"; {job.reason}" if is_late else ""))
    if answer.is_absent:
        return _without_target(job, answer)
    if answer.status is None:
        reason = answer.condition.reason if answer.condition is not None else ""
        return Outlook(own, job.reason or (reason if job.state is JobState.QUEUED else ""))
    if answer.status.refused and (refused := answer.status.refused.get(str(workspace))):
        state = own if job.state is JobState.QUEUED else NOT_RESPONDING
        return Outlook(state, f"target {answer.target!r} does not serve this workspace: {refused}")
    if job.state is not JobState.QUEUED:
        scaling = answer.status.scaling.get(key_of(workspace, job))
        reason = scaling.reason if scaling is not None else ""
        return Outlook(own, reason or job.reason, is_scaling=scaling is not None)
    entry = answer.status.waiting.get(key_of(workspace, job))
    if entry is None and job.held is not None:
        return Outlook(own, f"held: {job.held}")
    if entry is None:
        return Outlook(own, job.reason or "the target handles it within a second")
    return Outlook(own, entry.reason or job.reason, entry.position)


def _without_target(job: Job | JobLine, answer: _Answer) -> Outlook:
    """Return the outlook of an unfinished job whose target does not run."""
    condition = answer.condition
    reason = condition.reason if condition is not None else ""
    reason = reason or f"target {answer.target!r} is being stopped"
    if condition is not None and condition.is_unknown and job.state is not JobState.QUEUED:
        hint = f"`rayjobs cancel --force {job.id.rpartition('_')[2]}` ends the job's record"
        return Outlook(NOT_RESPONDING, f"target {answer.target!r} was removed; {hint}")
    way_out = _way_out(job, condition)
    if job.cancel_requested_at is not None:
        return Outlook(NOT_RESPONDING, f"cancel requested; {reason}{way_out}")
    if job.state is JobState.QUEUED or waits_for_first(job):
        return Outlook(str(state_now(job)), reason)
    if condition is not None and condition.is_stopped and not condition.may_run_on:
        return Outlook(str(JobState.QUEUED), f"{reason}: then the {job.kind} continues")
    return Outlook(NOT_RESPONDING, f"{reason}; the job may still run{way_out}")


def _way_out(job: Job | JobLine, condition: Condition | None) -> str:
    """Return how to end a job whose cluster may be gone for good.

    Empty for `local`, and if no start or stop of the target has failed.
    """
    if condition is None or job.target == LOCAL:
        return ""
    if not condition.is_failing and not condition.may_run_on:
        return ""
    short = job.id.rpartition("_")[2]
    return f". If that cluster is gone for good: `rayjobs cancel --force {short}`"
