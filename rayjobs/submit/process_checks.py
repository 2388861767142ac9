"""Checks of a spec's processes and devices: how many, how they talk, which share a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from rayjobs.core.errors import Problem
from rayjobs.policy.capacity import GRAIN
from rayjobs.spec.model import JobSpec


def check(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong, whatever the target."""
    yield from _distribution(spec)
    yield from _gpus(spec)


def warnings(spec: JobSpec) -> Iterator[str]:
    """Yield what is allowed but likely not meant."""
    shape, gpus = spec.distribution, spec.resources.gpus
    # A command may start one process per GPU itself.
    if spec.script is None or gpus <= 1:
        return
    processes, per_node = shape.processes_per_node, _even(gpus * shape.processes_per_node)
    backend = "" if shape.backend != "none" else " --backend nccl"
    yield (
        f"{processes} process{'es' if processes > 1 else ''} per node for {per_node:g} GPUs: a "
        f"process uses one GPU as a rule, the others stay idle. `--procs-per-node {per_node:g} "
        f"--gpus-per-proc 1{backend}` has one for each; a script that spreads its model over its "
        f"GPUs itself may ignore this"
    )


def _distribution(spec: JobSpec) -> Iterator[Problem]:
    shape = spec.distribution
    if spec.command is not None and shape.processes_per_node > 1:
        yield Problem(
            "distribution.processes_per_node",
            f"{shape.processes_per_node} processes, but a `command` is run once per node.",
            "Use `script`, or one process per node.",
        )
    elif shape.backend == "none" and shape.world_size > 1:
        yield Problem(
            "distribution.backend",
            f"none, with {shape.nodes} × {shape.processes_per_node} processes: the processes "
            f"could not find each other.",
            "Choose gloo (CPU) or nccl (GPU) (`--backend`); for independent runs submit several "
            "jobs.",
        )
    gpus = spec.resources.gpus
    if shape.backend == "nccl" and gpus == 0:
        yield Problem(
            "distribution.backend",
            "nccl works between GPUs, and the job requests none.",
            "Set resources.gpus (`--gpus-per-proc 1`), or use gloo.",
        )
    elif shape.backend == "nccl" and gpus < 1 and shape.world_size > 1:
        yield Problem(
            "resources.gpus",
            f"{shape.processes_per_node} processes per node × {gpus:g} are "
            f"{_even(gpus * shape.processes_per_node):g} GPUs per node: nccl needs a whole GPU "
            f"for each process.",
            "Set resources.gpus=1 (`--gpus-per-proc 1`) with one process for each GPU, or use "
            "gloo, whose processes may share one.",
        )


def _gpus(spec: JobSpec) -> Iterator[Problem]:
    gpus, processes = spec.resources.gpus, spec.distribution.processes_per_node
    per_node = _even(gpus * processes)
    if gpus > 1 and not gpus.is_integer():
        yield Problem(
            "resources.gpus",
            f"{gpus:g} GPUs per process: a process has whole GPUs, or a part of one.",
            f"Write {int(gpus)} or {int(gpus) + 1}, or a number below 1.",
        )
    elif 0 < gpus < 1 / GRAIN:
        yield Problem(
            "resources.gpus",
            f"{gpus:g} is less than the smallest part that Ray can assign.",
            f"The smallest part is {1 / GRAIN:g}.",
        )
    elif per_node > 1 and not per_node.is_integer():
        yield Problem(
            "resources.gpus",
            f"{processes} processes × {gpus:g} are {per_node:g} GPUs per node: a node "
            f"provides whole GPUs, or a part of one.",
            f"Change the number of processes or of GPUs so that the product is whole or at "
            f"most 1, e.g. resources.gpus={_near_share(processes, per_node):g}.",
        )


def _even(amount: float) -> float:
    return round(amount, 6)


def _near_share(processes: int, per_node: float) -> float:
    """Return the nearest GPUs per process whose product is whole, and exact in decimals."""
    for whole in (int(per_node) + 1, int(per_node), 1):
        share = whole / processes
        if round(share, 4) * processes == whole:
            return round(share, 4)
    return 1.0
