"""Changes a waiting job's spec: a validated new revision that keeps queue position and snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import RayjobsError, UsageError
from rayjobs.jobs.records import Job, kind_text
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import NO_CHANGES, JobChanges

if TYPE_CHECKING:
    from rayjobs.policy.capacity import Capacity
    from rayjobs.spec.model import JobSpec
    from rayjobs.workspace.folder import OpenWorkspace

# Fields that decide, with a target's capacity, whether the job can ever be placed.
OF_SIZE = ("distribution", "resources")


def revise(
    workspace: OpenWorkspace,
    job: Job,
    fields: Mapping[str, Any],
    changes: JobChanges = NO_CHANGES,
) -> Job:
    """Write a new revision of a waiting job's spec; return the job.

    In an array, all waiting members change, except those that were changed individually. Concurrent
    changes by other processes are kept.

    Args:
        fields: Fields of the spec that differ, as in a job file: ``{"max_duration": "2h"}``.
        changes: Other changes in the same transaction.

    Raises:
        UsageError: it is neither a job that waits in the queue nor an array.
        SpecError: a change is wrong, or the job could never be placed; all problems at once.
    """
    tags: Mapping[str, str | None] = {}
    if job.kind != "array":  # the tags are only the array's: members have their own
        tags, changes = changes.tags or {}, replace(changes, tags=None)
    while True:
        spec = _changed(job, fields, tags)
        revised = workspace.store.revise(job, spec, changes)
        if revised is not None:
            return revised
        job = workspace.store.job(job.id)  # another process changed it; keep its changes


def notes_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the same placement notices as a submit."""
    from rayjobs.policy.capacity import plan_shape

    capacity = _capacity(spec.target)
    return plan_shape(spec, capacity).notes if capacity is not None else ()


def _changed(job: Job, changes: Mapping[str, Any], tags: Mapping[str, str | None]) -> JobSpec:
    from rayjobs.spec.file import build_spec, merge
    from rayjobs.submit import checks

    if job.kind not in ("job", "array"):
        raise UsageError(
            f"{job.id} is {kind_text(job.kind)}, which is not queued: change its jobs instead",
            job=job.id,
        )
    if job.kind == "job" and job.state is not JobState.QUEUED:
        raise UsageError(
            f"{job.id} is {job.state}: only a job that waits in the queue can be changed; a "
            f"running job keeps the resources and the limit that it was started with. End it with "
            f"`rayjobs cancel {job.id}`, or run it again with other settings: `rayjobs rerun "
            f"{job.id}`",
            job=job.id,
        )
    base = {
        **job.spec.model_dump(mode="json"),
        "priority": job.priority,
        "tags": {key: value for key, value in {**job.tags, **tags}.items() if value is not None},
    }
    spec = build_spec(merge(base, changes))
    if any(name in changes for name in OF_SIZE):
        checks.refuse(spec, checks.check(spec), _capacity(spec.target))
    return spec


def _capacity(target: str) -> Capacity | None:
    from rayjobs.target.targets import capacity_of

    try:
        return capacity_of(target)
    except RayjobsError:
        return None  # the target was removed: its nodes are unknown
