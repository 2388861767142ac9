"""A workspace, jobs that save checkpoints in it, and a node that prepares their attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayjobs import checkpoint
from rayjobs.core.paths import AttemptPaths
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.node.node import Node
from rayjobs.protocol.attempts import Resume
from rayjobs.results.collect import Publisher
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import on_node, request_of

S = JobState


@dataclass
class Trainer:
    """Simulates attempts of jobs: saves checkpoints and publishes them, as the node would."""

    workspace: OpenWorkspace
    folder: Path

    def submit(self, **spec: Any) -> Job:
        values = {"script": "train.py", **spec}
        return self.workspace.store.submit(
            NewJob(spec=JobSpec(**values), experiment="mnist", snapshot=None, user="ada")
        )[0]

    def start(self, job: Job) -> AttemptPaths:
        """Start the job's next attempt; return its folder."""
        store = self.workspace.store
        attempt = store.start(job.id, attempt=store.job(job.id).attempt, allocation="a")
        assert attempt is not None
        for old, new in ((S.PROVISIONING, S.PREPARING), (S.PREPARING, S.RUNNING)):
            assert store.move(job.id, attempt=attempt.number, old=old, new=new)
        paths = AttemptPaths(self.folder / job.id / f"a{attempt.number}")
        (paths.work / "outputs").mkdir(parents=True)
        return paths

    def save(self, paths: AttemptPaths, step: int, **files: bytes) -> Path:
        """Save a checkpoint the way a script does."""
        given = {name.replace("__", "."): data for name, data in files.items()}
        directory = str(paths.work / "outputs" / "checkpoints")
        given = given or {"model.pt": b"weights %d" % step, "opt/state.bin": b"s" * step}
        return Path(checkpoint.save(step, given, directory=directory).path)

    def publish(self, job: Job, paths: AttemptPaths, *, only: int | None = None) -> int:
        """Publish the attempt's files, at most `only` of them; return their number."""
        store = self.workspace.store
        number = int(paths.root.name[1:])
        count = 0

        def publish(files: Any) -> bool:
            nonlocal count
            taken = list(files) if only is None else list(files)[:only]
            count += len(taken)
            return store.publish_files(job.id, attempt=number, files=taken)

        publisher = Publisher(
            on_node(paths.root, attempt=number),
            blobs=self.workspace.blobs,
            publish=publish,
        )
        assert publisher.finish() == []
        return count

    def end(self, job: Job, state: S = S.COMPLETED) -> None:
        store = self.workspace.store
        number = store.job(job.id).attempt
        store.move(job.id, attempt=number, old=S.RUNNING, new=S.FINALIZING)
        assert store.finish(job.id, attempt=number, state=state)

    def requeue(self, job: Job) -> None:
        store = self.workspace.store
        number = store.job(job.id).attempt
        assert store.requeue(job.id, attempt=number, reason="killed", outcome=Outcome.FAILED)

    def trained(self, *steps: int, state: S = S.COMPLETED) -> Job:
        """Return a job that saved checkpoints and ended."""
        job = self.submit()
        paths = self.start(job)
        for step in steps:
            self.save(paths, step)
        self.publish(job, paths)
        self.end(job, state)
        return self.workspace.store.job(job.id)

    def prepared(self, job: Job, *, attempt: int) -> tuple[AttemptPaths, Mapping[str, str]]:
        """Let a node prepare an attempt; return its folder and the variables of a rank."""
        node = Node("local", self.folder / "home")
        planned = PlannedNode(0, "n0", "127.0.0.1", node.paths.root)
        context = AttemptContext(
            job=job,
            attempt=attempt,
            nodes=(planned,),
            markers=("m",),
            workspace_name="ws",
            workspace_path=str(self.workspace.path),
        )
        (plan,) = launcher_for(job.spec).plans(context)
        resume = Resume(run=job.id if attempt > 1 else None, path=job.spec.resume_from)
        asyncio.run(node.prepare(request_of(plan, self.workspace.path, resume=resume)))
        return AttemptPaths(Path(plan.root)), node.environment_of(plan)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    workspace = open_workspace(tmp_path / "ws", create=True)
    yield Trainer(workspace, tmp_path / "node")
    workspace.close()
