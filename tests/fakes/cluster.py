"""A small working cluster in memory: groups take capacity, tests control the agents."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.exit_record import ExitRecord, Leftovers, RankExit
from rayjobs.injob.identity import Identity
from rayjobs.injob.outcomes import EndCause, Outcome
from rayjobs.injob.rank_stack import RankStack
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
    Silence,
    Stacks,
    Stalled,
    Stop,
    UncleanedFolders,
)
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Found, Settled


def address_of(node: str) -> str:
    """Return the address of a node by its name: each is a machine."""
    return f"127.0.0.{1 + int(re.sub(r'[^0-9]', '', node) or 0)}"


class FakeAgent:
    """An agent whose attempts end when a test requests it."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.lost = False
        self.calls: list[tuple[str, str, int]] = []
        self.ends: dict[tuple[str, int], asyncio.Future[ExitRecord]] = {}
        self.prepare_error: Exception | None = None
        self.prepares_until_stopped = False  # ends with the second request to stop
        self.launch_error: Exception | None = None
        self.collect_problems: list[str] = []
        self.lacks_files = False
        self.settled = Settled(Found.GONE, proven=True)
        self.instant: int | None = None
        self.ports = 0
        self.requests: list[LaunchRequest] = []
        self.stop_causes: list[EndCause] = []
        self.silent: float | None = 0.0

    async def call(self, method: Call[Asked, Answer], message: Asked) -> Answer:
        """See `Agent.call`: each call is a method of the same name; messages pass through JSON."""
        sent = method.asked.from_json(json.loads(json.dumps(message.to_json())))
        answer = await getattr(self, method.name)(sent)
        return method.answer.from_json(json.loads(json.dumps(answer.to_json())))

    async def hello(self, _: Nothing) -> Hello:
        return Hello(
            node_id=self.node_id,
            address=address_of(self.node_id),
            root="/nowhere",
            environment={"PATH": "/bin"},
            python="/bin/python",
            injob_path="/nowhere/injob",
            rayjobs="0",
        )

    async def free_port(self, _: Nothing) -> Port:
        self.ports += 1
        return Port(40_000 + self.ports)

    def _note(self, what: str, on: AttemptOnNode) -> tuple[str, int]:
        if self.lost:
            raise AgentLostError("the fake agent was lost")
        self.calls.append((what, on.job, on.attempt))
        return on.job, on.attempt

    async def prepare(self, request: LaunchRequest) -> Prepared:
        self._note("prepare", request.on)
        if self.prepare_error is not None:
            raise self.prepare_error
        while self.prepares_until_stopped:
            if len(self.stop_causes) > 1:
                raise PrepareError("stopped", failure_class=FailureClass.SYSTEM)
            await asyncio.sleep(0.01)
        return Prepared()

    async def launch(self, request: LaunchRequest) -> Launched:
        key = self._note("launch", request.on)
        self.requests.append(request)
        if self.launch_error is not None:
            raise self.launch_error
        self.future(key)
        if self.instant is not None:
            self.end(*key, exit_code=self.instant)
        return Launched(Identity(1, 1, "b"))

    def future(self, key: tuple[str, int]) -> asyncio.Future[ExitRecord]:
        if key not in self.ends:
            self.ends[key] = asyncio.get_running_loop().create_future()
        return self.ends[key]

    async def follow(self, on: AttemptOnNode) -> ExitRecord:
        key = self._note("follow", on)
        return await asyncio.shield(self.future(key))

    async def stop(self, request: Stop) -> Nothing:
        job, attempt = self._note("stop", request.on)
        self.stop_causes.append(request.cause)
        self.end(job, attempt, signal=15, node=request.on.node, cause=request.cause)
        return Nothing()

    async def renew(self, request: Renew) -> Renewed:
        self._note("renew", request.on)
        return Renewed(0.0 if request.stamp is None else request.stamp + 1.0)

    async def silence(self, on: AttemptOnNode) -> Silence:
        self._note("silent", on)
        return Silence(self.silent)

    async def stalled(self, request: Stalled) -> Nothing:
        job, attempt = self._note("stalled", request.on)
        reason = request.reason
        self.end(job, attempt, outcome=Outcome.STALLED, node=request.on.node, reason=reason)
        return Nothing()

    async def stacks(self, on: AttemptOnNode) -> Stacks:
        self._note("stacks", on)
        return Stacks((RankStack(0, "S", "proc", "", waits=False),))

    async def collect(self, on: AttemptOnNode) -> Collected:
        self._note("collect", on)
        return Collected(
            tails={0: b""},
            problems=tuple(self.collect_problems),
            is_out_of_files=self.lacks_files,
        )

    async def settle(self, request: Settle) -> Settled:
        self._note("settle-end" if request.end else "settle", request.on)
        return self.settled

    async def uncleaned(self, _: Nothing) -> UncleanedFolders:
        return UncleanedFolders()

    async def sweep(self, _: CleanFolders) -> CleanedFolders:
        return CleanedFolders(0)

    async def clean(self, on: AttemptOnNode) -> Cleaned:
        self._note("clean", on)
        return Cleaned(proven=True)

    def end(self, job: str, attempt: int, **facts: Any) -> None:
        """End an attempt as requested; see `exit_record`."""
        waiting = self.future((job, attempt))
        if not waiting.done():
            waiting.set_result(exit_record(job, attempt, **facts))


def exit_record(  # noqa: PLR0913 - each is an entry of the record
    job: str,
    attempt: int,
    *,
    exit_code: int | None = None,
    outcome: Outcome | None = None,
    signal: int | None = None,
    proven: bool = True,
    node: int = 0,
    cause: EndCause | None = None,
    reason: str = "",
    started_at: float = 1.0,
    ended_at: float = 2.0,
) -> ExitRecord:
    """Return an exit record as an attempt host with one rank writes it.

    Args:
        cause: Why its end was requested.
    """
    if (exit_code, signal, outcome, cause) == (None, None, None, None):
        exit_code = 0
    if cause is not None:
        outcome, reason = Outcome.CANCELED, cause.sentence
    elif outcome is None:
        outcome = Outcome.COMPLETED if exit_code == 0 else Outcome.FAILED
    return ExitRecord(
        job=job,
        attempt=attempt,
        node=node,
        marker="m",
        started_at=started_at,
        ended_at=ended_at,
        duration_s=1.0,
        outcome=outcome,
        reason=reason,
        end_reason=None if cause is None else cause.reason,
        ranks=(
            RankExit(
                rank=node,
                pid=1,
                exit_code=exit_code,
                signal=signal,
                started_at=1.0,
                ended_at=2.0,
                max_rss_bytes=1,
            ),
        ),
        first_failed_rank=None if outcome in (Outcome.COMPLETED, Outcome.CANCELED) else node,
        leftovers=Leftovers(proven_dead=proven),
        tree="subreaper",
    )


class FakeCluster:
    """Nodes with capacity; a group takes it until it is removed."""

    def __init__(self, *, cpus: float = 2.0, gpus: float = 0.0, nodes: int = 1) -> None:
        self.id = "cluster-1"
        self.sizes = {f"node{index}": (cpus, gpus) for index in range(nodes)}
        self.groups: dict[str, tuple[Shape, tuple[str, ...]]] = {}
        self.types: dict[str, str] = {}
        # Groups that wait for nodes, and the nodes that they name.
        self.pending: dict[str, tuple[Shape, tuple[str | None, ...]]] = {}
        self._avoided: dict[str, frozenset[str]] = {}
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
                    address_of(name),
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
                raise NotPlacedError("no capacity")
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
        """Wait until a test has added nodes with `grow`; of the groups that fit, place the last."""
        self.pending[name] = (shape, tuple(nodes))
        self._avoided[name] = frozenset(avoid)
        end_s = asyncio.get_running_loop().time() + timeout_s
        try:
            while asyncio.get_running_loop().time() < end_s:
                fitting = [one for one in self.pending if self._places(one)]
                if fitting and fitting[-1] == name:
                    places = self._places(name)
                    return await self.create_group(name, shape, places, timeout_s=timeout_s)
                await asyncio.sleep(0.01)
            raise NotGrownError(f"the nodes for {shape.describe()} did not start")
        finally:
            del self.pending[name], self._avoided[name]

    def _places(self, name: str) -> list[str]:
        """Return a node for each part of a pending group; empty while some are missing."""
        shape, nodes = self.pending[name]
        left = [one for one in self.sizes if one not in self._avoided[name] and one not in nodes]
        places = []
        for node in nodes:
            free = [node] if node else [one for one in left if self._holds(one, shape)]
            if free and self._holds(free[0], shape):
                places.append(free[0])
                left = [one for one in left if one != free[0]]
        return places if len(places) == shape.nodes else []

    def _holds(self, node: str, shape: Shape) -> bool:
        if node not in self.sizes:
            return False
        if shape.node_types and self.types.get(node) not in shape.node_types:
            return False
        (cpus, gpus), (used_cpus, used_gpus) = self.sizes[node], self._used(node)
        return used_cpus + shape.cpus <= cpus and used_gpus + shape.gpus <= gpus

    def grow(self, name: str, node_type: str, cpus: float, gpus: float = 0.0) -> None:
        """Add a node of a type."""
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
        """Remove a node permanently, as in Ray's table."""
        self.sizes.pop(node_id)
        agent = self.agents[node_id]
        agent.lost = True
        for end in agent.ends.values():
            if not end.done():
                end.set_exception(AgentLostError(f"the node {node_id} is gone"))
                end.exception()  # a crashed target does not retrieve it

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
