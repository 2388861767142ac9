"""The nodes of an attempt in progress, as its target sees them."""

from __future__ import annotations

from dataclasses import replace

from rayjobs.injob.identity import boot_id
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.hosts import HostFacts, HostRecord
from rayjobs.jobs.records import Job
from rayjobs.protocol.attempts import AttemptOnNode, Launched


@dataclass
class NodeOfAttempt:
    """One node of an attempt and its state.

    Attributes:
        on: The message about the attempt that every call to the node's agent contains.
        node_id: Ray's id of the node whose agent answers: perhaps another one that sees the same
            processes.
        is_lost: The node is permanently gone.
        was_launched: The start of its host may have been requested.
        watches_raylet: Its host ends when Ray's process on the node ends.
        facts: What it runs on, after its preparation.
    """

    on: AttemptOnNode
    node_id: str
    is_lost: bool = False
    was_launched: bool = False
    watches_raylet: bool = False
    facts: HostFacts | None = None

    @property
    def name(self) -> str:
        """Its name for users."""
        at = f" at {self.on.address}" if self.on.address else ""
        return f"node {self.on.node} ({self.node_id[:12]}{at})"

    def record(self, launched: Launched | None) -> HostRecord:
        """Return the record of its host: its path and, after the launch, its identity."""
        on = self.on
        where = HostRecord(
            node=on.node,
            node_id=self.node_id,
            root=on.root,
            socket=on.socket,
            marker=on.marker,
            address=on.address,
            lease_s=on.lease_s,
            facts=self.facts,
        )
        if launched is None:
            return where
        return replace(
            where,
            **launched.host.to_json(),
            cold=launched.cold,
            watches_raylet=launched.watches_raylet,
        )


def of_record(
    workspace: str, target: str, job: Job, number: int, host: HostRecord
) -> NodeOfAttempt:
    """Return the node of an earlier launched host from its stored record."""
    shape = job.spec.distribution
    first = host.node * shape.processes_per_node
    on = AttemptOnNode(
        workspace=workspace,
        target=target,
        job=job.id,
        attempt=number,
        node=host.node,
        marker=host.marker,
        root=host.root,
        socket=host.socket,
        node_count=shape.nodes,
        ranks=tuple(range(first, first + shape.processes_per_node)),
        address=host.address,
        boot_id=boot_id(),
        grace_s=job.spec.grace_s,
        max_duration_s=job.spec.max_duration_s,
        stall_timeout_s=job.spec.stall_timeout_s,
        lease_s=host.lease_s,
    )
    return NodeOfAttempt(on, host.node_id, was_launched=True, watches_raylet=host.watches_raylet)
