"""A copied workspace becomes one of its own before anything is written to it."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path

from rayjobs.core.text import counted
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import INTERACTIVE, JobLine
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target import abandoned
from rayjobs.workspace import folder
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles


def become_own(workspace: OpenWorkspace) -> list[str]:
    """Give a copy an id of its own; return a sentence about it, or none if it is not a copy.

    What was unfinished when it was copied runs in the original, and in no other place: the
    copy's records of it are ended first. No target serves a copy, so nothing else changes them
    meanwhile; whatever dies in between, the next call begins again. What was started in the copy
    itself goes on here.

    Raises:
        StoreError: it cannot be written, or the original cannot be read; it stays a copy.
    """
    if workspace.original is None:
        return []
    original = folder.original_of(workspace.path)
    if original is None:
        return []  # another process did it, or the original was removed: then it was moved here
    store = workspace.store
    unfinished = [state for state in JobState if state not in FINAL]
    ended: list[str] = []
    reason = f"not run here: this workspace was copied from {original}, where the job goes on"
    lines = store.job_lines(JobFilter(states=unfinished, members=False))
    own = _started_here(workspace, original, lines)
    for line in lines:
        if line.id in own:
            continue
        if line.kind == INTERACTIVE:  # with the record of its process, which logs into the original
            if store.end_run(line.id, outcome=Outcome.CANCELED, reason=reason):
                ended.append(line.id)
        else:
            ended += abandoned.end(store, line.id, by=getpass.getuser(), reason=reason)
    # Their rows name reservations of the original, which a target would give up.
    for target in sorted({line.target for line in store.job_lines()}):
        for row in store.allocations(target):
            store.release_allocation(row.name)
    folder.become_own(workspace)
    jobs = (
        f" {counted(len(ended), 'job')} that had not ended when it was copied "
        f"{'goes' if len(ended) == 1 else 'go'} on there; here the record is Canceled."
        if ended
        else ""
    )
    return [
        f"{workspace.path} is a copy of {original}; from now on it is a workspace of its own.{jobs}"
    ]


def _started_here(
    workspace: OpenWorkspace, original: Path, lines: Sequence[JobLine]
) -> frozenset[str]:
    """Return the ids of those of these jobs that were started in the copy.

    The original does not know them. That alone does not tell: it may have pruned a job since. So
    they are also younger than the copy's record, which was written when the copy was made.
    """
    made_s = WorkspaceFiles(workspace.path).record.stat().st_ctime
    with folder.open_workspace(original, create=False) as there:
        known = there.store.job_states([line.id for line in lines])
    return frozenset(
        line.id
        for line in lines
        if line.id not in known and line.submitted_at.timestamp() >= made_s
    )


def sentence(original: Path) -> str:
    """Return what is so of an unfinished job in the copy of a workspace."""
    return (
        f"this workspace is a copy of {original}, where the job goes on; the next submit here "
        f"makes it a workspace of its own, and ends the job's record here"
    )
