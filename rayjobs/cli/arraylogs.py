"""Prints why members of an array failed."""

from __future__ import annotations

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from rayjobs.workspace.folder import OpenWorkspace


def print_failed(settings: Settings, workspace: OpenWorkspace, array: Job) -> None:
    """Print why each failed member failed."""
    members = JobFilter(parent=array.id, states=[JobState.FAILED], newest_first=False)
    failed = list(workspace.store.job_lines(members))
    if settings.as_json:
        print_json(
            [
                {
                    "job": one.id,
                    "array_index": one.array_index,
                    "failure": one.failure.to_dict() if one.failure else None,
                }
                for one in failed
            ]
        )
        return
    for one in failed:
        if one.failure is None:
            continue
        settings.note(f"[{one.array_index}] {one.failure.failure_class}: {one.failure.message}")
        for line in one.failure.lines:
            click.echo(f"[{one.array_index}] {line}")
    if not failed:
        settings.note(f"no member of {array.id} has failed")
