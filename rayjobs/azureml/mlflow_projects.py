"""The backend ``azureml`` of ``mlflow.projects.run``: an MLproject's entry point as a job.

Source: azureml-mlflow, `azureml.mlflow._internal`; MLflow's plugin interface for backends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.projects.backend.abstract_backend import AbstractBackend
from mlflow.projects.submitted_run import SubmittedRun

from rayjobs.core.errors import UsageError

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun

COMPUTE, USE_CONDA = "COMPUTE", "USE_CONDA"
_FINISHED, _RUNNING, _FAILED = "FINISHED", "RUNNING", "FAILED"


class AzureBackend(AbstractBackend):
    """Submits a project as a job of the workspace that `Workspace.from_config` opens."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: Mapping[str, Any] | None,
        version: str | None,
        backend_config: Mapping[str, Any] | str,
        tracking_uri: str,
        experiment_id: str,
    ) -> ProjectRun:
        """Submit an entry point; the job continues after the call has returned.

        Args:
            backend_config: ``COMPUTE``: a compute target (default: this machine); ``USE_CONDA``:
                whether to build the project's environment (default) or use the target's own.

        Raises:
            UsageError: the project names a Docker image as its environment.
        """
        import mlflow
        from mlflow.projects.utils import fetch_and_validate_project, load_project

        from rayjobs.api.configs import ScriptRunConfig
        from rayjobs.api.environment import Environment
        from rayjobs.api.experiment import Experiment
        from rayjobs.api.workspace import Workspace

        given = _config(backend_config)
        fetch: Any = fetch_and_validate_project
        load: Any = load_project
        folder = fetch(project_uri, version, entry_point, params)
        project = load(folder)
        if project.docker_env is not None:
            raise UsageError(
                "this project runs in a Docker image; submit its command with ScriptRunConfig and "
                "an Environment that names the image"
            )
        command = project.get_entry_point(entry_point).compute_command(params or {}, None)
        environment = None
        if given.get(USE_CONDA, True) and project.env_config_path is not None:
            name = project.name or "mlflow-project"
            environment = Environment.from_conda_specification(name, project.env_config_path)
        experiment = mlflow.get_experiment(experiment_id)
        config = ScriptRunConfig(
            source_directory=folder,
            command=command,
            compute_target=given.get(COMPUTE) or "local",
            environment=environment,
        )
        return ProjectRun(Experiment(Workspace.from_config(), experiment.name).submit(config))


class ProjectRun(SubmittedRun):
    """A submitted project."""

    def __init__(self, run: JobRun) -> None:
        super().__init__()
        self._run = run

    @property
    def run_id(self) -> str:
        """The run's id, in MLflow and here."""
        return self._run.id

    def wait(self) -> bool:
        """Wait for its end, showing its log; return whether it completed."""
        self._run.wait_for_completion(show_output=True, raise_on_error=False)
        return self._run.get_status() == "Completed"

    def get_status(self) -> str:
        """Return MLflow's name for its state."""
        status = self._run.get_status()
        if status == "Completed":
            return _FINISHED
        return _FAILED if status in ("Failed", "Canceled") else _RUNNING

    def cancel(self) -> None:
        """Cancel it."""
        self._run.cancel()


def _config(given: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if isinstance(given, str):
        loaded: Mapping[str, Any] = json.loads(Path(given).read_text())
        return loaded
    return given
