"""The true state of simulated nodes: groups, agents and attempt hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lease import Lease
from rayjobs.injob.outcomes import EndCause, Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.node.ends import Fence
from rayjobs.policy import Shape
from rayjobs.protocol.agent import NotPlacedError
from rayjobs.protocol.attempts import AttemptOnNode
from tests.fakes.cluster import exit_record


@dataclass
class Host:
    """An attempt host of the simulated machine, and how its ranks are to end.

    Attributes:
        ends_at, exit_code: When and how it ends by itself; an exit code of None: it is killed,
            and leaves no record.
        ended_at: When its last rank ended; None while it is alive.
        record: Its exit record; None while it is alive, or if it was killed.
        lease: Its lease, if nodes are separate machines.
        frozen_s: How long its machine was frozen during its lifetime.
    """

    on: AttemptOnNode
    node_id: str
    shape: Shape
    gpus: tuple[str, ...]
    began_at: float
    ends_at: float
    exit_code: int | None
    ended_at: float | None = None
    record: ExitRecord | None = None
    lease: Lease | None = None
    frozen_s: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_alive(self) -> bool:
        """Whether its ranks run."""
        return self.ended_at is None


class Machine:
    """The true state: the hosts of all attempts, the groups, and the agents.

    All nodes are on one machine; in `machines.Machines`, each has its own.

    Attributes:
        lease_s: How long hosts may continue without a renewal; None: forever.
        longest_s: How long a host runs if it is not ended.
    """

    lease_s: float | None = None
    longest_s = 20.0

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Random, *, nodes: int, cpus: float, gpus: int
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.generation = 1  # of the cluster: `restart_ray` starts the next one
        self.sizes = {f"node{index}": (cpus, float(gpus)) for index in range(nodes)}
        self.groups: dict[str, tuple[Shape, tuple[str, ...], tuple[tuple[str, ...], ...]]] = {}
        self.hosts: dict[str, Host] = {}
        self.history: list[Host] = []
        # Incremented when the node's agent dies, so that calls of the old one fail.
        self.agents = dict.fromkeys(self.sizes, 0)
        self.doubted: set[str] = set()
        # Outlives an agent here. The real fence ends with its agent's process, which then starts
        # no more hosts either.
        self.fence = Fence()

    # -- nodes ---------------------------------------------------------------------------------
    @property
    def shares_machine(self) -> bool:
        """Whether all nodes are on one machine."""
        return True

    def address(self, node: str) -> str:
        """Return the address of a node's machine."""
        return "127.0.0.1"

    def host_on(self, node: str, marker: str) -> Host | None:
        """Return a host as the node's agent sees it."""
        return self.hosts.get(marker)

    def gpu_name(self, node: str, index: int) -> str:
        """Return the name of a GPU, unique among all nodes."""
        return f"{node}/{index}"

    def fence_of(self, node: str) -> Fence:
        """Return the fence of a node's machine: the attempts that were ended there."""
        return self.fence

    def raylet_is_gone(self, node: str) -> bool:
        """See `Cluster.raylet_is_gone`."""
        return False

    def is_doubted(self, node: str) -> bool:
        """Whether Ray still lists a node that was rightly doubted (`Cluster.doubt`)."""
        return False

    async def reach(self, node: str) -> None:
        """Wait until the node's processes can be reached; AgentLostError if they never will."""

    async def runs(self, node: str) -> bool:
        """Wait until the node's processes run; return False if they are gone."""
        return True

    async def answered(self, node: str, work: asyncio.Future[Any]) -> Any:
        """Return the answer of a node's process; the work continues if no task waits for it."""
        return await asyncio.shield(work)

    def clock_s(self, node: str) -> float | None:
        """Return the boot clock of a node, if nodes have their own."""
        return None

    def starting(self, node: str, plan: LaunchPlan) -> AbstractContextManager[Lease | None]:
        """Return a context that holds the lease of a host while the host starts."""
        return nullcontext()

    def renew(self, node: str, marker: str, stamp: float | None) -> float | None:
        """Renew the lease of a host; return the stamp for the next renewal."""
        raise AssertionError("no lease was granted")

    async def travel(self, node: str, call: str) -> None:
        """Wait until a call has arrived at a node; a fault may happen meanwhile."""

    async def list_agent(self, node: str) -> None:
        """Wait until the node can start an agent; AgentLostError if it is no longer listed."""

    async def places(self, nodes: Sequence[str]) -> None:
        """Wait until a group can be created on the nodes; NotPlacedError if one is missing."""

    # -- hosts ---------------------------------------------------------------------------------
    def drawn(self, on: AttemptOnNode, node_id: str, shape: Shape, gpus: tuple[str, ...]) -> Host:
        """Return a new attempt host with a random outcome."""
        rng, now = self.rng, self.loop.time()
        kind = rng.random()
        exit_code = 0 if kind < 0.8 else 1 if kind < 0.93 else None
        lasts = rng.choice((0.0, 0.05, rng.uniform(0.1, 3.0), rng.uniform(1.0, self.longest_s)))
        host = Host(on, node_id, shape, gpus, now, now + lasts, exit_code)
        self.hosts[on.marker] = host
        self.history.append(host)
        return host

    def begin(
        self,
        on: AttemptOnNode,
        node_id: str,
        shape: Shape,
        gpus: tuple[str, ...],
        lease: Lease | None,
    ) -> None:
        """Start an attempt host, which then runs and ends by itself."""
        host = self.drawn(on, node_id, shape, gpus)
        lasts, limit = host.ends_at - host.began_at, on.max_duration_s
        if limit is not None and lasts > limit:
            self.loop.call_later(
                limit, lambda: self.end(host, outcome=Outcome.TIME_LIMIT, signal=15)
            )
        else:
            self.loop.call_later(lasts, lambda: self.by_itself(host))

    def stop(self, host: Host, *, after_s: float, cause: EndCause) -> None:
        """Let a host end its ranks after `after_s`."""
        self.loop.call_later(after_s, lambda: self.end(host, signal=15, cause=cause))

    def by_itself(self, host: Host) -> None:
        """Let a host end with its own random outcome."""
        if host.exit_code is None:
            self.kill(host)
        else:
            self.end(host, exit_code=host.exit_code)

    def end(self, host: Host, *, at_s: float | None = None, **more: Any) -> None:
        """Let a host write its record and exit; `at_s`: when its ranks ended, if not now."""
        if not host.is_alive:
            return
        on = host.on
        host.ended_at = self.loop.time() if at_s is None else at_s
        host.record = exit_record(
            on.job,
            on.attempt,
            node=on.node,
            started_at=host.began_at,
            ended_at=host.ended_at,
            **more,
        )
        host.over.set()

    def kill(self, host: Host) -> None:
        """Kill a host: its ranks end with it, and it leaves no record."""
        if host.is_alive:
            host.ended_at = self.loop.time()
            host.over.set()

    # -- Ray -----------------------------------------------------------------------------------
    def lose_agent(self, node: str) -> None:
        """Kill a node's agent; the next call starts a new one."""
        self.agents[node] += 1

    def restart_ray(self) -> None:
        """Replace the cluster: groups and agents are lost, hosts survive."""
        self.generation += 1
        self.groups.clear()
        for node in self.agents:
            self.lose_agent(node)

    def used(self, node: str) -> tuple[float, float]:
        """Return the CPUs and GPUs of a node that are used by groups."""
        shapes = [shape for shape, at, _ in self.groups.values() for one in at if one == node]
        return sum(shape.cpus for shape in shapes), sum(shape.gpus for shape in shapes)

    def make_group(self, name: str, shape: Shape, nodes: Sequence[str]) -> tuple[str, ...]:
        """Reserve capacity for a group on the chosen nodes; NotPlacedError if there is none."""
        gpus: list[tuple[str, ...]] = []
        taken = {node: self._gpus_of(node) for node in self.sizes}
        for index, node in enumerate(nodes):
            cpus, total = self.sizes.get(node, (0.0, 0.0))
            used_cpus, used_gpus = self.used(node)
            mine = list(nodes[: index + 1]).count(node)
            if used_cpus + mine * shape.cpus > cpus or used_gpus + mine * shape.gpus > total:
                raise NotPlacedError("no capacity in time")
            names = [self.gpu_name(node, one) for one in range(int(total))]
            ids = tuple([one for one in names if one not in taken[node]][: int(shape.gpus)])
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
