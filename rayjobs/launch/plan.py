"""The input of every launcher, and the parts that the plans of all launchers share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from rayjobs.core.paths import NodePaths, short_socket
from rayjobs.injob import parallel_settings, url_map
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.plan import LaunchPlan, RankPlan
from rayjobs.injob.rank import MAPPED_ON_PATH, ON_PATH
from rayjobs.jobs.records import Job
from rayjobs.spec.model import DEFAULT_UMASK, JobSpec

# The variables that a rank inherits from the node's environment. It gets no others, so that neither
# Ray's token nor a user's credentials reach a script by accident.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "SHELL")
INHERITED_PREFIXES = ("NVIDIA_", "CUDA_HOME", "CUDA_PATH")

DEFAULT_PIDS_MAX = 16_384
TORCH_BACKENDS = ("gloo", "nccl")
# Their ranks need a rendezvous port on the first node, which must be chosen before planning.
MEETING_BACKENDS = (*TORCH_BACKENDS, "mpi", "horovod-gloo")


@dataclass(frozen=True)
class PlannedNode:
    """One node of an attempt.

    Attributes:
        node_id: Ray's node id.
        address: Where other nodes reach it.
        root: The node's scratch folder.
        gpus: GPU ids of the bundle there.
        base_environment: The node agent's own variables, of which ranks inherit a few.
    """

    node: int
    node_id: str
    address: str
    root: Path
    gpus: tuple[str, ...] = ()
    base_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AzureIdentity:
    """The names under which programs of Azure ML v1 know a job's workspace and target.

    Attributes:
        urls: Which local path replaces a web address.
    """

    workspace_name: str
    workspace_id: str = ""
    subscription_id: str = "local"
    resource_group: str = "local"
    target_type: str = "local"
    urls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptContext:
    """What a launcher needs in addition to the spec.

    Attributes:
        master_port: The rendezvous port on the first node; None for a single process.
        azure: The names for programs of Azure ML v1; None: the workspace's own name.
    """

    job: Job
    attempt: int
    nodes: tuple[PlannedNode, ...]
    markers: tuple[str, ...]
    workspace_name: str
    workspace_path: str
    master_port: int | None = None
    inputs: tuple[Mapping[str, str], ...] = ()  # per node: input name → path there
    injob_path: str = ""
    python: str = ""
    azure: AzureIdentity | None = None


def host_plan(
    context: AttemptContext, planned: PlannedNode, rank_environments: Sequence[Mapping[str, str]]
) -> LaunchPlan:
    """Return plan.json of one node; `rank_environments` has one entry per local rank."""
    spec = context.job.spec
    per_node = spec.distribution.processes_per_node
    first_rank = planned.node * per_node
    attempt_paths = NodePaths(planned.root).attempt(context.job.id, context.attempt, planned.node)
    memory_gib = spec.resources.memory_gib
    return LaunchPlan(
        job=context.job.id,
        attempt=context.attempt,
        node=planned.node,
        node_count=spec.distribution.nodes,
        marker=context.markers[planned.node],
        root=str(attempt_paths.root),
        socket=str(short_socket("host", context.markers[planned.node])),
        kind="script" if spec.script is not None else "command",
        argv=(spec.script, *spec.arguments) if spec.script is not None else (),
        command=spec.command,
        python=context.python,
        cold=_why_cold(spec),
        env=rank_environment(context, planned),
        ranks=tuple(
            RankPlan(
                rank=first_rank + local,
                local_rank=local,
                env={"AZ_BATCHAI_TASK_INDEX": str(first_rank + local), **extra},
            )
            for local, extra in enumerate(rank_environments)
        ),
        grace_s=spec.grace_s,
        max_duration_s=spec.max_duration_s,
        memory_bytes=None if memory_gib is None else int(memory_gib * per_node * 2**30),
        pids_max=DEFAULT_PIDS_MAX,
        log_cap_bytes=None if spec.log_cap_mib is None else int(spec.log_cap_mib * 2**20),
        threads=max(1, int(spec.resources.cpus)) if spec.resources.cpus else None,
        injob_path=context.injob_path,
        umask=int(spec.umask or DEFAULT_UMASK, 8),
    )


def _why_cold(spec: JobSpec) -> str | None:
    if spec.container is not None:
        return "the job runs in a container image"
    return "the job requested it (--cold)" if spec.cold else None


def rank_environment(context: AttemptContext, planned: PlannedNode) -> dict[str, str]:
    """Return the variables of all ranks of a node: an allow-list, the job's own, and ours."""
    job = context.job
    attempt_paths = NodePaths(planned.root).attempt(job.id, context.attempt, planned.node)
    work = attempt_paths.work
    # In an image, the node's own paths have another meaning or none: the image sets its own.
    container = job.spec.container
    environment = inherited(planned.base_environment) if container is None else {}
    if container is not None:
        environment.update(container.parsed_arguments.variables)
    environment.update(job.spec.environment_variables)
    environment.update(
        {
            "TMPDIR": str(attempt_paths.tmp),
            "CUDA_VISIBLE_DEVICES": ",".join(planned.gpus),
            "RAYJOBS_RUN_ID": job.id,
            "RAYJOBS_ATTEMPT": str(context.attempt),
            "RAYJOBS_OUTPUTS": str(work / "outputs"),
            "RAYJOBS_ATTEMPT_DIR": str(attempt_paths.root),
            "RAYJOBS_METRICS_DIR": str(attempt_paths.root / "metrics"),
            "RAYJOBS_EXPERIMENT": job.experiment,
            "RAYJOBS_WORKSPACE_NAME": context.workspace_name,
            "AZUREML_RUN_ID": job.id,
            "AZUREML_ROOT_RUN_ID": job.parent or job.id,
            **azure_variables(context),
            "AZUREML_CR_NODE_RANK": str(planned.node),
            "AZ_BATCHAI_JOB_TEMP": str(attempt_paths.tmp),
            "AZUREML_OUTPUT_DIRECTORY": str(work / "outputs"),
            "AZUREML_LOGDIRECTORY_PATH": str(work / "logs"),
        }
    )
    if planned.gpus:
        # The numbers are Ray's, which are the driver's; CUDA's default order may differ.
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if job.spec.parallel_run is not None:
        environment[parallel_settings.VARIABLE] = job.spec.parallel_run.model_dump_json()
    environment |= array_variables(job)
    if job.spec.resume_from is not None:
        environment |= resume_variables(attempt_paths.resume)
    inputs = context.inputs[planned.node] if planned.node < len(context.inputs) else {}
    for name, path in inputs.items():
        environment |= input_variables(name, path)
    return environment


def with_azureml(environment: Mapping[str, str], injob_path: str) -> dict[str, str]:
    """Return the variables that make ``import azureml`` find rayjobs' own module on a node.

    In workspaces with a map of addresses, every interpreter of the job loads it first. The job's
    own PYTHONPATH entries come after both.
    """
    folders = [ON_PATH, *([MAPPED_ON_PATH] if url_map.VARIABLE in environment else [])]
    path = [f"{injob_path}{os.sep}{one}" for one in folders]
    own = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([*path, *([own] if own else [])])}


_COMMUNICATORS = {"mpi": "OpenMpi", "horovod-gloo": "Gloo", "gloo": "Gloo", "nccl": "Nccl"}


def azure_variables(context: AttemptContext) -> dict[str, str]:
    """Return the variables that lead programs of Azure ML v1 to their run, workspace and peers.

    Source: azureml-core's ``Run.get_context``, and the variables of Azure's Batch AI.
    """
    job, azure = context.job, context.azure or AzureIdentity(context.workspace_name)
    backend = job.spec.distribution.backend
    found = {
        "AZUREML_ARM_SUBSCRIPTION": azure.subscription_id,
        "AZUREML_ARM_RESOURCEGROUP": azure.resource_group,
        "AZUREML_ARM_WORKSPACE_NAME": azure.workspace_name,
        "AZUREML_ARM_PROJECT_NAME": job.experiment,
        "AZUREML_EXPERIMENT_ID": f"{azure.workspace_id}/{job.experiment}",
        "AZUREML_WORKSPACE_ID": azure.workspace_id,
        # Programs test that it exists and never connect: a script uses its node's agent instead.
        "AZUREML_SERVICE_ENDPOINT": f"rayjobs://{context.workspace_name}",
        "AZUREML_DISCOVERY_SERVICE_ENDPOINT": f"rayjobs://{context.workspace_name}",
        "AZUREML_TARGET_TYPE": azure.target_type,
        "AZUREML_COMMUNICATOR": _COMMUNICATORS.get(backend, "None"),
        "AZUREML_FRAMEWORK": "PyTorch" if backend in ("gloo", "nccl") else "Python",
        "AZ_BATCHAI_TASK_TYPE": "worker",
    }
    if azure.urls:
        found[url_map.VARIABLE] = json.dumps(dict(azure.urls))
    if backend == "mpi":
        found["AZ_BATCHAI_MPI_MASTER_NODE"] = context.nodes[0].address
    return found


def array_variables(job: Job) -> dict[str, str]:
    """Return the variables that give a script its index in an array; none without an array."""
    array = job.spec.array
    if array is None or job.array_index is None:
        return {}
    return {
        "RAYJOBS_ARRAY_INDEX": str(job.array_index),
        "RAYJOBS_ARRAY_ID": job.parent or "",
        "RAYJOBS_ARRAY_COUNT": str(array.count or len(array.expand())),
    }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables of a node's own environment that ranks may see."""
    return {
        name: value
        for name, value in environment.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }


def resume_variables(folder: Path) -> dict[str, str]:
    """Return the variables that name the checkpoint from which a script continues.

    A retry gets them from its node, which looks for a checkpoint.

    Source: Azure ML v1's resume_from (`AZUREML_DATAREFERENCE_MODEL_LOCATION`).
    """
    return {
        "RAYJOBS_RESUME_FROM": str(folder),
        "AZUREML_DATAREFERENCE_MODEL_LOCATION": str(folder),
    }


def output_variables(name: str, path: str) -> dict[str, str]:
    """Return the variables that name the folder of an output.

    Source: Azure ML v1 (the same names as for an input).
    """
    upper = re.sub(r"\W", "_", name).upper()
    return {f"AZUREML_DATAREFERENCE_{name}": path, name: path, f"RAYJOBS_OUTPUT_{upper}": path}


def input_variables(name: str, path: str) -> dict[str, str]:
    """Return the variables that name the path of an input.

    Source: Azure ML v1 (`AZUREML_DATAREFERENCE_<name>`, and the plain name).
    """
    upper = re.sub(r"\W", "_", name).upper()
    return {f"AZUREML_DATAREFERENCE_{name}": path, name: path, f"RAYJOBS_INPUT_{upper}": path}
