"""Shapes of allocations, the capacity of nodes, and how shapes use up capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rayjobs.core.text import counted, size_text
from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The resources of an allocation.

    Attributes:
        nodes: Number of bundles.
        cpus, gpus: Per bundle.
        memory: Bytes per bundle.
        spread: Whether each bundle needs its own node.
        node_types: Types of nodes that it may use, by name; empty: any.
    """

    nodes: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory: float = 0.0
    spread: bool = False
    node_types: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the shape as plain data."""
        plain: dict[str, Any] = {
            "nodes": self.nodes,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "memory": self.memory,
            "spread": float(self.spread),
        }
        if self.node_types:
            plain["node_types"] = list(self.node_types)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Shape:
        """Return the shape written by `to_dict`."""
        return cls(
            nodes=int(data["nodes"]),
            cpus=float(data["cpus"]),
            gpus=float(data["gpus"]),
            memory=float(data.get("memory", 0.0)),
            spread=bool(data.get("spread", 0.0)),
            node_types=tuple(data.get("node_types", ())),
        )

    def describe(self) -> str:
        """Return e.g. ``2 nodes × (4 CPUs, 1 GPU)``."""
        parts = [counted(self.cpus, "CPU")]
        if self.gpus:
            parts.append(counted(self.gpus, "GPU"))
        if self.memory:
            parts.append(size_text(self.memory))
        if self.node_types:
            parts.append(f"type {' or '.join(self.node_types)}")
        one = ", ".join(parts)
        return one if self.nodes == 1 else f"{self.nodes} nodes × ({one})"


@dataclass(frozen=True)
class NodeCapacity:
    """A node's total and free resources.

    Attributes:
        node_type: The name of its node type in the cluster; empty if there are none.
        is_up: False for a node that may start: placing a job there starts it.
    """

    node_id: str
    cpus: float
    gpus: float
    memory: float
    free_cpus: float
    free_gpus: float
    free_memory: float
    node_type: str = ""
    is_up: bool = True

    def holds(self, shape: Shape) -> bool:
        """Return whether one bundle of the shape fits into the free resources."""
        return (
            (not shape.node_types or self.node_type in shape.node_types)
            and self.free_cpus + SLACK >= shape.cpus
            and self.free_gpus + SLACK >= shape.gpus
            and self.free_memory + SLACK >= shape.memory
        )

    def less(self, shape: Shape) -> NodeCapacity:
        """Return the node with one bundle of the shape taken."""
        return self.plus(-shape.cpus, -shape.gpus, -shape.memory)

    def plus(self, cpus: float, gpus: float, memory: float) -> NodeCapacity:
        """Return the node with this much more (or less) free."""
        return NodeCapacity(
            self.node_id,
            self.cpus,
            self.gpus,
            self.memory,
            self.free_cpus + cpus,
            self.free_gpus + gpus,
            self.free_memory + memory,
            self.node_type,
            self.is_up,
        )

    def taken(self) -> NodeCapacity:
        """Return the node with nothing free."""
        return self.plus(-self.free_cpus, -self.free_gpus, -self.free_memory)

    def emptied(self) -> NodeCapacity:
        """Return the node with nothing on it."""
        return NodeCapacity(
            self.node_id,
            self.cpus,
            self.gpus,
            self.memory,
            self.cpus,
            self.gpus,
            self.memory,
            self.node_type,
            self.is_up,
        )


# Adding and subtracting fractions of CPUs and GPUs leaves rounding errors.
SLACK = 1e-6


def take(
    capacities: Sequence[NodeCapacity], shape: Shape
) -> tuple[list[NodeCapacity], tuple[str, ...]] | None:
    """Return the capacities with the shape taken and the node of each bundle; None: no capacity.

    Prefers running nodes, and of them the fullest that fits, so that large jobs find whole nodes.
    """
    left = list(capacities)
    chosen: list[str] = []
    for _ in range(shape.nodes):
        fitting = [
            index
            for index, capacity in enumerate(left)
            if capacity.holds(shape) and not (shape.spread and capacity.node_id in chosen)
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda index: _emptiness(left[index]))
        chosen.append(left[best].node_id)
        left[best] = left[best].less(shape)
    return left, tuple(chosen)


def _emptiness(capacity: NodeCapacity) -> tuple[bool, float, float]:
    return (not capacity.is_up, capacity.free_gpus, capacity.free_cpus)


def move(
    capacities: Sequence[NodeCapacity], shape: Shape, old: Sequence[str], new: Sequence[str]
) -> list[NodeCapacity] | None:
    """Return the capacities with a shape moved to other nodes; None if it does not fit there."""
    left = {capacity.node_id: capacity for capacity in capacities}
    for node in old:
        left[node] = left[node].plus(shape.cpus, shape.gpus, shape.memory)
    for node in new:
        capacity = left.get(node)
        if capacity is None or not capacity.holds(shape):
            return None
        left[node] = capacity.less(shape)
    return list(left.values())


def describe_free(capacities: Sequence[NodeCapacity]) -> str:
    """Return the free resources in words, e.g. ``1 of 2 CPUs, 0 of 4 GPUs free``."""

    def free(up: Sequence[NodeCapacity]) -> str:
        cpus = sum(max(0.0, capacity.free_cpus) for capacity in up)
        gpus = sum(max(0.0, capacity.free_gpus) for capacity in up)
        all_gpus = sum(capacity.gpus for capacity in up)
        text = f"{cpus:g} of {sum(capacity.cpus for capacity in up):g} CPUs"
        return f"{text}, {gpus:g} of {all_gpus:g} GPUs free" if all_gpus else f"{text} free"

    return _on_nodes(capacities, free)


def describe_total(capacities: Sequence[NodeCapacity]) -> str:
    """Return the resources of empty nodes in words, e.g. ``8 CPUs, 4 GPUs on 2 nodes``."""

    def total(up: Sequence[NodeCapacity]) -> str:
        gpus = sum(capacity.gpus for capacity in up)
        text = counted(sum(capacity.cpus for capacity in up), "CPU")
        return f"{text}, {counted(gpus, 'GPU')}" if gpus else text

    return _on_nodes(capacities, total)


def _on_nodes(
    capacities: Sequence[NodeCapacity], describe: Callable[[Sequence[NodeCapacity]], str]
) -> str:
    """Return the description of the nodes that are up, and how many nodes these and others are."""
    up = [capacity for capacity in capacities if capacity.is_up]
    more = f"{counted(len(capacities) - len(up), 'node')} may start"
    if not up:
        return f"no node is up; {more}" if capacities else "there are no nodes"
    text = describe(up) + (f" on {len(up)} nodes" if len(up) > 1 else "")
    return f"{text}; {more}" if len(up) < len(capacities) else text
