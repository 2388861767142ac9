"""A workspace with jobs in it, created without a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.main import run
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.records import Job, MetricPoint, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

LOG = b"one\ntwo \xff\x00\nthree, without an end"
STEPS = (JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING)


@dataclass
class Queue:
    """Writes jobs as a target does."""

    workspace: OpenWorkspace

    def submit(self, name: str = "mnist", **spec: Any) -> Job:
        """Write a waiting job."""
        values = {"name": name, "script": "train.py", **spec}
        job, _ = self.workspace.store.submit(
            NewJob(spec=JobSpec(**values), experiment=name, snapshot=None, user="ada")
        )
        return job

    def start(self, job: Job, *, until: JobState = JobState.RUNNING) -> Job:
        """Move a waiting job to a live state, with its next attempt running."""
        store, number = self.workspace.store, job.attempt + 1
        name = f"rj-local-{job.serial}-{number}"
        store.add_allocation(name, target="local", shape={"nodes": 1.0})
        store.place_allocation(name, nodes=["n1"], gpus=[[]])
        assert store.hold_allocation(name, job=job.id, attempt=number)
        assert store.start(job.id, attempt=job.attempt, allocation=name) is not None
        old = JobState.PROVISIONING
        for new in STEPS[: STEPS.index(until) + 1]:
            assert store.move(job.id, attempt=number, old=old, new=new)
            old = new
        return store.job(job.id)

    def finish(self, job: Job, failure: Failure | None = None) -> Job:
        """End a live job as completed, or as failed."""
        state = JobState.FAILED if failure else JobState.COMPLETED
        if job.state is JobState.RUNNING:
            assert self.workspace.store.move(
                job.id, attempt=job.attempt, old=job.state, new=JobState.FINALIZING
            )
        assert self.workspace.store.finish(
            job.id, attempt=job.attempt, state=state, failure=failure
        )
        return self.workspace.store.job(job.id)

    def completed(self, name: str = "mnist", **spec: Any) -> Job:
        """Write a job that has completed, with metrics, a log and an output."""
        job = self.start(self.submit(name, **spec), until=JobState.FINALIZING)
        now = datetime.now(UTC)
        values = [0.5, 0.25, 0.125]
        self.workspace.store.add_metrics(
            job.id,
            [
                MetricPoint(
                    attempt=1, rank=0, sequence=step, name="loss", value=value, step=step, at=now
                )
                for step, value in enumerate(values)
            ],
        )
        self.store_file(job, "azureml-logs/70_driver_log.txt", LOG)
        self.store_file(job, "outputs/model.pt", b"weights")
        return self.finish(job)

    def failed(self, failure_class: FailureClass = FailureClass.USER, **spec: Any) -> Job:
        """Write a job that has failed with a root cause."""
        failure = Failure(
            failure_class,
            "rank 0 exited with code 1: ValueError: no \x1b[2Jdata",
            rank=0,
            exit_code=1,
            lines=("  File train.py, line 3", "ValueError: no data"),
        )
        return self.finish(self.start(self.submit(**spec)), failure)

    def store_file(self, job: Job, name: str, data: bytes) -> None:
        """Publish a file of a live job."""
        blob = self.workspace.blobs.put_bytes(data, f"t/{job.id}/{name}")
        stored = StoredFile(
            name=name,
            attempt=job.attempt,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=datetime.now(UTC),
        )
        assert self.workspace.store.publish_files(job.id, attempt=job.attempt, files=[stored])


@pytest.fixture
def queue(own_home: Path) -> Iterator[Queue]:
    """The queue of the workspace that the test's commands use."""
    with open_workspace(own_home / "w") as workspace:
        yield Queue(workspace)


@dataclass
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


class Terminal:
    """Runs command lines in this process; their output is not a terminal."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def type(self, *arguments: str) -> Done:
        """Run one command line."""
        self._capture.readouterr()
        code = run(arguments)
        out, err = self._capture.readouterr()
        return Done(code, out, err)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Return a runner of command lines."""
    return Terminal(capsys)


def leaves(words: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, including those of groups."""
    import click

    from rayjobs.cli.main import main

    context = click.Context(main)
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command = found
    if isinstance(command, click.Group):
        if words:
            yield tuple(words)
        for name in command.list_commands(context):
            yield from leaves((*words, name))
    else:
        yield tuple(words)
