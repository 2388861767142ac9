"""A target's capacity, whether a job can ever fit there, and the shape of its allocation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from rayjobs.core.errors import Problem
from rayjobs.core.text import GIB, counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.node_types import NodeTypes
from rayjobs.spec.model import JobSpec

# Ray counts in ten-thousandths and refuses an empty bundle.
GRAIN = 10_000
LEAST_CPUS = 0.001

Strategy = Literal["STRICT_SPREAD", "PACK"]


@dataclass(frozen=True)
class NodeShape:
    """A node that is alive or may still start.

    Attributes:
        cpus: Logical CPUs.
        gpus: GPUs.
        memory_bytes: Memory for jobs.
        count: The number of such nodes.
        node_type: The name of its node type in the cluster; empty: unknown.
    """

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0
    count: int = 1
    node_type: str = ""


@dataclass(frozen=True)
class Capacity:
    """A target's maximum capacity.

    Attributes:
        nodes: The nodes, including those that may still start.
        max_nodes: How many of them may exist at a time.
        shares_machine: Several nodes of a job may be on one machine, and processes may exceed
            its CPUs (the target ``local``); GPUs and memory may not be exceeded.
        types: The types of nodes that it may start; None: none, or unknown.
        running: The nodes that run now; None: all of `nodes`.
    """

    nodes: tuple[NodeShape, ...]
    max_nodes: int
    shares_machine: bool = False
    types: NodeTypes | None = None
    running: tuple[NodeShape, ...] | None = None


@dataclass(frozen=True)
class PlacedShape:
    """The placement of a job.

    Attributes:
        shape: ``nodes``; ``cpus``, ``gpus`` and ``memory`` (bytes) per node; ``spread`` 1.0
            if each node of the job needs its own machine; ``node_types`` if its nodes must be of
            certain types. Allocations of equal shapes may be reused.
        strategy: The strategy of the placement group.
        notes: Notes for the submitter, e.g. that processes share CPUs.
    """

    shape: Mapping[str, Any]
    strategy: Strategy
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Need:
    """The resources that each node of a job needs."""

    cpus: float
    gpus: float
    memory: int


def _need(spec: JobSpec) -> _Need:
    processes = spec.distribution.processes_per_node
    wanted = spec.resources
    return _Need(
        cpus=_even(wanted.cpus * processes),
        gpus=_even(wanted.gpus * processes),
        memory=math.ceil((wanted.memory_gib or 0.0) * GIB) * processes,
    )


def _even(amount: float) -> float:
    """Return the amount rounded to Ray's precision: 3 × 0.1 is 0.3."""
    return round(amount * GRAIN) / GRAIN


def fits_ever(spec: JobSpec, capacity: Capacity) -> list[Problem]:
    """Return why the job can never be placed, with numbers and remedies; empty if it can."""
    wrong = _wrong_types(spec, capacity)
    if wrong:
        return wrong
    if spec.resources.node_types or spec.resources.spot is not None:
        assert capacity.types is not None
        names = set(pin_types(spec, capacity).resources.node_types)
        of_type = tuple(node for node in capacity.nodes if node.node_type in names)
        most = min(capacity.max_nodes, sum(node.count for node in of_type))
        capacity = replace(capacity, nodes=of_type, max_nodes=most)
    if capacity.shares_machine:
        return _fits_machine(spec, capacity)
    need, nodes = _need(spec), spec.distribution.nodes
    problems = []
    if nodes > capacity.max_nodes:
        problems.append(
            Problem(
                "distribution.nodes",
                f"the job asks for {counted(nodes, 'node')}; the target has "
                f"{capacity.max_nodes} at most.",
                "Lower distribution.nodes, or raise the target's maximum.",
            )
        )
    for path, name, wanted, largest in (
        ("resources.cpus", "CPU", need.cpus, _largest(capacity, "cpus")),
        ("resources.gpus", "GPU", need.gpus, _largest(capacity, "gpus")),
        ("resources.memory_gib", "", need.memory / GIB, _memory_gib(capacity)),
    ):
        if wanted > largest:
            problems.append(
                Problem(
                    path,
                    f"the job asks for {_amount(wanted, name)} per node{_factors(spec, path)}; the "
                    f"largest node has {_amount(largest, name)}.",
                    f"Lower {path}, use fewer processes per node, or add a larger node type.",
                )
            )
    if not problems:
        fitting = sum(node.count for node in capacity.nodes if _holds(node, need))
        if fitting < nodes:
            problems.append(
                Problem(
                    "distribution.nodes",
                    f"the job asks for {counted(nodes, 'node')} with "
                    f"{_described(need)} each; the target can have {fitting} of these.",
                    "Lower distribution.nodes or the resources per process, or add such nodes.",
                )
            )
    return problems


def _wrong_types(spec: JobSpec, capacity: Capacity) -> list[Problem]:
    """Return why no node can be of the requested types."""
    wanted, spot = spec.resources.node_types, spec.resources.spot
    if not wanted and spot is None:
        return []
    path = "resources.node_types" if wanted else "resources.spot"
    if capacity.types is None:
        return [
            Problem(
                path,
                "the target has no known node types.",
                "Leave it out, or make the target with `rayjobs target create NAME --cluster "
                "cluster.yaml`.",
            )
        ]
    unknown = [one for one in wanted if not capacity.types.matching([one], None)]
    there_are = f"The target has: {capacity.types.describe()}."
    if unknown:
        names = ", ".join(repr(one) for one in unknown)
        return [Problem(path, f"the target has no nodes of type or size {names}.", there_are)]
    if not capacity.types.matching(wanted, spot):
        which = f" of {' or '.join(wanted)}" if wanted else ""
        kind = "spot nodes" if spot else "nodes that are not spot"
        return [Problem("resources.spot", f"the target has no {kind}{which}.", there_are)]
    return []


def pin_types(spec: JobSpec, capacity: Capacity) -> JobSpec:
    """Return the spec with the names of all node types that it may run on, if it limits them.

    The result of a machine size or a request for spot nodes thus does not change when types are
    added later.
    """
    resources = spec.resources
    if capacity.types is None or (not resources.node_types and resources.spot is None):
        return spec
    names = tuple(one.name for one in capacity.types.matching(resources.node_types, resources.spot))
    pinned = resources.model_copy(update={"node_types": names})
    return spec.model_copy(update={"resources": pinned})


def _fits_machine(spec: JobSpec, capacity: Capacity) -> list[Problem]:
    need, nodes = _need(spec), spec.distribution.nodes
    problems = []
    for path, name, wanted, has in (
        ("resources.gpus", "GPU", _even(need.gpus * nodes), _total(capacity, "gpus")),
        (
            "resources.memory_gib",
            "",
            need.memory * nodes / GIB,
            _total(capacity, "memory_bytes") / GIB,
        ),
    ):
        if wanted > has:
            ranks = spec.distribution.world_size
            each = f" ({ranks} processes together)" if ranks > 1 else ""
            problems.append(
                Problem(
                    path,
                    f"the job asks for {_amount(wanted, name)}{each}; this machine has "
                    f"{_amount(has, name)}.",
                    f"Lower {path}, or choose a larger target.",
                )
            )
    return problems


def plan_shape(spec: JobSpec, capacity: Capacity) -> PlacedShape:
    """Return the shape of the job's allocation on a target.

    On a shared machine, the shape requests at most the existing CPUs: a placement group that
    requested more would wait forever. Threads can share CPUs, so that a job written for a cluster
    can be tried on a laptop; a job that lacks a GPU or memory would fail, and is refused.
    """
    need, nodes = _need(spec), spec.distribution.nodes
    cpus, notes = need.cpus, []
    if capacity.shares_machine:
        has = _total(capacity, "cpus")
        if nodes > 1:
            notes.append(f"all {nodes} nodes of the job are on this one machine")
        if capacity.nodes and cpus * nodes > has:
            cpus = math.floor(has / nodes * GRAIN) / GRAIN
            ranks = spec.distribution.world_size
            who = f"its {ranks} processes share" if ranks > 1 else "its threads share"
            notes.append(
                f"the job asks for {need.cpus * nodes:g} CPUs and this machine has {has:g}: the "
                f"job waits for all of them, and {who} them (GPUs and memory cannot be "
                f"shared in this way)"
            )
    if cpus <= 0 and need.gpus <= 0 and need.memory <= 0:
        cpus = LEAST_CPUS
    strategy: Strategy = "PACK" if capacity.shares_machine else "STRICT_SPREAD"
    shape: dict[str, Any] = {
        "nodes": float(nodes),
        "cpus": cpus,
        "gpus": need.gpus,
        "memory": float(need.memory),
        "spread": float(strategy == "STRICT_SPREAD"),
    }
    if spec.resources.node_types:
        shape["node_types"] = list(spec.resources.node_types)
    return PlacedShape(
        shape=shape,
        strategy=strategy,
        notes=tuple(notes),
    )


def _holds(node: NodeShape, need: _Need) -> bool:
    return node.cpus >= need.cpus and node.gpus >= need.gpus and node.memory_bytes >= need.memory


def _largest(capacity: Capacity, name: str) -> float:
    return max((float(getattr(node, name)) for node in capacity.nodes), default=0.0)


def _memory_gib(capacity: Capacity) -> float:
    return _largest(capacity, "memory_bytes") / GIB


def _total(capacity: Capacity, name: str) -> float:
    return sum(float(getattr(node, name)) * node.count for node in capacity.nodes)


def _factors(spec: JobSpec, path: str) -> str:
    processes = spec.distribution.processes_per_node
    if processes == 1:
        return ""
    each = getattr(spec.resources, path.rpartition(".")[2])
    return f" ({processes} processes × {each:g})"


def _amount(number: float, unit: str) -> str:
    """Return an amount with its unit, CPUs, GPUs or GiB of memory, for users."""
    if unit:
        return counted(round(number, 4), unit)
    return f"{size_text(number * GIB)} of memory"


def _described(need: _Need) -> str:
    parts = [counted(need.cpus, "CPU")]
    if need.gpus:
        parts.append(counted(need.gpus, "GPU"))
    if need.memory:
        parts.append(size_text(need.memory))
    return ", ".join(parts)
