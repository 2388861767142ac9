"""Makes a copied workspace independent before anything is written to it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted, verb
from rayjobs.core.users import user_name
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import INTERACTIVE, Job, JobLine
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target import abandoned
from rayjobs.workspace import folder
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles


def become_own(workspace: OpenWorkspace) -> list[str]:
    """Give a copy its own id; return a sentence about that, or none if it is not a copy.

    Jobs that were unfinished at the time of the copy run only in the original, so the copy's
    records of them are ended first. No target serves a copy, so nothing else changes them
    meanwhile; if this call dies, the next one starts over. Jobs that were started in the copy
    continue here.

    Raises:
        StoreError: the copy cannot be written, or the original cannot be read; the workspace stays
            a copy.
    """
    if workspace.original is None:
        return []
    original = folder.original_of(workspace.path)
    if original is None:
        return []  # another process has done this, or the original is gone, so it was a move
    store = workspace.store
    unfinished = [state for state in JobState if state not in FINAL]
    ended: list[str] = []
    # Commands append the time of the end, so the last clause must be what happened at that time.
    reason = f"the job continues in {original}; this workspace, a copy of it, became independent"
    lines = store.job_lines(JobFilter(states=unfinished, members=False))
    own = _started_here(workspace, original, lines)
    for line in lines:
        if line.id in own:
            continue
        if line.kind == INTERACTIVE:  # its process is recorded here too, but logs to the original
            if store.end_run(line.id, outcome=Outcome.CANCELED, reason=reason):
                ended.append(line.id)
        else:
            ended += abandoned.end(store, line.id, by=user_name(), reason=reason)
    # The copied rows name placement groups of the original, which a target here would release.
    for target in sorted({line.target for line in store.job_lines()}):
        for row in store.allocations(target):
            store.release_allocation(row.name)
    folder.become_own(workspace)
    jobs = (
        f" {counted(len(ended), 'job')} that had not ended when it was copied "
        f"{verb(len(ended), 'continues', 'continue')} there; the record here is Canceled."
        if ended
        else ""
    )
    return [f"{workspace.path} is a copy of {original}; from now on it is independent.{jobs}"]


def _started_here(
    workspace: OpenWorkspace, original: Path, lines: Sequence[JobLine]
) -> frozenset[str]:
    """Return the ids of the given jobs that were started in the copy.

    The original does not know them. That alone proves nothing, since it may have pruned a job. So
    they must also be newer than the copy's file `workspace.json`, which was created with the copy.
    """
    made_s = WorkspaceFiles(workspace.path).record.stat().st_ctime
    with folder.open_workspace(original, create=False) as there:
        known = there.store.job_states([line.id for line in lines])
    return frozenset(
        line.id
        for line in lines
        if line.id not in known and line.submitted_at.timestamp() >= made_s
    )


def require_own(workspace: OpenWorkspace, job: Job | JobLine, command: str) -> None:
    """Refuse a command that depends on the job's target, if the job runs in another workspace.

    Args:
        command: The name of the command, which works in that workspace.

    Raises:
        UsageError: this workspace is a copy, and the job has not ended.
    """
    if workspace.original is not None and not job.state.is_final:
        there = shlex.quote(str(workspace.original))
        raise UsageError(
            f"{job.id} does not run here: this workspace is a copy of {workspace.original}. In the "
            f"original: `rayjobs {command} {job.id} --workspace {there}`"
        )


def sentence(original: Path) -> str:
    """Return a sentence about an unfinished job in a copied workspace."""
    return (
        f"this workspace is a copy of {original}, where the job continues; the next submit here "
        "makes it an independent workspace, and ends the job's record here"
    )
