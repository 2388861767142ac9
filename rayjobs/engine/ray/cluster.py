"""The engine's view of a real Ray cluster. Imported in Ray processes only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rayjobs.core.errors import RayjobsError
from rayjobs.core.terminal import first_sentence
from rayjobs.core.text import duration_text
from rayjobs.engine.ray import groups
from rayjobs.injob import open_files
from rayjobs.injob.messages import MessageError
from rayjobs.policy import Shape
from rayjobs.policy.node_types import TYPE_LABEL
from rayjobs.protocol.agent import (
    AgentFaultError,
    AgentLeavingError,
    AgentLostError,
    ClusterUnreachableError,
    NodeInfo,
    NotPlacedError,
)
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.calls import FOLLOW, HELLO, Answer, Asked, Call, Nothing
from rayjobs.protocol.names import NAMESPACE

AGENT_START_S = 180.0
CONNECT_S = 2.0
SUCCESSOR_PAUSE_S = 0.1
# Ray's message contains one of these only if the actor has ended itself. Once Ray's control service
# knows, the sentence varies, but it contains the second.
EXITED = ("exit_actor() is called", "INTENDED_USER_EXIT")


class RayCluster:
    """The placement groups and agents of the cluster to which this process is connected."""

    def __init__(self, target: str, home: Path) -> None:
        self.target = target
        self.home = home
        self._groups: dict[str, PlacementGroup] = {}
        self._agents: dict[str, RayAgent] = {}
        self._agent_locks: dict[str, asyncio.Lock] = {}
        self._doubted: set[str] = set()
        # Ray's own calls block: half a minute for a group without capacity.
        self._threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="ray-calls")

    async def _call(self, function: Any, *arguments: Any) -> Any:
        """Call a blocking function of Ray in a thread.

        Raises:
            ClusterUnreachableError: Ray's control service did not answer.
        """
        try:
            return await self._in_thread(function, *arguments)
        except (RayError, ConnectionError) as error:
            raise ClusterUnreachableError(
                f"Ray does not answer: {first_sentence(str(error))}"
            ) from error

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def cluster_id(self) -> str:
        """Return the cluster's id, which changes when Ray is restarted."""
        return (
            str(await self._call(lambda: ray.get_runtime_context().gcs_address))
            + "/"
            + str(await self._call(_cluster_id))
        )

    async def nodes(self) -> list[NodeInfo]:
        """Return the living nodes, without those in doubt whose raylet refuses connections."""
        found: list[NodeInfo] = await self._call(_nodes)
        self._doubted.intersection_update(node.node_id for node in found)
        for node_id in tuple(self._doubted):
            if not await self._call(_raylet_refuses, node_id, True):
                self._doubted.discard(node_id)
        return [node for node in found if node.node_id not in self._doubted]

    def doubt(self, node_id: str) -> None:
        """See `Cluster.doubt`."""
        self._doubted.add(node_id)

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        """Create a detached placement group on these nodes; return the node id of each bundle."""
        return await self._call(  # type: ignore[no-any-return]
            groups.place, self._groups, name, shape, nodes, timeout_s, _living_ids
        )

    async def grow_group(
        self,
        name: str,
        shape: Shape,
        nodes: Sequence[str | None],
        *,
        avoid: Collection[str],
        timeout_s: float,
    ) -> tuple[str, ...]:
        """See `Cluster.grow_group`."""
        return await groups.grow(self._call, self._groups, name, shape, nodes, avoid, timeout_s)

    async def gpu_ids(self, name: str, shape: Shape) -> tuple[tuple[str, ...], ...]:
        """See `Cluster.gpu_ids`."""
        if not shape.gpus:
            return tuple(() for _ in range(shape.nodes))
        group = await self._group(name)
        references = [
            _gpu_ids.options(
                num_cpus=0,
                num_gpus=shape.gpus,
                name=f"gpu-ids-{name}",
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index
                ),
            ).remote()
            for index in range(shape.nodes)
        ]
        try:
            ids = await self._in_thread(lambda: ray.get(references, timeout=AGENT_START_S))
        except RayError as error:
            raise NotPlacedError(
                f"the GPUs of the allocation are unknown: {first_sentence(str(error))}"
            ) from error
        return tuple(tuple(one) for one in ids)

    async def remove_group(self, name: str) -> None:
        """Remove a group if it exists."""
        try:
            group = await self._group(name)
        except ValueError:
            return
        self._groups.pop(name, None)
        await self._call(remove_placement_group, group)

    async def group_names(self, prefix: str) -> list[str]:
        """Return the names of the existing groups with the prefix."""
        table = await self._call(placement_group_table)
        return sorted(
            row["name"]
            for row in table.values()
            if row["name"].startswith(prefix) and row["state"] != "REMOVED"
        )

    async def raylet_is_gone(self, node_id: str) -> bool:
        """See `Cluster.raylet_is_gone`: only a refused connection proves it."""
        return bool(await self._call(_raylet_refuses, node_id, False))

    async def agent(self, node_id: str) -> RayAgent:
        """Return the agent of a node; start it if needed."""
        lock = self._agent_locks.setdefault(node_id, asyncio.Lock())
        async with lock:
            known = self._agents.get(node_id)
            if known is not None and not known.lost:
                return known
            # Ray would wait for minutes for a node that never returns.
            if node_id not in {node.node_id for node in await self.nodes()}:
                raise AgentLostError(f"node {node_id[:12]} is not among Ray's living nodes")
            handle = await self._greeted(node_id)
            agent = RayAgent(handle, partial(self._successor, node_id))
            self._agents[node_id] = agent
            return agent

    async def _greeted(self, node_id: str) -> Any:
        """Return an agent's handle when it has answered."""
        try:
            async with asyncio.timeout(AGENT_START_S):
                while True:
                    handle = await self._call(self._start_agent, node_id)
                    try:
                        await RayAgent(handle).call(HELLO, Nothing())
                        return handle
                    except AgentLeavingError:
                        await asyncio.sleep(SUCCESSOR_PAUSE_S)  # its name is not free yet
        except TimeoutError as error:
            raise AgentLostError(
                f"the agent of node {node_id[:12]} did not answer in {duration_text(AGENT_START_S)}"
            ) from error

    async def _successor(self, node_id: str, gone: Any) -> Any:
        """Return the handle of the agent that replaces the one behind `gone`, which has left."""
        async with self._agent_locks.setdefault(node_id, asyncio.Lock()):
            known = self._agents.get(node_id)
            if known is not None and not known.lost and known.handle is not gone:
                return known.handle
            if node_id not in {node.node_id for node in await self.nodes()}:
                raise AgentLostError(f"node {node_id[:12]} is not among Ray's living nodes")
            return await self._greeted(node_id)

    def _start_agent(self, node_id: str) -> Any:
        from rayjobs.node.agent import NodeAgent
        from rayjobs.protocol.names import agent_name

        actor = ray.remote(NodeAgent)
        return actor.options(
            name=agent_name(self.target, node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            # One long call per attempt, and short ones.
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(self.target, str(self.home), node_id)

    async def _group(self, name: str) -> PlacementGroup:
        group = self._groups.get(name)
        if group is None:
            group = await self._call(get_placement_group, name)
            self._groups[name] = group
        return group


class RayAgent:
    """Calls a node agent's methods and turns Ray's errors into ours.

    An agent leaves when its node has no work. It starts nothing after that decision, so this sends
    a refused call to its successor.
    """

    def __init__(
        self, handle: Any, successor: Callable[[Any], Awaitable[Any]] | None = None
    ) -> None:
        """Call the actor behind `handle`; `successor` finds its replacement.

        Without `successor`, the methods raise AgentLeavingError after it has left.
        """
        self.handle = handle
        self.lost = False
        self._successor = successor

    async def call(self, method: Call[Asked, Answer], message: Asked) -> Answer:
        """See `Agent.call`."""
        while True:
            handle = self.handle
            try:
                return await self._ask(handle, method, message)
            except AgentLeavingError:
                if self._successor is None:
                    raise
            try:
                self.handle = await self._successor(handle)
            except AgentLostError:
                self.lost = True
                raise

    async def _ask(self, handle: Any, method: Call[Asked, Answer], message: Asked) -> Answer:
        bound = handle.call
        if isinstance(message, AttemptOnNode) and method.name == FOLLOW.name:
            bound = bound.options(name=message.name)
        try:
            reference = bound.remote(method.name, message.to_json())
            answer = await asyncio.wrap_future(reference.future())
        except RayTaskError as error:
            cause = error.cause if hasattr(error, "cause") else None
            if isinstance(cause, RayjobsError):
                raise cause from error
            raise AgentFaultError(
                f"{method.name} failed on the node: {cause or error!r}",
                is_out_of_files=open_files.is_exhausted(cause),
            ) from error
        except RayError as error:
            if any(word in str(error) for word in EXITED):
                raise AgentLeavingError(
                    "the node's agent stopped because it had no work"
                ) from error
            # Any other error of Ray says nothing about the attempt: the caller tries again.
            self.lost = True
            raise AgentLostError(f"the node's agent cannot be reached: {error}") from error
        try:
            return method.answer.from_json(answer)
        except MessageError as error:
            raise AgentFaultError(
                f"the answer of the node's agent to {method.name} cannot be read: {error}"
            ) from error


@ray.remote(max_retries=0)
def _gpu_ids() -> list[str]:
    return [str(one) for one in ray.get_gpu_ids()]


def _cluster_id() -> str:
    worker = ray._private.worker.global_worker
    return str(worker.gcs_client.cluster_id.hex())


def _living_ids() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _raylet_refuses(node_id: str, is_listed: bool) -> bool:
    """Whether a node's machine reports the end of its raylet; see `Cluster.raylet_is_gone`.

    Args:
        is_listed: Whether to check a node that Ray lists as alive, or one that it does not list.
    """
    for node in ray.nodes():
        if node["NodeID"] != node_id or bool(node["Alive"]) != is_listed:
            continue
        try:
            address = (node["NodeManagerAddress"], int(node["NodeManagerPort"]))
            with socket.create_connection(address, timeout=CONNECT_S):
                return False  # the kernel also answers for a frozen process
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _nodes() -> list[NodeInfo]:
    available = ray._private.state.available_resources_per_node()
    found = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        total = node["Resources"]
        free = available.get(node["NodeID"], {})
        found.append(
            NodeInfo(
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                cpus=total.get("CPU", 0.0),
                gpus=total.get("GPU", 0.0),
                memory=total.get("memory", 0.0),
                free_cpus=free.get("CPU", 0.0),
                free_gpus=free.get("GPU", 0.0),
                free_memory=free.get("memory", 0.0),
                node_type=(node.get("Labels") or {}).get(TYPE_LABEL, ""),
            )
        )
    if not found:
        raise ClusterUnreachableError("Ray lists no living node")
    return found
