"""Why something that a job stored is not in the store any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.store.dropped import RESTORED_EVENT
from rayjobs.store.pruning import PRUNED_EVENT

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store


def why_gone(store: Store, job: Job) -> str:
    """Return when and by what a job's newest files went; empty where nothing took them."""
    for event in reversed(store.events(job.id)):
        if event.kind == PRUNED_EVENT or (
            event.kind == RESTORED_EVENT and event.attempt == job.attempt
        ):
            return f"{event.message} ({event.at.astimezone():%Y-%m-%d %H:%M})"
    return ""
