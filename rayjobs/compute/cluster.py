"""What the engine needs of a Ray cluster, and of the agents on its nodes.

Two small protocols: real Ray implements them in `raycluster`, the tests have fakes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rayjobs.errors import RayjobsError
from rayjobs.policy import Shape


class NotPlacedError(RayjobsError):
    """A placement group found no room in its time."""


class NotGrownError(NotPlacedError):
    """The nodes that a placement group waits for have not started in their time."""


class AgentLostError(RayjobsError):
    """The node's agent died or cannot be reached; the attempt may well be alive."""


class AgentLeavingError(RayjobsError):
    """The agent ends for want of work, and has not begun what it was asked: ask its successor."""


class AgentFaultError(RayjobsError):
    """The agent met an error that nobody foresaw; the agent itself goes on."""


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

        Raises NotPlacedError when it found no room in time (it is removed before).
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

        False is no news: the machine may be cut off, or the process frozen.
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
    """Speaks for one node. All raise AgentLostError when the agent's process is gone."""

    async def hello(self) -> Mapping[str, Any]:
        """Return node_id, address, root, environment, python, injob_path, version."""
        ...

    async def free_port(self) -> int:
        """Return a port that nobody has; it is held until the `launch` of an order with it."""
        ...

    async def prepare(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make the attempt's folder ready. Raises PrepareError with its class."""
        ...

    async def launch(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start the attempt host; return its identity and why it is cold (or None)."""
        ...

    async def follow(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow a launched attempt to its end; return the exit record.

        Named for the job, so that Ray's dashboard lists it as running. Idempotent: a second
        call (after the agent was replaced) goes on where the first was.
        """
        ...

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """Ask the attempt's host to end it. Idempotent."""
        ...

    async def renew(self, order: Mapping[str, Any], stamp: float | None) -> float | None:
        """Renew the lease of the attempt's host; return the stamp for the next renewal.

        None: the host does not answer, or has ended.
        """
        ...

    async def silent_s(self, order: Mapping[str, Any]) -> float | None:
        """Return for how long no rank of the node was heard; None where nobody counts."""
        ...

    async def stalled(self, order: Mapping[str, Any], *, reason: str) -> None:
        """Let the host dump its ranks' stacks and end the attempt as stalled. Idempotent."""
        ...

    async def stacks(self, order: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return where each rank is: rank, state, how, where, text. None: no host answers."""
        ...

    async def collect(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store the attempt's last metrics and files; return log tails, problems, requests.

        ``models``: what its script asked to have registered (`modelrequests.read`).
        """
        ...

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> Mapping[str, Any]:
        """Say what became of an attempt: ``running``, ``ended`` (with its record) or ``gone``.

        With `end`, whatever lives is ended first. ``proven`` says whether nothing is left;
        what an exit record could not prove is looked at again.
        """
        ...

    async def clean(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remove the attempt's scratch after its end; ``proven`` as in `settle`."""
        ...

    async def uncleaned(self) -> list[Mapping[str, Any]]:
        """Return job, attempt and root of attempts here of which nothing runs and all is stored."""
        ...

    async def sweep(self, roots: list[str]) -> int:
        """Remove folders of attempts that `uncleaned` named; return how many are gone."""
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
