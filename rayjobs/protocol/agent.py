"""The interfaces through which the engine uses a Ray cluster and the agents on its nodes.

`engine.ray.cluster` implements both protocols with Ray; the tests have fakes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from rayjobs.core.errors import RayjobsError, UnreachableError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy import Shape
from rayjobs.protocol.calls import Answer, Asked, Call


class ClusterUnreachableError(UnreachableError):
    """Ray does not answer now, which says nothing about its nodes and their attempts."""


class NotPlacedError(RayjobsError):
    """A placement group did not find capacity within its timeout."""


class NotGrownError(NotPlacedError):
    """The nodes that a placement group waits for did not start within its timeout."""


class AgentLostError(RayjobsError):
    """The node's agent died or cannot be reached; the attempt may still be running."""


class AgentLeavingError(RayjobsError):
    """An idle agent is leaving and has not begun the call: its successor must be called."""


class AgentFaultError(RayjobsError):
    """A call caused an unexpected error in the agent; the agent itself continues.

    `is_out_of_files`: it could not open more files, so that a later call may succeed.
    """

    def __init__(self, message: str, *, is_out_of_files: bool = False) -> None:
        super().__init__(message, is_out_of_files=is_out_of_files)
        self.is_out_of_files = is_out_of_files


@dataclass(frozen=True)
class NodeInfo:
    """A live node: its total resources, and those that Ray reports as free.

    Attributes:
        node_type: Name of its node type; empty: unknown.
    """

    node_id: str
    address: str
    cpus: float
    gpus: float
    memory: float
    free_cpus: float
    free_gpus: float
    free_memory: float
    node_type: str = ""


class Cluster(Protocol):
    """Placement on a Ray cluster. Every coroutine may raise ClusterUnreachableError."""

    async def cluster_id(self) -> str:
        """Return the id of the running cluster; after a restart it is another one."""
        ...

    async def nodes(self) -> list[NodeInfo]:
        """Return the live nodes."""
        ...

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        """Create a detached placement group on these nodes; return the node id of each bundle.

        The policy has chosen one node for each bundle: Ray's own choice could take resources that
        are reserved for another job.

        Raises:
            NotPlacedError: it did not find capacity in time, and has been removed again.
        """
        ...

    async def grow_group(
        self,
        name: str,
        shape: Shape,
        nodes: Sequence[str | None],
        *,
        avoid: Collection[str],
        timeout_s: float,
    ) -> tuple[str, ...]:
        """Create a group for which some nodes must start first; return its nodes once they have.

        The pending group itself makes the cluster's autoscaler start them.

        Args:
            nodes: For each bundle, the live node that it must be placed on; None: a node that has
                not started yet.
            avoid: The nodes that were alive when this was decided. A bundle without a node of its
                own is not placed on them, since the policy may have reserved them for another job.

        Raises:
            NotGrownError: the nodes did not start in time; the caller removes the group.
        """
        ...

    async def gpu_ids(self, name: str, shape: Shape) -> tuple[tuple[str, ...], ...]:
        """Return the GPU ids of each bundle, as a short task in each bundle reports them.

        Raises:
            NotPlacedError: a bundle's task failed or did not answer in time.
        """
        ...

    async def remove_group(self, name: str) -> None:
        """Remove a group; does nothing if it does not exist."""
        ...

    async def group_names(self, prefix: str) -> list[str]:
        """Return the names of the existing groups that begin with the prefix."""
        ...

    async def raylet_is_gone(self, node_id: str) -> bool:
        """Whether the machine of a dead node answers, and shows that its raylet has ended.

        False proves nothing: the machine may be cut off, or the raylet frozen.
        """
        ...

    def doubt(self, node_id: str) -> None:
        """Leave a node out of `nodes` as long as its machine shows that its raylet has ended.

        Ray lists such a node until its health checks have failed, but nothing can start on it.
        """
        ...

    async def agent(self, node_id: str) -> Agent:
        """Return the agent of a node; start it if necessary.

        Raises:
            AgentLostError: the node is dead.
        """
        ...


class Agent(Protocol):
    """The agent of one node."""

    async def call(self, method: Call[Asked, Answer], message: Asked) -> Answer:
        """Make one of the calls of `rayjobs.protocol.calls`, and return the answer.

        Raises:
            AgentLostError: the agent's process is gone.
            RayjobsError: an error of the call itself, such as PrepareError.
        """
        ...


def bundles(shape: Shape) -> Sequence[dict[str, float]]:
    """Return the resources of each bundle of a shape, under Ray's names."""
    one: dict[str, float] = {}
    if shape.cpus:
        one["CPU"] = shape.cpus
    if shape.gpus:
        one["GPU"] = shape.gpus
    if shape.memory:
        one["memory"] = shape.memory
    # Ray refuses empty bundles.
    return [dict(one) if one else {"CPU": 0.001} for _ in range(shape.nodes)]
