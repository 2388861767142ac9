"""Small factories for inputs of the policy."""

from __future__ import annotations

from typing import Any

from rayjobs.policy import NodeCapacity, Running, Shape, Waiting


def capacity(name: str = "n0", *, cpus: float = 4, gpus: float = 0) -> NodeCapacity:
    return NodeCapacity(name, cpus, gpus, 8e9, cpus, gpus, 8e9)


def shape(given: dict[str, Any]) -> Shape:
    names = ("nodes", "cpus", "gpus", "memory", "spread")
    return Shape(**{name: given.pop(name) for name in names if name in given})


def job(key: str, *, priority: int = 0, at: float = 0, **more: Any) -> Waiting:
    wanted = shape(more)
    return Waiting(
        key=key,
        priority=priority,
        order=(f"{at:012.3f}", 0, key),
        shape=wanted,
        submitted_s=at,
        **more,
    )


def runs(
    key: str, *nodes: str, priority: int = 0, at: float = 0, started: float = 0, **more: Any
) -> Running:
    wanted = shape(more)
    return Running(
        key=key,
        priority=priority,
        order=(f"{at:012.3f}", 0, key),
        shape=wanted,
        nodes=nodes,
        submitted_s=at,
        started_s=started,
        **more,
    )


def less(one: NodeCapacity, *running: Running) -> NodeCapacity:
    """Return the free capacity of the node without its running jobs."""
    for each in running:
        for node in each.nodes:
            if node == one.node_id:
                one = one.less(each.shape)
    return one
