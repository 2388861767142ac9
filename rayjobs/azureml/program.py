"""Sets up a process that runs an Azure ML v1 program."""

from __future__ import annotations

from typing import Any

from rayjobs.api import program_rules
from rayjobs.injob import url_map
from rayjobs.injob.after_import import after_import


def become_azure_program(*, allow_cpu: bool = False) -> None:
    """Give this process's jobs the targets and resources that an Azure ML program expects.

    Jobs for a compute that is neither a target nor mapped to one run on ``local``. A job gets all
    CPUs and GPUs of its node, as in Azure. Web addresses are first looked up in the workspace's
    map.

    Args:
        allow_cpu: Run jobs that request GPUs on CPUs if their target has no GPU.
    """
    program_rules.rules = program_rules.Rules(
        unknown_is_local=True, whole_node=True, allow_cpu=allow_cpu
    )
    # The SDK imports it, so programs use it after a plain ``import urllib``.
    import urllib.request  # noqa: F401

    url_map.install()
    after_import("mlflow.projects.backend.loader", _add_mlflow_backend)


def _add_mlflow_backend(loader: Any) -> None:
    from rayjobs.azureml.mlflow_projects import AzureBackend

    loader.MLFLOW_BACKENDS["azureml"] = AzureBackend
