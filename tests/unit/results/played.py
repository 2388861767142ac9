"""Stands in for the target of one job: brings it to Running, and to its end with its files."""

from __future__ import annotations

from pathlib import Path

from rayjobs.core.failures import Failure
from rayjobs.core.paths import AttemptPaths
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.collect import Publisher
from rayjobs.workspace.folder import OpenWorkspace
from tests.support.attempts import on_node

S = JobState


def begin(workspace: OpenWorkspace, job: Job, root: Path) -> AttemptPaths:
    """Bring a queued job to Running with its folder on this machine."""
    store = workspace.store
    attempt = store.start(job.id, attempt=store.job(job.id).attempt, allocation="rj-local-1")
    assert attempt is not None
    number = attempt.number
    store.move(job.id, attempt=number, old=S.PROVISIONING, new=S.PREPARING)
    paths = AttemptPaths(root)
    (root / "log").mkdir(parents=True)
    (paths.work / "logs").mkdir(parents=True)
    store.set_hosts(job.id, attempt=number, hosts=[HostRecord(root=str(root))])
    store.move(job.id, attempt=number, old=S.PREPARING, new=S.RUNNING)
    return paths


def end(
    workspace: OpenWorkspace,
    job: Job,
    root: Path,
    *,
    state: S = S.COMPLETED,
    failure: Failure | None = None,
) -> None:
    """Store the files of the job's attempt and record its end."""
    store = workspace.store
    number = store.job(job.id).attempt
    store.move(job.id, attempt=number, old=S.RUNNING, new=S.FINALIZING)
    publisher = Publisher(
        on_node(root, attempt=number),
        blobs=workspace.blobs,
        publish=lambda files: store.publish_files(job.id, attempt=number, files=files),
    )
    assert publisher.finish() == []
    assert store.finish(job.id, attempt=number, state=state, failure=failure)
