"""A copied workspace becomes one of its own before anything is written to it."""

from __future__ import annotations

import getpass
from pathlib import Path

from rayjobs.core.text import counted
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target import abandoned
from rayjobs.workspace import folder
from rayjobs.workspace.folder import OpenWorkspace


def become_own(workspace: OpenWorkspace) -> list[str]:
    """Give a copy an id of its own; return a sentence about it, or none if it is no copy.

    What was unfinished when it was copied runs in the original, and in no other place: the
    copy's records of it are ended first. No target serves a copy, so nothing else changes them
    meanwhile; whatever dies in between, the next call begins again.

    Raises:
        StoreError: it cannot be written; it stays a copy.
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
    for line in store.job_lines(JobFilter(states=unfinished, members=False)):
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


def sentence(original: Path) -> str:
    """Return what is so of an unfinished job in the copy of a workspace."""
    return (
        f"this workspace is a copy of {original}, where the job goes on; the next submit here "
        f"makes it a workspace of its own, and ends the job's record here"
    )
