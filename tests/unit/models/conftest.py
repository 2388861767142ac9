"""Runs that end with files and metrics, in a workspace without a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Workspace, checkpoint
from rayjobs.core.clock import SystemClock
from rayjobs.core.paths import AttemptPaths
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.states import JobState
from rayjobs.results.collect import Publisher
from rayjobs.snapshots import blob_key
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from tests.support.attempts import on_node

S = JobState
SNAPSHOT = "sha256:" + "ab" * 32


@dataclass
class Runs:
    """Simulates jobs to their ends."""

    workspace: Workspace
    folder: Path

    def begin(self, *, snapshot: str | None = SNAPSHOT, **spec: Any) -> Job:
        """Return a running job."""
        store = self.workspace.store
        if snapshot is not None:
            self.workspace.opened.blobs.put_bytes(b"code", blob_key(snapshot))
        values = {"script": "train.py", "arguments": ("--lr", "0.1"), **spec}
        job, _ = store.submit(
            NewJob(spec=JobSpec(**values), experiment="mnist", snapshot=snapshot, user="ada")
        )
        self.attempt(job)
        return store.job(job.id)

    def attempt(self, job: Job) -> None:
        """Start the next attempt."""
        store = self.workspace.store
        started = store.start(job.id, attempt=store.job(job.id).attempt, allocation="a")
        assert started is not None
        for old, new in ((S.PROVISIONING, S.PREPARING), (S.PREPARING, S.RUNNING)):
            assert store.move(job.id, attempt=started.number, old=old, new=new)
        (self.paths(job).work / "outputs").mkdir(parents=True)

    def paths(self, job: Job) -> AttemptPaths:
        """Return the folder of the job's newest attempt."""
        number = self.workspace.store.job(job.id).attempt
        return AttemptPaths(self.folder / job.id / f"a{number}")

    def write(self, job: Job, **files: bytes) -> None:
        """Write files below outputs; ``__`` stands for a dot, ``___`` for a slash."""
        for name, data in files.items():
            path = self.paths(job).work / "outputs" / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def save(self, job: Job, step: int) -> None:
        """Save a checkpoint."""
        directory = self.paths(job).work / "outputs" / "checkpoints"
        checkpoint.save(step, {"model.pt": b"weights %d" % step}, directory=str(directory))

    def log(self, job: Job, name: str, values: Sequence[float]) -> None:
        """Log a metric."""
        number = self.workspace.store.job(job.id).attempt
        self.workspace.store.add_metrics(
            job.id,
            [
                MetricPoint(
                    attempt=number,
                    rank=0,
                    sequence=step,
                    name=name,
                    value=value,
                    step=step,
                    at=SystemClock().now(),
                )
                for step, value in enumerate(values)
            ],
        )

    def publish(self, job: Job, *, only: int | None = None, node: int = 0) -> None:
        """Publish the newest attempt's files as those of a node."""
        store = self.workspace.store
        number = store.job(job.id).attempt
        publisher = Publisher(
            on_node(self.paths(job).root, attempt=number, node=node),
            blobs=self.workspace.opened.blobs,
            publish=lambda files: store.publish_files(
                job.id, attempt=number, files=list(files)[:only]
            ),
        )
        assert publisher.finish() == []

    def end(self, job: Job, state: S = S.COMPLETED) -> Job:
        """Publish the files and record the end."""
        store = self.workspace.store
        self.publish(job)
        number = store.job(job.id).attempt
        store.move(job.id, attempt=number, old=S.RUNNING, new=S.FINALIZING)
        assert store.finish(job.id, attempt=number, state=state)
        return store.job(job.id)

    def retry(self, job: Job) -> None:
        """Requeue the job after the loss of its attempt, and start the next attempt."""
        store = self.workspace.store
        number = store.job(job.id).attempt
        assert store.requeue(job.id, attempt=number, reason="killed", outcome=Outcome.FAILED)
        self.attempt(job)

    def trained(self, accuracy: Sequence[float] = (0.5, 0.9), *, data: bytes = b"weights") -> Job:
        """Return a completed run with outputs/model.pt."""
        job = self.begin()
        self.write(job, model__pt=data)
        self.log(job, "accuracy", accuracy)
        return self.end(job)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    workspace = Workspace.create("team", path=tmp_path / "team")
    yield Runs(workspace, tmp_path / "node")
    workspace.close()
