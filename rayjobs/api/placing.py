"""Chooses a job's target and the resources of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayjobs.api import compute, program_rules
from rayjobs.api.notices import notice
from rayjobs.core.errors import CannotBePlacedError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.capacity import Capacity
from rayjobs.target.local_head import LOCAL
from rayjobs.workspace.azure import AzureSettings, ComputeRecord

if TYPE_CHECKING:
    from rayjobs.api.configs import RunConfiguration
    from rayjobs.api.workspace import Workspace


@dataclass(frozen=True)
class Placement:
    """A job's target, and the resources of each process.

    Attributes:
        target: Name of the target.
        cpus, gpus: Per process.
        node_types: Node types of the target that it may run on.
        spot: See `RunConfiguration.spot`.
        backend: The backend; None means the requested one.
        on_cpus: It requests GPUs but runs on CPUs, because that is allowed.
    """

    target: str
    cpus: float
    gpus: float
    node_types: tuple[str, ...] = ()
    spot: bool | None = None
    backend: str | None = None
    on_cpus: bool = False


def place(
    settings: RunConfiguration, *, workspace: Workspace | None, processes: int, backend: str
) -> Placement:
    """Return the placement of a run configuration's job.

    Without a workspace (``config.to_spec()``), the target's name is used unchanged.

    Args:
        processes: Per node.
        backend: The configured backend.

    Raises:
        CannotBePlacedError: it needs GPUs, the target has none, and CPUs are not allowed.
        ComputeUsageError: in an Azure ML program, a name that is close to a known one.
    """
    from rayjobs.api.configs import target_name

    name = target_name(settings.target)
    if workspace is None:
        return _plain(settings, name)
    kept = AzureSettings(workspace.store)
    record = kept.compute(name)
    target = compute.bound_target(kept, name)
    if target is None:
        if record is None and not program_rules.rules.unknown_is_local:
            return _plain(settings, name)  # the submit reports that there is no such target
        if record is None:
            compute.refuse_misspelt(kept, name)
            notice(compute.unknown_sentence(name))
        target = LOCAL
    machine = settings.amlcompute
    if record is None and machine.vm_size:
        priority = machine.vm_priority or "dedicated"
        record = ComputeRecord(name, vm_size=machine.vm_size, vm_priority=priority.casefold())
    whole_node = record is not None or program_rules.rules.whole_node or settings.use_gpu is True
    if not whole_node:
        return _plain(settings, target)
    return _on_node(
        settings,
        record or ComputeRecord(name),
        target,
        processes=processes,
        backend=backend,
        allow_cpu=program_rules.rules.allow_cpu or kept.allow_cpu,
    )


def _plain(settings: RunConfiguration, target: str) -> Placement:
    gpus = settings.gpus_per_process
    if gpus is None:
        gpus = 1.0 if settings.use_gpu else 0.0
    return Placement(
        target,
        1.0 if settings.cpus_per_process is None else settings.cpus_per_process,
        gpus,
        tuple(settings.node_types),
        settings.spot,
    )


def _on_node(
    settings: RunConfiguration,
    record: ComputeRecord,
    target: str,
    *,
    processes: int,
    backend: str,
    allow_cpu: bool,
) -> Placement:
    """Divide a node's CPUs and GPUs among its processes: in Azure, a job gets whole nodes."""
    from rayjobs.target.targets import capacity_of

    capacity = capacity_of(target)
    size = compute.size_of(record)
    largest = _largest(capacity)
    cpus, gpus = settings.cpus_per_process, settings.gpus_per_process
    if cpus is None:
        node_cpus = min(float(size.cpus), largest.cpus or size.cpus) if size is not None else 1.0
        cpus = max(node_cpus / processes, 1.0) if size is not None else 1.0
        if largest.cpus and cpus * processes > largest.cpus and processes > 1:
            cpus = largest.cpus / processes
    if gpus is None:
        of_node = _gpus_of_node(settings, size, largest)
        # A process gets whole GPUs, or shares one GPU.
        gpus = float(of_node // processes) if of_node >= processes else of_node / processes
    wants_gpus = gpus > 0 or backend == "nccl"
    on_cpus = bool(wants_gpus and capacity.nodes and not largest.gpus)
    if on_cpus:
        if not allow_cpu:
            raise CannotBePlacedError(_needs_gpus(record, target, size, backend))
        backend_change = ", with gloo in place of nccl" if backend == "nccl" else ""
        requester = f"compute target {record.name!r}" if gpus else "the backend nccl"
        gpus = 0.0
        notice(
            f"{requester} asks for GPUs and target {target!r} has none: the job runs on "
            f"CPUs{backend_change}, which is allowed"
        )
        if backend == "nccl":
            backend = "gloo"
    types = tuple(settings.node_types)
    spot = settings.spot
    if capacity.types is not None:
        if not types and size is not None:
            types = (size.name,) if capacity.types.matching([size.name], None) else ()
        if spot is None and record.vm_priority == "lowpriority":
            spot = True if capacity.types.matching(types, True) else None
    elif types or spot is not None:
        notice(
            f"target {target!r} has no node types: it ignores the job's machine size and priority"
        )
        types, spot = (), None
    if capacity.types is None and record.vm_priority == "lowpriority" and settings.spot is None:
        notice(
            f"compute target {record.name!r} asks for low-priority machines, and target {target!r} "
            f"has none: the job runs on ordinary nodes"
        )
    return Placement(target, cpus, gpus, types, spot, backend, on_cpus)


@dataclass(frozen=True)
class _Largest:
    """The resources of the largest node of a target; 0 if unknown."""

    cpus: float
    gpus: float


def _largest(capacity: Capacity) -> _Largest:
    return _Largest(
        max((node.cpus for node in capacity.nodes), default=0.0),
        max((node.gpus for node in capacity.nodes), default=0.0),
    )


def _gpus_of_node(settings: RunConfiguration, size: Any, largest: _Largest) -> float:
    """Return how many GPUs of its node a job gets."""
    if settings.use_gpu is False:
        return 0.0
    if size is None:
        return largest.gpus or (1.0 if settings.use_gpu else 0.0)
    gpus = float(size.gpus)
    if settings.use_gpu and not gpus:
        gpus = largest.gpus or 1.0
    if largest.gpus and gpus > largest.gpus:
        notice(f"{size.name} has {gpus:g} GPUs; the target's largest node has {largest.gpus:g}")
        return largest.gpus
    return gpus


def _needs_gpus(record: ComputeRecord, target: str, size: Any, backend: str) -> str:
    machine = f" ({size.name}: {size.gpus} GPUs)" if size is not None and size.gpus else ""
    what = (
        "its processes communicate over nccl, which needs GPUs"
        if backend == "nccl"
        else "it needs GPUs"
    )
    return (
        f"the job on compute target {record.name!r}{machine} cannot run: {what}, and target "
        f"{target!r} has none. Map the compute to a target with GPUs (`rayjobs azureml map "
        f"{record.name}=TARGET`), or allow CPUs: `rayjobs azureml run --allow-cpu`, or `rayjobs "
        f"azureml allow-cpu` for the whole workspace"
    )
