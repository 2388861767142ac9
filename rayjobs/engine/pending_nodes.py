"""Nodes that may still start: their capacity for the policy, and which jobs wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rayjobs.engine.allocations import Allocations, KnownAllocation
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.board import QueueView
from rayjobs.engine.candidates import Candidates, Usual
from rayjobs.policy import NodeCapacity, Running
from rayjobs.policy.node_types import NodeTypes, how_many_more
from rayjobs.protocol.agent import NodeInfo
from rayjobs.target.answers import ScalingJob
from rayjobs.target.record import START_TIMEOUT_S


class PendingNodes:
    """The nodes that an autoscaler may still start, as free capacity for the policy."""

    def __init__(
        self, types: NodeTypes | None = None, *, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Set which nodes may start, and how long a job waits for them at a time."""
        self.types = types or NodeTypes()
        self.timeout_s = timeout_s

    def capacities_of(self, allocations: Allocations, nodes: list[NodeInfo]) -> list[NodeCapacity]:
        """Return the free capacity of living nodes, then of those that may start."""
        return allocations.capacities(nodes, self.capacities(nodes))

    def capacities(self, nodes: Sequence[NodeInfo]) -> list[NodeCapacity]:
        """Return the free capacity of every node that may still start, type by type."""
        living = [node.node_type for node in nodes]
        return [
            NodeCapacity(
                f"new:{one.name}:{number}",
                *(one.cpus, one.gpus, float(one.memory_bytes)) * 2,
                node_type=one.name,
                is_up=False,
            )
            for one, count in how_many_more(self.types, living)
            for number in range(count)
        ]

    @staticmethod
    def types_to_start(nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the types of the given nodes that have to start."""
        return tuple(sorted({node.split(":")[1] for node in nodes if node.startswith("new:")}))

    def may_start(self, nodes: Sequence[NodeInfo], allocations: Allocations) -> int:
        """Return how many more nodes may start, in addition to those that jobs already wait for."""
        names = {one.name for one in self.types.types}
        living = sum(node.node_type in names for node in nodes)
        up = {node.node_id for node in nodes}
        coming = {
            node
            for allocation in allocations.all
            if allocation.growing
            for node in allocation.nodes
            if node not in up
        }
        return max(0, self.types.max_nodes - living - len(coming))

    def running(
        self,
        supervisors: Sequence[AttemptSupervisor],
        candidates: Candidates,
        views: Sequence[QueueView],
        usual: Usual,
    ) -> list[Running]:
        """Return the jobs with an allocation.

        Jobs that wait for nodes appear where Ray would place them.
        """
        for one in supervisors:
            one.allocation.refresh()
        scaling = {one.key for one in supervisors if one.allocation.is_growing}
        return [
            replace(one, is_scaling=True) if one.key in scaling else one
            for one in candidates.running(supervisors, views, usual=usual)
        ]

    @staticmethod
    def waits(
        allocations: Sequence[KnownAllocation], nodes: Sequence[NodeInfo]
    ) -> dict[str, ScalingJob]:
        """Return what each job with an allocation that needs new nodes waits for."""
        up = {node.node_id for node in nodes}
        found = {}
        for one in allocations:
            if one.growing and one.job is not None:
                here = sum(node in up for node in one.nodes)
                text = f"waits for nodes to start ({here} of {one.shape.nodes} up)"
                found[one.job] = ScalingJob(text, here, one.shape.nodes)
        return found
