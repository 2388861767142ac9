"""Shapes of allocations, the room of nodes, and how the one is taken from the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayjobs.core.text import counted, size_text


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What an allocation holds.

    Attributes:
        nodes: Number of bundles.
        cpus, gpus: Per bundle.
        memory: Bytes per bundle.
        spread: Whether each bundle needs a node of its own.
        node_types: Types of nodes that it may stand on, by name; empty: any.
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
class NodeRoom:
    """What one node has: in all, and free of everybody's use.

    Attributes:
        node_type: Of the cluster's node types, by name; empty where there are none.
        is_up: False for a node that may be started: a job that is placed there makes it start.
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
        """Return whether one bundle of the shape fits into what is free."""
        return (
            (not shape.node_types or self.node_type in shape.node_types)
            and self.free_cpus + SLACK >= shape.cpus
            and self.free_gpus + SLACK >= shape.gpus
            and self.free_memory + SLACK >= shape.memory
        )

    def less(self, shape: Shape) -> NodeRoom:
        """Return the node with one bundle of the shape taken."""
        return self.plus(-shape.cpus, -shape.gpus, -shape.memory)

    def plus(self, cpus: float, gpus: float, memory: float) -> NodeRoom:
        """Return the node with that much more (or less) of it free."""
        return NodeRoom(
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

    def taken(self) -> NodeRoom:
        """Return the node with nothing free."""
        return self.plus(-self.free_cpus, -self.free_gpus, -self.free_memory)

    def emptied(self) -> NodeRoom:
        """Return the node with nothing on it."""
        return NodeRoom(
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


# Fractions of CPUs and GPUs are added and taken away: their sums differ in the last bit.
SLACK = 1e-6


def take(rooms: Sequence[NodeRoom], shape: Shape) -> tuple[list[NodeRoom], tuple[str, ...]] | None:
    """Return the rooms with the shape taken and the node of each bundle; None: no room.

    Nodes that are up come first, and of them the fullest that fits, so that large jobs find
    whole nodes.
    """
    left = list(rooms)
    chosen: list[str] = []
    for _ in range(shape.nodes):
        fitting = [
            index
            for index, room in enumerate(left)
            if room.holds(shape) and not (shape.spread and room.node_id in chosen)
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda index: _emptiness(left[index]))
        chosen.append(left[best].node_id)
        left[best] = left[best].less(shape)
    return left, tuple(chosen)


def _emptiness(room: NodeRoom) -> tuple[bool, float, float]:
    return (not room.is_up, room.free_gpus, room.free_cpus)


def move(
    rooms: Sequence[NodeRoom], shape: Shape, old: Sequence[str], new: Sequence[str]
) -> list[NodeRoom] | None:
    """Return the rooms with a shape on other nodes than those it was taken from; None: no room."""
    left = {room.node_id: room for room in rooms}
    for node in old:
        left[node] = left[node].plus(shape.cpus, shape.gpus, shape.memory)
    for node in new:
        room = left.get(node)
        if room is None or not room.holds(shape):
            return None
        left[node] = room.less(shape)
    return list(left.values())


def describe_free(rooms: Sequence[NodeRoom]) -> str:
    """Return what is free in words, e.g. ``1 of 2 CPUs, 0 of 4 GPUs free``."""
    startable = sum(not room.is_up for room in rooms)
    more = f"{counted(startable, 'node')} may start"
    rooms = [room for room in rooms if room.is_up]
    if not rooms:
        return f"no node is up; {more}" if startable else "there are no nodes"
    cpus = sum(max(0.0, room.free_cpus) for room in rooms)
    gpus = sum(max(0.0, room.free_gpus) for room in rooms)
    all_gpus = sum(room.gpus for room in rooms)
    text = f"{cpus:g} of {sum(room.cpus for room in rooms):g} CPUs"
    if all_gpus:
        text += f", {gpus:g} of {all_gpus:g} GPUs"
    text += " free" + (f" on {len(rooms)} nodes" if len(rooms) > 1 else "")
    return f"{text}; {more}" if startable else text
