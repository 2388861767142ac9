"""A simulated Ray cluster: groups, agents and attempt hosts, which live and die on their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rayjobs.compute.cluster import AgentLostError, NodeInfo, NotPlacedError
from rayjobs.compute.nodefence import Fence
from rayjobs.compute.nodehosts import exit_record_of_lost_host
from rayjobs.errors import PrepareError
from rayjobs.launch.leftovers import Proof
from rayjobs.policy import Shape
from rayjobs.rootcause import PLACE_LOST
from tests.fakes.cluster import exit_record

MEMORY = 2.0**34


@dataclass
class Host:
    """An attempt host of the simulated machine, and what its ranks will do.

    Attributes:
        ends_at, exit_code: What it does by itself; an exit code of None: it is killed then, and
            leaves no record.
        ended_at: When its last rank ended; None while it lives.
        record: What it left; None while it lives, or when it was killed.
    """

    order: Mapping[str, Any]
    node_id: str
    shape: Shape
    gpus: tuple[str, ...]
    began_at: float
    ends_at: float
    exit_code: int | None
    ended_at: float | None = None
    record: dict[str, Any] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_alive(self) -> bool:
        """Whether its ranks run."""
        return self.ended_at is None


class Machine:
    """What is true, whoever looks: the hosts of all attempts, the groups, the agents' lives."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Random, *, nodes: int, cpus: float, gpus: int
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.life = 1
        self.sizes = {f"node{index}": (cpus, float(gpus)) for index in range(nodes)}
        self.groups: dict[str, tuple[Shape, tuple[str, ...], tuple[tuple[str, ...], ...]]] = {}
        self.hosts: dict[str, Host] = {}
        self.history: list[Host] = []
        # Raised by one whenever the node's agent dies: calls of the old one then fail.
        self.agents = dict.fromkeys(self.sizes, 0)
        # Outlives an agent here: the real one forgets with its process, in which nothing then
        # starts hosts either.
        self.fence = Fence()

    # -- hosts ---------------------------------------------------------------------------------
    def begin(self, order: Mapping[str, Any], shape: Shape, gpus: tuple[str, ...]) -> Host:
        """Start an attempt host, which goes on by itself."""
        rng, now = self.rng, self.loop.time()
        kind = rng.random()
        exit_code = 0 if kind < 0.8 else 1 if kind < 0.93 else None
        lasts = rng.choice((0.0, 0.05, rng.uniform(0.1, 3.0), rng.uniform(1.0, 20.0)))
        host = Host(order, order["node_id"], shape, gpus, now, now + lasts, exit_code)
        self.hosts[order["plan"]["marker"]] = host
        self.history.append(host)
        limit = order["plan"].get("max_duration_s")
        if limit is not None and lasts > limit:
            self.loop.call_later(limit, lambda: self.end(host, outcome="time_limit", signal=15))
        else:
            self.loop.call_later(lasts, lambda: self._by_itself(host))
        return host

    def _by_itself(self, host: Host) -> None:
        if host.exit_code is None:
            self.kill(host)
        else:
            self.end(host, exit_code=host.exit_code)

    def end(self, host: Host, *, reason: str = "", **more: Any) -> None:
        """Let a host write its record and leave."""
        if not host.is_alive:
            return
        plan = host.order["plan"]
        host.ended_at = self.loop.time()
        host.record = exit_record(plan["job"], plan["attempt"], node=plan["node"], **more)
        host.record["reason"] = reason
        host.record["started_at"], host.record["ended_at"] = host.began_at, host.ended_at
        host.over.set()

    def kill(self, host: Host) -> None:
        """Kill a host: its ranks go with it, and it leaves no record."""
        if host.is_alive:
            host.ended_at = self.loop.time()
            host.over.set()

    # -- Ray -----------------------------------------------------------------------------------
    def lose_agent(self, node: str) -> None:
        """Kill a node's agent; a new one comes with the next call."""
        self.agents[node] += 1

    def restart_ray(self) -> None:
        """Let another cluster come up: groups and agents are gone, hosts live on."""
        self.life += 1
        self.groups.clear()
        for node in self.agents:
            self.lose_agent(node)

    def used(self, node: str) -> tuple[float, float]:
        """Return the CPUs and GPUs of a node that groups hold."""
        shapes = [shape for shape, at, _ in self.groups.values() for one in at if one == node]
        return sum(shape.cpus for shape in shapes), sum(shape.gpus for shape in shapes)

    def make_group(self, name: str, shape: Shape, nodes: Sequence[str]) -> tuple[str, ...]:
        """Take room for a group on the nodes that were chosen. Raises NotPlacedError."""
        gpus: list[tuple[str, ...]] = []
        taken = {node: self._gpus_of(node) for node in self.sizes}
        for index, node in enumerate(nodes):
            cpus, total = self.sizes[node]
            used_cpus, used_gpus = self.used(node)
            mine = list(nodes[: index + 1]).count(node)
            if used_cpus + mine * shape.cpus > cpus or used_gpus + mine * shape.gpus > total:
                raise NotPlacedError("no room in time")
            free = [one for one in range(int(total)) if f"{node}/{one}" not in taken[node]]
            ids = tuple(f"{node}/{one}" for one in free[: int(shape.gpus)])
            taken[node] |= set(ids)
            gpus.append(ids)
        self.groups[name] = (shape, tuple(nodes), tuple(gpus))
        return tuple(nodes)

    def _gpus_of(self, node: str) -> set[str]:
        found: set[str] = set()
        for _, at, gpus in self.groups.values():
            for where, ids in zip(at, gpus, strict=True):
                if where == node:
                    found |= set(ids)
        return found


class SimCluster:
    """The machine as one target actor sees it: every call takes time, and may not come back."""

    def __init__(self, machine: Machine, step: Callable[[str], None]) -> None:
        """See the machine; `step` is told of each call, and raises when the caller is dead."""
        self._machine = machine
        self.step = step

    async def call(self, what: str, *, longest_s: float = 0.02) -> None:
        """Let a call take its time; the actor may be dead before, or after."""
        self.step(what)
        await asyncio.sleep(self._machine.rng.random() * longest_s)
        self.step(what)

    async def cluster_id(self) -> str:
        """See `Cluster`."""
        await self.call("cluster_id")
        return f"cluster-{self._machine.life}"

    async def nodes(self) -> list[NodeInfo]:
        """See `Cluster`."""
        await self.call("nodes")
        found = []
        for name, (cpus, gpus) in self._machine.sizes.items():
            used = self._machine.used(name)
            free = (cpus - used[0], gpus - used[1], MEMORY)
            found.append(NodeInfo(name, "127.0.0.1", cpus, gpus, MEMORY, *free))
        return found

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        """See `Cluster`; the group is made even when its caller has died meanwhile."""
        self.step("create_group")
        machine, life = self._machine, self._machine.life

        async def work() -> tuple[str, ...]:
            await asyncio.sleep(machine.rng.random() * 0.05)
            if machine.life != life:
                raise NotPlacedError("the cluster is gone")
            return machine.make_group(name, shape, nodes)

        made = asyncio.ensure_future(work())
        made.add_done_callback(_retrieve)
        chosen = await asyncio.shield(made)
        self.step("create_group")
        return chosen

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

    def doubt(self, node_id: str) -> None:
        """See `Cluster`: here all nodes are on one machine, and none is lost."""

    async def agent(self, node_id: str) -> SimAgent:
        """See `Cluster`."""
        await self.call("agent")
        return SimAgent(self, self._machine, node_id)


class SimAgent:
    """A node's agent: loses its calls when it dies; what it had begun may go on without it."""

    def __init__(self, cluster: SimCluster, machine: Machine, node_id: str) -> None:
        self._cluster = cluster
        self._machine = machine
        self._node = node_id
        self._life = machine.agents[node_id]

    async def _call(self, what: str, *, longest_s: float = 0.02) -> None:
        self._look()
        await self._cluster.call(what, longest_s=longest_s)
        self._look()

    def _look(self) -> None:
        if self._machine.agents[self._node] != self._life:
            raise AgentLostError("the agent's process is gone")

    async def hello(self) -> Mapping[str, Any]:
        """See `Agent`."""
        await self._call("hello")
        return {
            "node_id": self._node,
            "address": "127.0.0.1",
            "root": "/nowhere",
            "environment": {"PATH": "/bin"},
            "python": "/bin/python",
            "injob_path": "/nowhere/injob",
            "version": "0",
        }

    async def free_port(self) -> int:
        """See `Agent`."""
        await self._call("free_port")
        return 40_000

    async def prepare(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Agent`."""
        await self._call("prepare", longest_s=0.5)
        if self._machine.rng.random() < 0.02:
            raise PrepareError("the data is away", failure_class="data")
        return {}

    async def launch(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Agent`; a host may come up although nobody waits for it any more."""
        self._look()
        self._cluster.step("launch")
        machine, plan = self._machine, order["plan"]
        shape, gpus = _place_of(machine, order)

        async def work() -> None:
            async with machine.fence.starting(plan["marker"]):
                await asyncio.sleep(machine.rng.random() * 0.3)
                if machine.agents[self._node] == self._life or machine.rng.random() < 0.5:
                    machine.begin(order, shape, gpus)

        launching = asyncio.ensure_future(work())
        launching.add_done_callback(_retrieve)
        await asyncio.shield(launching)
        self._look()
        self._cluster.step("launch")
        return {"pid": 1, "start_time": 1, "boot_id": "b", "cold": None}

    async def follow(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Agent`."""
        await self._call("follow")
        host = self._machine.hosts.get(order["plan"]["marker"])
        while host is not None and host.is_alive:
            # Looked at now and then: the agent may die meanwhile.
            try:
                async with asyncio.timeout(0.7):
                    await host.over.wait()
            except TimeoutError:
                self._look()
        await self._call("follow")
        if host is None or host.record is None:
            return exit_record_of_lost_host(order["plan"], Proof(True, 0, (), "simulated"))
        return host.record

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """See `Agent`."""
        await self._call("stop")
        host = self._machine.hosts.get(order["plan"]["marker"])
        if host is not None and host.is_alive:
            after_s = self._machine.rng.random() * grace_s
            self._machine.loop.call_later(
                after_s,
                lambda: self._machine.end(host, outcome="canceled", signal=15, reason=reason),
            )

    async def collect(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Agent`."""
        await self._call("collect", longest_s=0.2)
        return {"tails": {0: b""}, "problems": []}

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> Mapping[str, Any]:
        """See `Agent`, and `Ends.settle`, which this follows."""
        await self._call("settle")
        marker = order["plan"]["marker"]
        if end:
            await self._machine.fence.end(marker)
        host = self._machine.hosts.get(marker)
        if host is not None and host.is_alive:
            if not end:
                return {"state": "running", "proven": False}
            await asyncio.sleep(self._machine.rng.random() * 2.0)
            self._machine.end(host, outcome="canceled", signal=15, reason=PLACE_LOST)
        self._look()
        if host is not None and host.record is not None:
            ours = host.record["reason"] == PLACE_LOST
            return {"state": "ended", "exit": host.record, "proven": True, "ended_now": ours}
        return {"state": "gone", "proven": True, "ended_now": end}

    async def clean(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Agent`."""
        await self._call("clean")
        return {"proven": True}


def _place_of(machine: Machine, order: Mapping[str, Any]) -> tuple[Shape, tuple[str, ...]]:
    """Return what the order's group holds on its node, as the ranks will use it."""
    plan = order["plan"]
    gpus = tuple(str(plan["env"].get("CUDA_VISIBLE_DEVICES", "")).split(","))
    ranks = len(plan["ranks"])
    return Shape(nodes=1, cpus=float(ranks), gpus=0.0), tuple(one for one in gpus if one)


def _retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
