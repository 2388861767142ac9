"""MLflow in a driver: an endpoint in this process that stores interactive runs in a workspace.

MLflow can also read submitted runs.

Source: ``azureml.core.Workspace.get_mlflow_tracking_uri``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.mlflow_server import PARAM, TOKEN, TrackingServer
from rayjobs.injob.mlflow_tracking import RunState, Sink, Tracking, TrackingError, not_found
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun
    from rayjobs.api.workspace import Workspace
    from rayjobs.jobs.records import Job

DEFAULT_EXPERIMENT = "Default"  # Source: MLflow's name of the experiment with id 0
_STATUS = {
    JobState.COMPLETED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELED: "KILLED",
    JobState.QUEUED: "SCHEDULED",
}
_servers: dict[tuple[int, Path], TrackingServer] = {}
_served: dict[tuple[int, Path], Workspace] = {}
_lock = threading.Lock()


def tracking_uri(workspace: Workspace) -> str:
    """Return the address of this process's endpoint for a workspace; start it if needed.

    Clients in this process and its child processes get the token from the variable
    ``MLFLOW_TRACKING_TOKEN``.
    """
    key = (os.getpid(), workspace.opened.path)
    with _lock:
        server = _servers.get(key)
        if server is None:
            # One token for all endpoints, because clients have only one variable.
            token = os.environ.setdefault(TOKEN, secrets.token_urlsafe(18))
            server = TrackingServer(Tracking(WorkspaceSink(workspace)), token)
            server.start()
            _servers[key] = server
            _served[key] = workspace
    return server.uri


def served_workspaces() -> list[Workspace]:
    """Return the workspaces that this process serves to MLflow clients."""
    with _lock:
        return [one for (pid, _), one in _served.items() if pid == os.getpid()]


class WorkspaceSink(Sink):
    """Stores the data that clients log as interactive runs of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._store = workspace.opened.store
        self._runs: dict[str, JobRun] = {}
        self._names: dict[str, str] = {}  # created experiments, which may not have a run yet

    # -- experiments ---------------------------------------------------------------------------
    def experiment_id(self, name: str, *, create: bool) -> str | None:
        """See `Sink`; an experiment exists once a client has created it or it has a run."""
        known = self._known()
        if create:
            self._names[_id_of(name)] = name
        return _id_of(name) if create or name in known.values() else None

    def experiment(self, experiment_id: str) -> dict[str, Any]:
        """See `Sink`."""
        name = self._known().get(experiment_id)
        if name is None:
            raise not_found(f"there is no experiment with the id {experiment_id!r}.")
        return {"experiment_id": experiment_id, "name": name}

    def experiments(self) -> list[dict[str, Any]]:
        """See `Sink`."""
        return [{"experiment_id": one, "name": name} for one, name in self._known().items()]

    def _known(self) -> dict[str, str]:
        stored = sorted({job.experiment for job in self._store.jobs()})
        known = {_id_of(name): name for name in (DEFAULT_EXPERIMENT, *stored)}
        return {**known, **self._names}

    # -- runs ----------------------------------------------------------------------------------
    def create_run(
        self, experiment_id: str, name: str, tags: Mapping[str, str]
    ) -> tuple[str, str, str]:
        """See `Sink`; creates an interactive run, as a child of the run that its tag names."""
        from rayjobs.api.experiment import Experiment

        parent = self._runs.get(tags.get("mlflow.parentRunId", ""))
        run: JobRun
        if parent is not None:
            run = parent.child_run(name=name or None)
        else:
            experiment = Experiment(self._workspace, self.experiment(experiment_id)["name"])
            run = experiment.start_logging(
                display_name=name or None, outputs=False, snapshot_directory=None
            )
        self._runs[run.id] = run
        return run.id, name or run.display_name, _artifacts(run.id)

    def find_run(self, run_id: str) -> RunState | None:
        """See `Sink`."""
        try:
            job = self._store.job(run_id)
        except NotFoundError:
            return None
        return self._state_of(job)

    def run_ids(self, experiment_id: str) -> list[str]:
        """See `Sink`."""
        name = self._known().get(experiment_id)
        if name is None:
            return []
        return [job.id for job in self._store.jobs(JobFilter(experiment=name))]

    def _state_of(self, job: Job) -> RunState:
        name = job.display_name or job.spec.display_name or job.spec.name
        run = RunState(job.id, _id_of(job.experiment), name, _artifacts(job.id))
        run.status = _STATUS.get(job.state, "RUNNING")
        run.start_ms = round((job.started_at or job.submitted_at).timestamp() * 1000)
        run.end_ms = None if job.ended_at is None else round(job.ended_at.timestamp() * 1000)
        run.tags = {**job.tags, "mlflow.user": job.user}
        for key, value in job.properties.items():
            if key.startswith(PARAM):
                run.params[key.removeprefix(PARAM)] = value
        for point in self._store.metrics(job.id):
            if isinstance(point.value, int | float):
                found = {
                    "key": point.name,
                    "value": _number(float(point.value)),
                    "step": point.step or 0,
                    "timestamp": round(point.at.timestamp() * 1000),
                }
                run.metrics.setdefault(point.name, []).append(found)
        return run

    def _run(self, run_id: str) -> JobRun:
        run = self._runs.get(run_id)
        if run is None:
            run = self._workspace.get_run(run_id)
            self._runs[run_id] = run
        return run

    # -- values --------------------------------------------------------------------------------
    def metric(self, run: RunState, key: str, value: float, step: int) -> None:
        """See `Sink`."""
        self._run(run.run_id).log(key, value, step=step)

    def param(self, run: RunState, key: str, value: str) -> None:
        """See `Sink`."""
        try:
            self._run(run.run_id).add_properties({PARAM + key: value})
        except UsageError as error:
            raise TrackingError(400, "INVALID_PARAMETER_VALUE", str(error)) from error

    def tag(self, run: RunState, key: str, value: str | None) -> None:
        """See `Sink`."""
        if value is None:
            self._run(run.run_id).remove_tags([key])
        else:
            self._run(run.run_id).tag(key, value)

    def end_run(self, run: RunState, status: str) -> None:
        """See `Sink`; a submitted run ends with its script."""
        found = self._run(run.run_id)
        if status == "FINISHED":
            found.complete()
        elif status == "FAILED":
            found.fail("MLflow ended the run as failed")
        else:
            found.cancel()

    # -- files ---------------------------------------------------------------------------------
    def artifact_sizes(self, run_id: str) -> dict[str, int]:
        """See `Sink`."""
        return {one.name: one.size for one in self._store.files(run_id)}

    def read_artifact(self, run_id: str, name: str) -> Iterator[bytes]:
        """See `Sink`."""
        for one in self._store.files(run_id):
            if one.name == name:
                with self._workspace.opened.blobs.open(one.blob) as file:
                    while part := file.read(1 << 20):
                        yield part
                return
        raise not_found(f"run {run_id} has no file {name!r}.")

    def write_artifact(self, run_id: str, name: str, content: BinaryIO) -> None:
        """See `Sink`."""
        with tempfile.NamedTemporaryFile(prefix="mlflow-") as file:
            while part := content.read(1 << 20):
                file.write(part)
            file.flush()
            self._run(run_id).upload_file(name, file.name)


def _id_of(name: str) -> str:
    if name == DEFAULT_EXPERIMENT:
        return "0"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _artifacts(run_id: str) -> str:
    return f"mlflow-artifacts:/{run_id}"


def _number(value: float) -> float | str:
    """Return a number in the form of MLflow's JSON."""
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")
