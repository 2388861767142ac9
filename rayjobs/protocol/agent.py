"""What the engine needs of a Ray cluster, and of the agents on its nodes.

Two small protocols: real Ray implements them in `engine.ray.cluster`, the tests have fakes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.lazydataclass import dataclass
from rayjobs.policy import Shape
from rayjobs.protocol.calls import Answer, Asked, Call


class NotPlacedError(RayjobsError):
    """A placement group found no capacity in its time."""


class NotGrownError(NotPlacedError):
    """The nodes that a placement group waits for have not started in their time."""


class AgentLostError(RayjobsError):
    """The node's agent died or cannot be reached; the attempt may well be alive."""


class AgentLeavingError(RayjobsError):
    """The agent ends for want of work, and has not begun what it was asked: ask its successor."""


class AgentFaultError(RayjobsError):
    """The agent met an unexpected error; the agent itself goes on."""


@dataclass(frozen=True)
class NodeInfo:
    """A living node: what it has in all, and what Ray says is free.

    Attributes:
        node_type: Of the cluster's node types, by name; empty: none is known.
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
    """Placement on a Ray cluster. All coroutines may raise UnreachableError."""

    async def cluster_id(self) -> str:
        """Return the id of this life of the cluster."""
        ...

    async def nodes(self) -> list[NodeInfo]:
        """Return the living nodes."""
        ...

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        """Create a detached placement group on these nodes; return the node id of each bundle.

        One node for each bundle, as the policy chose them: Ray's own choice could take what is
        kept for another job.

        Raises NotPlacedError when it found no capacity in time (it is removed before).
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
        """Create a group some of whose nodes have to start first; return its nodes then.

        The group itself is what makes the cluster's autoscaler start them.

        Args:
            nodes: For each bundle the living node that it is to stand on; None: one that has
                to start.
            avoid: The nodes that lived when this was decided: no bundle without a node of its
                own goes there, since the policy may have kept them for another job.

        Raises NotGrownError when they have not come in time; the caller removes the group.
        """
        ...

    async def gpu_ids(self, name: str, shape: Shape) -> tuple[tuple[str, ...], ...]:
        """Return the GPU ids of each bundle (a short task in each learns them)."""
        ...

    async def remove_group(self, name: str) -> None:
        """Remove a group; one that is not there is fine."""
        ...

    async def group_names(self, prefix: str) -> list[str]:
        """Return the names of the groups that exist and begin with the prefix."""
        ...

    async def raylet_is_gone(self, node_id: str) -> bool:
        """Whether a dead node's machine answers, and says that Ray's process there has ended.

        False says nothing: the machine may be cut off, or the process frozen.
        """
        ...

    def doubt(self, node_id: str) -> None:
        """Leave a node out of `nodes` as long as its machine says that its raylet has ended.

        Ray lists such a node until its health checks have failed, and nothing starts there.
        """
        ...

    async def agent(self, node_id: str) -> Agent:
        """Return the agent of a node, started if need be. AgentLostError: the node is dead."""
        ...


class Agent(Protocol):
    """Speaks for one node."""

    async def call(self, method: Call[Asked, Answer], message: Asked) -> Answer:
        """Make a call of the node's agent (`rayjobs.protocol.calls`).

        Raises:
            AgentLostError: the agent's process is gone.
            RayjobsError: what the agent itself raised, such as PrepareError.
        """
        ...


def bundles(shape: Shape) -> Sequence[dict[str, float]]:
    """Return Ray's resources of each bundle of a shape."""
    one: dict[str, float] = {}
    if shape.cpus:
        one["CPU"] = shape.cpus
    if shape.gpus:
        one["GPU"] = shape.gpus
    if shape.memory:
        one["memory"] = shape.memory
    # Ray refuses empty bundles.
    return [dict(one) if one else {"CPU": 0.001} for _ in range(shape.nodes)]
