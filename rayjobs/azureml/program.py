"""Sets up a process that runs an Azure ML v1 program."""

from __future__ import annotations

from typing import Any

from rayjobs.api import program_rules
from rayjobs.injob import urlmap
from rayjobs.injob.afterimport import after_import


def become_azure_program(*, allow_cpu: bool = False) -> None:
    """Give this process's jobs the targets and resources that such a program expects.

    Computes that no target and no mapping answers for run on ``local``, and a job has its node's
    CPUs and GPUs, as on Azure. Web addresses are looked up in the workspace's map first.

    Args:
        allow_cpu: Jobs that ask for GPUs run on CPUs where a target has no GPU.
    """
    program_rules.rules = program_rules.Rules(
        unknown_is_local=True, whole_node=True, allow_cpu=allow_cpu
    )
    # The SDK imports it: programs use it after a mere ``import urllib``.
    import urllib.request  # noqa: F401

    urlmap.install()
    after_import("mlflow.projects.backend.loader", _add_mlflow_backend)


def _add_mlflow_backend(loader: Any) -> None:
    from rayjobs.azureml.mlflow_projects import AzureBackend

    loader.MLFLOW_BACKENDS["azureml"] = AzureBackend
