"""A small working cluster in memory: groups take room, agents do what a test tells them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rayjobs.compute.cluster import AgentLostError, NodeInfo, NotGrownError, NotPlacedError
from rayjobs.policy import Shape


class FakeAgent:
    """An agent whose attempts end when a test says so."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.lost = False
        self.calls: list[tuple[str, str, int]] = []
        self.ends: dict[tuple[str, int], asyncio.Future[dict[str, Any]]] = {}
        self.prepare_error: Exception | None = None
        self.launch_error: Exception | None = None
        self.collect_problems: list[str] = []
        self.settled: dict[str, Any] = {"state": "gone", "proven": True}
        self.instant: int | None = None
        self.ports = 0
        self.orders: list[Mapping[str, Any]] = []
        self.stop_reasons: list[str] = []
        self.silent: float | None = 0.0

    async def hello(self) -> Mapping[str, Any]:
        return {
            "node_id": self.node_id,
            "address": "127.0.0.1",
            "root": "/nowhere",
            "environment": {"PATH": "/bin"},
            "python": "/bin/python",
            "injob_path": "/nowhere/injob",
            "version": "0",
        }

    async def free_port(self) -> int:
        self.ports += 1
        return 40_000 + self.ports

    def _note(self, what: str, order: Mapping[str, Any]) -> tuple[str, int]:
        if self.lost:
            raise AgentLostError("the fake agent was lost")
        key = (order["plan"]["job"], order["plan"]["attempt"])
        self.calls.append((what, *key))
        return key

    async def prepare(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        self._note("prepare", order)
        if self.prepare_error is not None:
            raise self.prepare_error
        return {}

    async def launch(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        key = self._note("launch", order)
        self.orders.append(order)
        if self.launch_error is not None:
            raise self.launch_error
        self.future(key)
        if self.instant is not None:
            self.end(*key, exit_code=self.instant)
        return {"pid": 1, "start_time": 1, "boot_id": "b", "cold": None}

    def future(self, key: tuple[str, int]) -> asyncio.Future[dict[str, Any]]:
        if key not in self.ends:
            self.ends[key] = asyncio.get_running_loop().create_future()
        return self.ends[key]

    async def follow(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        key = self._note("follow", order)
        return await asyncio.shield(self.future(key))

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        job, attempt = self._note("stop", order)
        self.stop_reasons.append(reason)
        self.end(
            job,
            attempt,
            outcome="canceled",
            signal=15,
            node=order["plan"]["node"],
            reason=reason,
        )

    async def renew(self, order: Mapping[str, Any], stamp: float | None) -> float | None:
        self._note("renew", order)
        return 0.0 if stamp is None else stamp + 1.0

    async def silent_s(self, order: Mapping[str, Any]) -> float | None:
        self._note("silent", order)
        return self.silent

    async def stalled(self, order: Mapping[str, Any], *, reason: str) -> None:
        job, attempt = self._note("stalled", order)
        self.end(job, attempt, outcome="stalled", node=order["plan"]["node"], reason=reason)

    async def stacks(self, order: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        self._note("stacks", order)
        return [{"rank": 0, "state": "S", "how": "proc", "where": "", "waits": False, "text": ""}]

    async def collect(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        self._note("collect", order)
        return {"tails": {0: b""}, "problems": list(self.collect_problems)}

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> Mapping[str, Any]:
        self._note("settle-end" if end else "settle", order)
        return dict(self.settled)

    async def uncleaned(self) -> list[Mapping[str, Any]]:
        return []

    async def sweep(self, roots: list[str]) -> int:
        return 0

    async def clean(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        self._note("clean", order)
        return {"proven": True}

    def end(
        self,
        job: str,
        attempt: int,
        *,
        exit_code: int | None = None,
        outcome: str = "",
        signal: int | None = None,
        proven: bool = True,
        node: int = 0,
        reason: str = "",
    ) -> None:
        """Let an attempt end as told."""
        waiting = self.future((job, attempt))
        if not waiting.done():
            waiting.set_result(
                exit_record(
                    job,
                    attempt,
                    exit_code=exit_code,
                    outcome=outcome,
                    signal=signal,
                    proven=proven,
                    node=node,
                    reason=reason,
                )
            )


def exit_record(
    job: str,
    attempt: int,
    *,
    exit_code: int | None = 0,
    outcome: str = "",
    signal: int | None = None,
    proven: bool = True,
    node: int = 0,
    reason: str = "",
) -> dict[str, Any]:
    """Return an exit record as an attempt host with one rank writes it."""
    if not outcome:
        outcome = "completed" if exit_code == 0 else "failed"
    return {
        "version": 1,
        "job": job,
        "attempt": attempt,
        "node": node,
        "marker": "m",
        "started_at": 1.0,
        "ended_at": 2.0,
        "duration_s": 1.0,
        "outcome": outcome,
        "reason": reason,
        "ranks": [
            {
                "rank": node,
                "pid": 1,
                "exit_code": exit_code,
                "signal": signal,
                "started_at": 1.0,
                "ended_at": 2.0,
                "max_rss_bytes": 1,
                "out_of_memory": False,
                "log_bytes": 0,
                "log_dropped": 0,
            }
        ],
        "first_failed_rank": None if outcome in ("completed", "canceled") else node,
        "leftovers": {"killed": 0, "proven_dead": proven, "remaining": []},
        "tree": "subreaper",
        "memory": {"limit_bytes": None, "how": "none", "peak_bytes": None},
        "cold": None,
    }


class FakeCluster:
    """Nodes with room; a group takes it until it is removed."""

    def __init__(self, *, cpus: float = 2.0, gpus: float = 0.0, nodes: int = 1) -> None:
        self.id = "cluster-1"
        self.sizes = {f"node{index}": (cpus, gpus) for index in range(nodes)}
        self.groups: dict[str, tuple[Shape, tuple[str, ...]]] = {}
        self.types: dict[str, str] = {}
        # Groups that wait for nodes, and the nodes that they ask for.
        self.pending: dict[str, tuple[Shape, tuple[str | None, ...]]] = {}
        self.agents = {name: FakeAgent(name) for name in self.sizes}
        self.created: list[str] = []
        self.place_error: Exception | None = None
        self.hold_placement = asyncio.Event()
        self.hold_placement.set()
        self.over_capacity = False
        self.raylets_gone: set[str] = set()
        self.doubted: list[str] = []

    async def cluster_id(self) -> str:
        return self.id

    def _used(self, node: str) -> tuple[float, float]:
        shapes = [shape for shape, at in self.groups.values() for one in at if one == node]
        return sum(shape.cpus for shape in shapes), sum(shape.gpus for shape in shapes)

    async def nodes(self) -> list[NodeInfo]:
        found = []
        for name, (cpus, gpus) in self.sizes.items():
            used_cpus, used_gpus = self._used(name)
            found.append(
                NodeInfo(
                    name,
                    "127.0.0.1",
                    cpus,
                    gpus,
                    2.0**34,
                    cpus - used_cpus,
                    gpus - used_gpus,
                    2.0**34,
                    self.types.get(name, ""),
                )
            )
        return [node for node in found if node.node_id not in self.raylets_gone & {*self.doubted}]

    def doubt(self, node_id: str) -> None:
        self.doubted.append(node_id)

    async def create_group(
        self, name: str, shape: Shape, nodes: Sequence[str], *, timeout_s: float
    ) -> tuple[str, ...]:
        await self.hold_placement.wait()
        if self.place_error is not None:
            raise self.place_error
        assert len(nodes) == shape.nodes
        for node, count in Counter(nodes).items():
            cpus, gpus = self.sizes.get(node, (0.0, 0.0))
            used_cpus, used_gpus = self._used(node)
            fits = used_cpus + count * shape.cpus <= cpus and used_gpus + count * shape.gpus <= gpus
            if not fits or (shape.spread and count > 1):
                self.over_capacity = True
                raise NotPlacedError("no room")
        self.groups[name] = (shape, tuple(nodes))
        self.created.append(name)
        return tuple(nodes)

    async def grow_group(
        self,
        name: str,
        shape: Shape,
        nodes: Sequence[str | None],
        *,
        avoid: Collection[str],
        timeout_s: float,
    ) -> tuple[str, ...]:
        """Wait for a test to `grow` nodes; of several groups the one asked for last is placed."""
        self.pending[name] = (shape, tuple(nodes))
        end_s = asyncio.get_running_loop().time() + timeout_s
        try:
            while asyncio.get_running_loop().time() < end_s:
                left = [one for one in self.sizes if one not in avoid and one not in nodes]
                places = []
                for node in nodes:
                    free = [node] if node else [one for one in left if self._holds(one, shape)]
                    if free and self._holds(free[0], shape):
                        places.append(free[0])
                        left = [one for one in left if one != free[0]]
                if len(places) == shape.nodes and next(reversed(self.pending)) == name:
                    return await self.create_group(name, shape, places, timeout_s=timeout_s)
                await asyncio.sleep(0.01)
            raise NotGrownError(f"the nodes for {shape.describe()} did not start")
        finally:
            del self.pending[name]

    def _holds(self, node: str, shape: Shape) -> bool:
        if node not in self.sizes:
            return False
        if shape.node_types and self.types.get(node) not in shape.node_types:
            return False
        (cpus, gpus), (used_cpus, used_gpus) = self.sizes[node], self._used(node)
        return used_cpus + shape.cpus <= cpus and used_gpus + shape.gpus <= gpus

    def grow(self, name: str, node_type: str, cpus: float, gpus: float = 0.0) -> None:
        """Let a node of a type be there."""
        self.types[name] = node_type
        self.agents[name] = FakeAgent(name)
        self.sizes[name] = (cpus, gpus)

    async def gpu_ids(self, name: str, shape: Shape) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(str(one) for one in range(int(shape.gpus))) for _ in range(shape.nodes))

    async def remove_group(self, name: str) -> None:
        self.groups.pop(name, None)

    async def group_names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.groups if name.startswith(prefix))

    async def raylet_is_gone(self, node_id: str) -> bool:
        return node_id in self.raylets_gone

    def lose(self, node_id: str) -> None:
        """Let a node be gone for good, as Ray's table says it."""
        self.sizes.pop(node_id)
        agent = self.agents[node_id]
        agent.lost = True
        for end in agent.ends.values():
            if not end.done():
                end.set_exception(AgentLostError(f"the node {node_id} is gone"))
                end.exception()  # a target that has crashed does not listen

    async def agent(self, node_id: str) -> FakeAgent:
        if node_id not in self.sizes:
            raise AgentLostError(f"node {node_id} is not among the living nodes")
        agent = self.agents[node_id]
        if agent.lost:
            fresh = FakeAgent(node_id)
            fresh.ends = agent.ends
            fresh.settled = agent.settled
            self.agents[node_id] = fresh
        return self.agents[node_id]
