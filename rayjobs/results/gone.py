"""Explains why a job's stored file is no longer in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.jobs.events import Pruned, Restored

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store


def why_gone(store: Store, job: Job) -> str:
    """Return when and how a job's files were last removed; empty if they were not."""
    for event in reversed(store.events(job.id)):
        if event.kind == Pruned.KIND or (
            event.kind == Restored.KIND and event.attempt == job.attempt
        ):
            return f"{event.message} ({event.at.astimezone():%Y-%m-%d %H:%M})"
    return ""
