"""Functions of ``azureml.mlflow``, which accept runs of Azure ML and of MLflow.

Source: ``azureml.mlflow``, of the package azureml-mlflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.api.mlflow_runs import served_workspaces
from rayjobs.api.run_context import Run
from rayjobs.core.errors import NotFoundError


def get_portal_url(run: Any) -> str:
    """Return the address of a run: ``rayjobs://WORKSPACE/RUN``."""
    url: str = _run_of(run).get_portal_url()
    return url


def get_mlflow_tracking_uri(workspace: Any) -> str:
    """Return the result of `Workspace.get_mlflow_tracking_uri`."""
    uri: str = workspace.get_mlflow_tracking_uri()
    return uri


def register_model(
    run: Any, name: str, path: str, tags: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Register a file or folder of a run as the next version of a model.

    Args:
        run: A run, or MLflow's object for one.
        path: As in `Run.get_file_names`.
        kwargs: Further arguments of `Run.register_model`.
    """
    return _run_of(run).register_model(model_name=name, model_path=path, tags=tags, **kwargs)


def _run_of(run: Any) -> Any:
    info = getattr(run, "info", None)
    if info is None:
        return run
    context = Run.get_context()
    if context.id == info.run_id:
        return context
    for workspace in served_workspaces():
        try:
            return workspace.get_run(info.run_id)
        except NotFoundError:
            continue
    raise NotFoundError(
        f"MLflow's run {info.run_id!r} is not in a workspace that this process has opened with "
        f"Workspace.get_mlflow_tracking_uri()"
    )
