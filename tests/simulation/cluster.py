"""A target actor's view of the simulated machines: a cluster and agents whose calls may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.identity import Identity
from rayjobs.injob.outcomes import EndCause, EndReason
from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch.leftovers import Proof
from rayjobs.node.hosts import exit_record_of_lost_host
from rayjobs.policy import Shape
from rayjobs.protocol.agent import AgentLostError, NodeInfo, NotGrownError, NotPlacedError
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.calls import (
    Answer,
    Asked,
    Call,
    Cleaned,
    CleanedFolders,
    CleanFolders,
    Nothing,
    Port,
    Renew,
    Renewed,
    Settle,
    Stop,
    UncleanedFolders,
)
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Found, Settled
from tests.simulation.machines import TICK_S
from tests.simulation.nodes import Machine

MEMORY = 2.0**34


class SimCluster:
    """The machine as one target actor sees it: every call takes time, and may never return."""

    def __init__(self, machine: Machine, step: Callable[[str], None]) -> None:
        """Access the machine; `step` receives each call, and raises when the caller is dead."""
        self._machine = machine
        self.step = step

    async def call(self, what: str, *, longest_s: float = 0.02) -> None:
        """Let a call take its time; the actor may die before or after it."""
        self.step(what)
        await asyncio.sleep(self._machine.rng.random() * longest_s)
        self.step(what)

    async def cluster_id(self) -> str:
        """See `Cluster`."""
        await self.call("cluster_id")
        return f"cluster-{self._machine.generation}"

    async def nodes(self) -> list[NodeInfo]:
        """See `Cluster`."""
        await self.call("nodes")
        found, machine = [], self._machine
        for name, (cpus, gpus) in machine.sizes.items():
            used = machine.used(name)
            free = (cpus - used[0], gpus - used[1], MEMORY)
            found.append(NodeInfo(name, machine.address(name), cpus, gpus, MEMORY, *free))
        return [one for one in found if not machine.is_doubted(one.node_id)]

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        """See `Cluster`; the group is created even if its caller dies meanwhile."""
        self.step("create_group")
        machine, generation = self._machine, self._machine.generation

        async def work() -> tuple[str, ...]:
            await asyncio.sleep(machine.rng.random() * 0.05)
            await machine.places(nodes)
            if machine.generation != generation:
                raise NotPlacedError("the cluster is gone")
            return machine.make_group(name, shape, nodes)

        made = asyncio.ensure_future(work())
        made.add_done_callback(_retrieve)
        chosen = await asyncio.shield(made)
        self.step("create_group")
        return chosen

    async def grow_group(
        self,
        name: str,
        shape: Shape,
        nodes: Sequence[str | None],
        *,
        avoid: Collection[str],
        timeout_s: float,
    ) -> tuple[str, ...]:
        """See `Cluster`; these machines have no autoscaler: the nodes never come."""
        self.step("grow_group")
        await asyncio.sleep(timeout_s)
        self.step("grow_group")
        raise NotGrownError(f"the nodes for {shape.describe()} did not start")

    async def gpu_ids(self, name: str, shape: Shape) -> tuple[tuple[str, ...], ...]:
        """See `Cluster`."""
        await self.call("gpu_ids")
        if name not in self._machine.groups:
            raise NotPlacedError("the group is gone")
        return self._machine.groups[name][2]

    async def remove_group(self, name: str) -> None:
        """See `Cluster`."""
        await self.call("remove_group")
        self._machine.groups.pop(name, None)

    async def group_names(self, prefix: str) -> list[str]:
        """See `Cluster`."""
        await self.call("group_names")
        return sorted(name for name in self._machine.groups if name.startswith(prefix))

    async def raylet_is_gone(self, node_id: str) -> bool:
        """See `Cluster`."""
        await self.call("raylet_is_gone")
        return self._machine.raylet_is_gone(node_id)

    def doubt(self, node_id: str) -> None:
        """See `Cluster`."""
        self._machine.doubted.add(node_id)

    async def agent(self, node_id: str) -> SimAgent:
        """See `Cluster`."""
        await self.call("agent")
        await self._machine.list_agent(node_id)
        return SimAgent(self, self._machine, node_id)


class SimAgent:
    """A node's agent: loses its calls when it dies; work in progress may continue without it."""

    def __init__(self, cluster: SimCluster, machine: Machine, node_id: str) -> None:
        self._cluster = cluster
        self._machine = machine
        self._node = node_id
        self._generation = machine.agents[node_id]

    async def _call(self, what: str, *, longest_s: float = 0.02) -> None:
        self._look()
        await self._machine.reach(self._node)
        await self._cluster.call(what, longest_s=longest_s)
        await self._machine.reach(self._node)
        self._look()

    @property
    def _is_alive(self) -> bool:
        return self._machine.agents.get(self._node) == self._generation

    def _look(self) -> None:
        if not self._is_alive:
            raise AgentLostError("the agent's process is gone")

    async def call(self, method: Call[Asked, Answer], message: Asked) -> Answer:
        """See `Agent.call`: each call is a method of the same name."""
        answer: Answer = await getattr(self, method.name)(message)
        return answer

    async def hello(self, _: Nothing) -> Hello:
        await self._call("hello")
        return Hello(
            node_id=self._node,
            address=self._machine.address(self._node),
            root="/nowhere",
            environment={"PATH": "/bin"},
            python="/bin/python",
            injob_path="/nowhere/injob",
            rayjobs="0",
            clock_s=self._machine.clock_s(self._node),
        )

    async def free_port(self, _: Nothing) -> Port:
        await self._call("free_port")
        return Port(40_000)

    async def prepare(self, _: LaunchRequest) -> Prepared:
        await self._call("prepare", longest_s=0.5)
        if self._machine.rng.random() < 0.02:
            raise PrepareError("the data is unavailable", failure_class=FailureClass.DATA)
        return Prepared()

    async def launch(self, request: LaunchRequest) -> Launched:
        """A host may start although no task waits for it any longer."""
        self._look()
        self._cluster.step("launch")
        machine, plan = self._machine, request.plan
        shape, gpus = _place_of(plan)

        async def work() -> None:
            await machine.travel(self._node, "launch")
            if not await machine.runs(self._node):  # frozen or cut off after the request
                raise AgentLostError("the agent's process is gone")
            async with machine.fence_of(self._node).starting(plan.marker):
                with machine.starting(self._node, plan) as lease:
                    await asyncio.sleep(machine.rng.random() * 0.3)
                    runs = await machine.runs(self._node)
                    # The agent of a node that Ray considers dead is not killed yet.
                    is_alive = machine.agents.get(self._node, self._generation) == self._generation
                    if runs and (is_alive or machine.rng.random() < 0.5):
                        machine.begin(request.on, self._node, shape, gpus, lease)

        launching = asyncio.ensure_future(work())
        launching.add_done_callback(_retrieve)
        await self._machine.answered(self._node, launching)
        self._look()
        self._cluster.step("launch")
        return Launched(Identity(1, 1, "b"), watches_raylet=machine.lease_s is not None)

    async def renew(self, request: Renew) -> Renewed:
        """A renewal may take effect although no task waits for it any longer."""
        self._look()
        self._cluster.step("renew")
        machine = self._machine

        async def work() -> float | None:
            await machine.travel(self._node, "renew")
            if not await machine.runs(self._node):
                raise AgentLostError("the agent's process is gone")
            return machine.renew(self._node, request.on.marker, request.stamp)

        renewing = asyncio.ensure_future(work())
        renewing.add_done_callback(_retrieve)
        answer = await machine.answered(self._node, renewing)
        self._look()
        self._cluster.step("renew")
        return Renewed(answer)

    async def follow(self, on: AttemptOnNode) -> ExitRecord:
        """See `Agent`."""
        await self._call("follow")
        host = self._machine.host_on(self._node, on.marker)
        while host is not None and host.is_alive:
            # Checked at intervals: the agent may die meanwhile.
            try:
                async with asyncio.timeout(0.7):
                    await host.over.wait()
            except TimeoutError:
                await self._machine.reach(self._node)
                self._look()
        await self._call("follow")
        if host is None or host.record is None:
            return exit_record_of_lost_host(on, Proof(True, 0, (), "simulated"))
        return host.record

    async def stop(self, request: Stop) -> Nothing:
        await self._call("stop")
        host = self._machine.host_on(self._node, request.on.marker)
        if host is not None and host.is_alive:
            after_s = self._machine.rng.random() * request.grace_s
            self._machine.stop(host, after_s=after_s, cause=request.cause)
        return Nothing()

    async def collect(self, _: AttemptOnNode) -> Collected:
        await self._call("collect", longest_s=0.2)
        return Collected(tails={0: b""})

    async def settle(self, request: Settle) -> Settled:
        """See `Ends.settle`, which this follows."""
        await self._call("settle")
        marker, end = request.on.marker, request.end
        if end:
            await self._machine.fence_of(self._node).end(marker)
        host = self._machine.host_on(self._node, marker)
        if host is not None and host.is_alive:
            if not end:
                return Settled(Found.RUNNING)
            await asyncio.sleep(self._machine.rng.random() * 2.0)
            loop = asyncio.get_running_loop()
            checked_s = loop.time()
            while await self._machine.runs(self._node) and loop.time() > checked_s:
                # It was frozen: its hosts check their leases before they receive requests.
                await asyncio.sleep(TICK_S)
                checked_s = loop.time()
            if await self._machine.runs(self._node):
                self._machine.end(host, signal=15, cause=EndCause(EndReason.UNFOLLOWED))
        await self._machine.reach(self._node)
        self._look()
        if host is not None and host.record is not None:
            ours = host.record.end_reason is EndReason.UNFOLLOWED
            return Settled.of_record(host.record, proven=True, ended_now=ours)
        return Settled(Found.GONE, proven=True, ended_now=end)

    async def uncleaned(self, _: Nothing) -> UncleanedFolders:
        return UncleanedFolders()

    async def sweep(self, _: CleanFolders) -> CleanedFolders:
        return CleanedFolders(0)

    async def clean(self, _: AttemptOnNode) -> Cleaned:
        await self._call("clean")
        return Cleaned(proven=True)


def _place_of(plan: LaunchPlan) -> tuple[Shape, tuple[str, ...]]:
    """Return the resources of the attempt on its node, from the plan of its ranks."""
    gpus = tuple(plan.env.get("CUDA_VISIBLE_DEVICES", "").split(","))
    return Shape(nodes=1, cpus=float(len(plan.ranks)), gpus=0.0), tuple(one for one in gpus if one)


def _retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
