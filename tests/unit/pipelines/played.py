"""Pipelines whose steps are simulated in the store: no target, real files and pins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rayjobs.core.failures import Failure
from rayjobs.core.paths import ENVIRONMENT_LOCK, driver_log_name
from rayjobs.data import made
from rayjobs.data.events import OutputStored
from rayjobs.datastore.backends import open_backend
from rayjobs.jobs.records import Job, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.planning import PlannedRun
from rayjobs.pipelines.spec import PipelineSpec
from rayjobs.pipelines.submitter import RunRequest, submit_pipeline
from rayjobs.store.requests import JobFilter
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

MOVES = (JobState.PROVISIONING, JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING)


class Played:
    """A workspace with a source folder, and a target that completes what may start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        for name in ("prep.py", "train.py", "test.py"):
            (self.source / name).write_text("print('never run here')\n")
        self.workspace: OpenWorkspace = open_workspace(folder / "w")
        self.store = self.workspace.store
        self.lock = ""  # what a job with packages gets installed

    def spec(self, **changes: Any) -> PipelineSpec:
        """Return prep → train → test, with one parameter; `changes` replace top-level keys."""
        data: dict[str, Any] = {
            "name": "digits",
            "parameters": {"epochs": 3},
            "steps": steps(),
        }
        return pipeline_of({**data, **changes}, folder=self.source)

    def submit(self, spec: PipelineSpec | None = None, **options: Any) -> PlannedRun:
        """Submit a pipeline; return what was planned."""
        request = RunRequest(**options)
        return submit_pipeline(self.workspace, spec or self.spec(), request, wake=False).run

    def run(self, spec: PipelineSpec | None = None, **options: Any) -> PlannedRun:
        """Submit a pipeline and complete it."""
        planned = self.submit(spec, **options)
        self.complete_all(planned.id)
        return planned

    def complete_all(self, pipeline: str, *, fails: str | None = None) -> None:
        """Simulate each step after its dependencies; `fails` names one that fails."""
        names = {row.job: row.name for row in self.store.steps(pipeline)}
        while ready := [
            job
            for job in self.store.jobs(JobFilter(parent=pipeline, states=[JobState.QUEUED]))
            if all(
                state is JobState.COMPLETED
                for state in self.store.job_states(one.job for one in job.spec.depends_on).values()
            )
        ]:
            for job in ready:
                self.end(job, failed=names[job.id] == fails)

    def end(self, job: Job, *, failed: bool = False) -> None:
        """Simulate one job: it prints a line, and writes a file to each of its outputs."""
        assert self.store.start(job.id, attempt=0, allocation="x") is not None
        for old, new in pairwise(MOVES):
            assert self.store.move(job.id, attempt=1, old=old, new=new)
        self._print(job)
        if failed:
            failure = Failure("user", "rank 0 exited with 1", exit_code=1)  # type: ignore[arg-type]
            assert self.store.finish(job.id, attempt=1, state=JobState.FAILED, failure=failure)
            return
        for name, output in job.spec.outputs.items():
            self.write(job, name, output.destination)
        assert self.store.finish(job.id, attempt=1, state=JobState.COMPLETED)

    def _print(self, job: Job) -> None:
        for rank in range(world_size := job.spec.distribution.world_size):
            name = driver_log_name(rank, world_size)
            self._publish(job, name, f"{job.spec.script} says {rank}\n")
        if self.lock and job.spec.environment is not None:
            self._publish(job, ENVIRONMENT_LOCK, self.lock)

    def _publish(self, job: Job, name: str, text: str) -> None:
        blob = self.workspace.blobs.put_bytes(text.encode(), f"t/{job.id}/{name}")
        file = StoredFile(
            name=name,
            attempt=1,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=datetime.now(UTC),
        )
        assert self.store.publish_files(job.id, attempt=1, files=[file])

    def write(self, job: Job, name: str, destination: str) -> None:
        """Store one file as an output of a job, and pin it, as a node does."""
        store, _, template = destination.partition("/")
        path = template.replace("{run-id}", job.id).replace("{output-name}", name)
        record = self.workspace.catalogue.datastore(store)
        file = self.folder / "made"
        file.write_text(f"{job.spec.name} made {name}")
        stored = open_backend(record).put(file, f"{path}/data.txt")
        files = made.manifest_of(record, path, [stored])
        data = made.pin(self.workspace.catalogue, name, record, path, files).to_json()
        self.store.add_event(job.id, OutputStored.KIND, "stored", attempt=1, data=data)

    def stored(self, job_id: str, output: str) -> Path:
        """Return the file that an output was stored as."""
        (found,) = (self.workspace.path / "datastores").rglob(f"{job_id}/{output}/data.txt")
        return found


def steps(**changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return prep → train → test as in a file; `changes` are keys of one step to replace."""
    found: dict[str, dict[str, Any]] = {
        "prep": {"script": "prep.py", "outputs": {"clean": {}}},
        "train": {
            "script": "train.py",
            "arguments": ["--epochs", "${{parameters.epochs}}"],
            "inputs": {"data": "step:prep/clean"},
            "outputs": {"model": {}},
        },
        "test": {"script": "test.py", "inputs": {"model": "step:train/model"}},
    }
    return {name: {**one, **changes.get(name, {})} for name, one in found.items()}


def decisions(run: PlannedRun) -> dict[str, str]:
    """Return each step's decision in words."""
    return {one.name: one.decision.reason for one in run.steps}


def reused(run: PlannedRun) -> list[str]:
    """Return the names of the reused steps."""
    return [one.name for one in run.reused]
