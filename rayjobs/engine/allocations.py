"""Allocations: recorded before their group exists, freed after their attempt's end is recorded."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from pathlib import Path

from rayjobs.core import ids
from rayjobs.core.clock import Clock
from rayjobs.core.errors import RayjobsError
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.board import Served
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy import NodeCapacity, Shape, take
from rayjobs.protocol.agent import Cluster, NodeInfo, NotPlacedError
from rayjobs.target.record import START_TIMEOUT_S

log = logging.getLogger(__name__)

PLACE_TIMEOUT_S = 30.0
# How long an idle group waits for a job of its shape: on a full node, creating a group right after
# another one was removed takes a second whatever the settings.
LINGER_S = 10.0
# How long Ray's own state may lag behind our changes.
SETTLE_S = 2.0

# CPUs, GPUs and bytes of memory.
_Use = tuple[float, float, float]


@dataclass(frozen=True)
class KnownAllocation:
    """An allocation in this process's memory.

    Attributes:
        job: Key of the job that has it; None while it is idle.
        since_s: When it went idle, on the monotonic clock.
        draining: Its ranks are not proven dead: it is never reused.
        suspects: Nodes of the attempt whose ranks may still live here.
        growing: Its group waits for nodes to start; `nodes` says where Ray would place it now.
    """

    name: str
    served: Served
    shape: Shape
    nodes: tuple[str, ...]
    gpus: tuple[tuple[str, ...], ...]
    job: str | None
    since_s: float
    draining: bool = False
    suspects: tuple[NodeOfAttempt, ...] = ()
    growing: bool = False


@dataclass(frozen=True)
class _Growing:
    """The request of a group that waits for nodes to start.

    Attributes:
        requested: The node of each bundle; None: a node that has to start.
        types: The types of the nodes that have to start; nodes of other types do not count.
        avoid: The nodes that were alive when the group was made: bundles without a given node are
            never placed there.
        is_needless: Set when the group fits without a new node.
    """

    requested: tuple[str | None, ...] = ()
    types: tuple[str, ...] = ()
    avoid: Collection[str] = ()
    is_needless: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    def fits_without(self, capacities: Sequence[NodeCapacity], shape: Shape) -> bool:
        """Return whether the shape fits on nodes that were alive when the group was made.

        Args:
            capacities: The free capacity, from which this group's own use is already subtracted.
        """
        # On a living node that it requests, the group itself uses the capacity of these bundles.
        mine = Counter(self.requested)
        old = []
        for capacity in capacities:
            if capacity.node_id in self.avoid:
                count = mine[capacity.node_id]
                own = (count * shape.cpus, count * shape.gpus, count * shape.memory)
                old.append(capacity.plus(*own))
        return take(old, shape) is not None


class Allocations:
    """All allocations of one target in this process's memory, and in the stores."""

    def __init__(
        self,
        target: str,
        cluster: Cluster,
        clock: Clock,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.target = target
        self.start_timeout_s = start_timeout_s
        self._cluster = cluster
        self._clock = clock
        self._allocations: dict[str, KnownAllocation] = {}
        # Allocations whose group may still exist, or whose row does not yet record the release.
        self._unreleased: dict[str, KnownAllocation] = {}
        # When each group was made, and when the latest ones were removed (infinite: not yet).
        self._made_s: dict[str, float] = {}
        self._removed: dict[str, tuple[float, KnownAllocation]] = {}
        self._foreign: dict[str, _Use] = {}
        self._growing: dict[str, _Growing] = {}

    @property
    def all(self) -> list[KnownAllocation]:
        """All allocations that are not released."""
        return list(self._allocations.values())

    def know(self, allocation: KnownAllocation) -> None:
        """Take over an allocation from a store (recovery)."""
        self._allocations[allocation.name] = allocation
        self._made_s[allocation.name] = -math.inf
        self._removed.pop(allocation.name, None)  # forgotten at the path of a moved workspace

    def forget(self, allocation: KnownAllocation) -> None:
        """Stop counting an allocation that another target actor owns."""
        self._allocations.pop(allocation.name, None)
        self._growing.pop(allocation.name, None)
        self._note_removed(allocation)

    def forget_all(self, *, of: Served) -> None:
        """Stop counting the allocations of a workspace that is taken over at another path."""
        for allocation in [one for one in self.all if one.served is of]:
            self.forget(allocation)
        for name in [name for name, one in self._unreleased.items() if one.served is of]:
            del self._unreleased[name]

    # -- what the policy sees ------------------------------------------------------------------
    def capacities(
        self, nodes: list[NodeInfo], may_start: Sequence[NodeCapacity] = ()
    ) -> list[NodeCapacity]:
        """Return each node's free capacity: its total minus the use by rayjobs and by others.

        Nodes that may start count as used if a group already waits for them; a node that has
        started in the meantime replaces one of them.

        Idle allocations count as free: they are released on demand. Ray's figures lag behind
        changes, so they are used only to find the use by others.
        """
        ours: dict[str, list[Shape]] = {}
        for allocation in self._allocations.values():
            if allocation.job is not None or allocation.draining:
                for at in () if allocation.growing else allocation.nodes:
                    ours.setdefault(at, []).append(allocation.shape)
        suspected = self._used_by_suspects(nodes)
        self._foreign = self._used_by_others(nodes)
        capacities = []
        for node in nodes:
            cpus, gpus, memory = self._foreign[node.node_id]
            used = [*ours.get(node.node_id, []), *suspected.get(node.node_id, [])]
            capacities.append(
                NodeCapacity(
                    node.node_id,
                    node.cpus,
                    node.gpus,
                    node.memory,
                    node.cpus - cpus - sum(shape.cpus for shape in used),
                    node.gpus - gpus - sum(shape.gpus for shape in used),
                    node.memory - memory - sum(shape.memory for shape in used),
                    node.node_type,
                )
            )
        capacities += may_start
        for allocation in [one for one in self._allocations.values() if one.growing]:
            capacities, expected = _stand(
                capacities, allocation.shape, self._growing[allocation.name]
            )
            self._allocations[allocation.name] = replace(allocation, nodes=expected)
        return capacities

    def _used_by_others(self, nodes: Sequence[NodeInfo]) -> dict[str, _Use]:
        """Return what other programs use on each node.

        Ray's figures are at most `SETTLE_S` old. At that time, each group that has changed since
        may have existed or not: this gives a lowest and a highest value. An earlier value between
        them is kept, so that many short jobs do not hide the use by others.
        """
        settled_s = self._clock.monotonic_s() - SETTLE_S
        self._removed = {name: one for name, one in self._removed.items() if one[0] >= settled_s}
        most: dict[str, list[Shape]] = {}
        least: dict[str, list[Shape]] = {}
        gone = [allocation for _removed_s, allocation in self._removed.values()]
        for allocation in (*self._allocations.values(), *gone):
            is_settled = self._made_s.get(allocation.name, math.inf) < settled_s
            for at in () if allocation.growing else allocation.nodes:
                most.setdefault(at, []).append(allocation.shape)
                if is_settled:
                    least.setdefault(at, []).append(allocation.shape)
        found: dict[str, _Use] = {}
        for node in nodes:
            before = self._foreign.get(node.node_id, (0.0, 0.0, 0.0))
            lowest = _foreign(node, most.get(node.node_id, []))
            highest = _foreign(node, least.get(node.node_id, []))
            cpus, gpus, memory = (
                min(max(one, low), high)
                for one, low, high in zip(before, lowest, highest, strict=True)
            )
            found[node.node_id] = (cpus, gpus, memory)
        return found

    def _used_by_suspects(self, nodes: Sequence[NodeInfo]) -> dict[str, list[Shape]]:
        """Return what attempts may still use on machines that joined again under a new node id.

        After a restart of Ray, the processes of an attempt live on until their lease ends, and the
        group that held their GPUs is gone: Ray would give any of them to the next job. The GPUs of
        such a machine therefore all count as used.
        """
        alive = {node.node_id for node in nodes}
        found: dict[str, list[Shape]] = {}
        for allocation in self._allocations.values():
            if not allocation.draining:
                continue
            gone = {one.on.address for one in allocation.suspects if one.node_id not in alive} - {
                ""
            }
            for node in nodes:
                if node.address in gone and node.node_id not in allocation.nodes:
                    gpus = node.gpus if allocation.shape.gpus else 0.0
                    found.setdefault(node.node_id, []).append(replace(allocation.shape, gpus=gpus))
        return found

    def hasten(self, capacities: Sequence[NodeCapacity]) -> None:
        """Let allocations that fit now stop waiting for new nodes.

        Call it only while no free capacity is reserved for another job.
        """
        for name, growing in self._growing.items():
            allocation = self._allocations.get(name)
            if allocation is not None and growing.fits_without(capacities, allocation.shape):
                growing.is_needless.set()

    # -- take and give back --------------------------------------------------------------------
    def idle_like(
        self, served: Served, shape: Shape, nodes: Sequence[str] | None = None
    ) -> KnownAllocation | None:
        """Return an idle allocation of the workspace with exactly this shape.

        Args:
            nodes: It must be on these nodes, in any order; None: on any nodes.
        """
        for allocation in self._allocations.values():
            if (
                allocation.job is None
                and not allocation.draining
                and allocation.served.path == served.path
                and allocation.shape == shape
                and (nodes is None or sorted(allocation.nodes) == sorted(nodes))
            ):
                return allocation
        return None

    def reserve_idle(self, allocation: KnownAllocation, key: str) -> KnownAllocation:
        """Assign an idle allocation to the job in memory (the store follows)."""
        taken = replace(allocation, job=key)
        self._allocations[allocation.name] = taken
        return taken

    def reserve_new(
        self,
        served: Served,
        shape: Shape,
        key: str,
        nodes: tuple[str, ...],
        *,
        up: Collection[str] | None = None,
        types: tuple[str, ...] = (),
    ) -> KnownAllocation:
        """Count a new allocation against its nodes before its group exists.

        Args:
            up: The living nodes; the others of `nodes` have to start first. None: all are alive.
            types: The types of the nodes that have to start.
        """
        name = f"rj-{self.target}-{ids.token(6)}"
        since_s = self._clock.monotonic_s()
        growing = up is not None and not set(up).issuperset(nodes)
        if up is not None and growing:
            requested = tuple(node if node in up else None for node in nodes)
            self._growing[name] = _Growing(requested, types, frozenset(up))
        allocation = KnownAllocation(name, served, shape, nodes, (), key, since_s, growing=growing)
        self._allocations[name] = allocation
        return allocation

    async def create(self, allocation: KnownAllocation) -> KnownAllocation:
        """Make the group of a recorded allocation and read its nodes and GPU ids.

        Raises NotPlacedError, NotGrownError. After an error, the allocation has been released.
        """
        await self._free_capacity(allocation)
        try:
            if allocation.growing:
                nodes = await self._grow(allocation)
            else:
                nodes = await self._cluster.create_group(
                    allocation.name, allocation.shape, allocation.nodes, timeout_s=PLACE_TIMEOUT_S
                )
            placed = replace(allocation, nodes=nodes, growing=False)
            self._allocations[allocation.name] = placed
            self._made_s[allocation.name] = self._clock.monotonic_s()
            self._growing.pop(allocation.name, None)
            gpus = await self._cluster.gpu_ids(allocation.name, allocation.shape)
            placed = replace(placed, gpus=gpus)
            self._allocations[allocation.name] = placed
            await allocation.served.ask(
                allocation.served.store.place_allocation, allocation.name, nodes=nodes, gpus=gpus
            )
        except BaseException:
            await asyncio.shield(self.release(allocation))
            raise
        return placed

    async def _grow(self, allocation: KnownAllocation) -> tuple[str, ...]:
        """Wait until a group's nodes have started. Raises NotPlacedError if it needs none now."""
        growing = self._growing[allocation.name]
        coming = asyncio.ensure_future(
            self._cluster.grow_group(
                allocation.name,
                replace(allocation.shape, node_types=growing.types),
                growing.requested,
                avoid=growing.avoid,
                timeout_s=self.start_timeout_s,
            )
        )
        needless = asyncio.ensure_future(growing.is_needless.wait())
        try:
            await asyncio.wait({coming, needless}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise NotPlacedError("the job now fits without new nodes")
            return coming.result()
        finally:
            needless.cancel()
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def give_back(
        self,
        allocation: KnownAllocation,
        *,
        attempt: int,
        job: str,
        proven: bool,
        suspects: Sequence[NodeOfAttempt] = (),
    ) -> None:
        """Free an allocation after its attempt's end was recorded.

        The resources become free even if the workspace cannot record it (full disk): in that case,
        this removes the group, since a row that names another job must not be reused.
        """
        if allocation.name not in self._allocations:
            return  # its group is already gone
        freed = replace(
            allocation,
            job=None,
            since_s=self._clock.monotonic_s(),
            draining=not proven,
            suspects=() if proven else tuple(suspects),
        )
        self._allocations[allocation.name] = freed
        try:
            await allocation.served.ask(
                allocation.served.store.free_allocation,
                allocation.name,
                job=job,
                attempt=attempt,
                proven=proven,
            )
        except RayjobsError as error:
            log.warning("allocation %s: its row was not written: %s", allocation.name, error)
            if proven and self._allocations.get(allocation.name) is freed:
                await self.release(freed)

    async def release(self, allocation: KnownAllocation) -> None:
        """Remove the group, then record that."""
        self._allocations.pop(allocation.name, None)
        self._growing.pop(allocation.name, None)
        self._note_removed(allocation, at_s=math.inf)
        try:
            await self._cluster.remove_group(allocation.name)
            await allocation.served.ask(allocation.served.store.release_allocation, allocation.name)
        except RayjobsError as error:
            log.warning("allocation %s was not released cleanly: %s", allocation.name, error)
            self._unreleased[allocation.name] = allocation
        else:
            self._unreleased.pop(allocation.name, None)
        finally:
            self._note_removed(allocation)

    async def release_old(self) -> None:
        """Release allocations that were idle for too long, and earlier failures to release."""
        now_s = self._clock.monotonic_s()
        for allocation in [*self._unreleased.values()]:
            if Path(allocation.served.path).is_dir():
                await self.release(allocation)
            else:
                del self._unreleased[allocation.name]  # its row was removed with its workspace
        for allocation in self.all:
            if self._is_idle(allocation) and now_s - allocation.since_s > LINGER_S:
                await self.release(allocation)

    async def _free_capacity(self, wanted: KnownAllocation) -> None:
        """Release idle groups on the nodes of a new group that needs their resources."""
        infos = {node.node_id: node for node in await self._cluster.nodes()}
        for node in dict.fromkeys(wanted.nodes):
            info = infos.get(node)
            if info is None:
                continue
            for allocation in self.all:
                if not self._short_of(info, node):
                    break
                if self._is_idle(allocation) and node in allocation.nodes:
                    await self.release(allocation)

    def _is_idle(self, allocation: KnownAllocation) -> bool:
        """Return whether it is idle *now*: a job may have taken it since it was listed."""
        return (
            allocation.job is None
            and not allocation.draining
            and self._allocations.get(allocation.name) is allocation
        )

    def _short_of(self, info: NodeInfo, node: str) -> bool:
        here = [
            allocation.shape
            for allocation in self._allocations.values()
            for at in allocation.nodes
            if at == node
        ]
        cpus, gpus, memory = self._foreign.get(node, (0.0, 0.0, 0.0))
        return (
            cpus + sum(shape.cpus for shape in here) > info.cpus + 1e-6
            or gpus + sum(shape.gpus for shape in here) > info.gpus + 1e-6
            or memory + sum(shape.memory for shape in here) > info.memory + 1e-6
        )

    def _note_removed(self, allocation: KnownAllocation, *, at_s: float | None = None) -> None:
        self._made_s.pop(allocation.name, None)
        removed_s = self._clock.monotonic_s() if at_s is None else at_s
        self._removed[allocation.name] = (removed_s, allocation)


def _foreign(node: NodeInfo, ours: list[Shape]) -> _Use:
    return (
        max(0.0, node.cpus - node.free_cpus - sum(shape.cpus for shape in ours)),
        max(0.0, node.gpus - node.free_gpus - sum(shape.gpus for shape in ours)),
        max(0.0, node.memory - node.free_memory - sum(shape.memory for shape in ours)),
    )


def _stand(
    capacities: Sequence[NodeCapacity], shape: Shape, growing: _Growing
) -> tuple[list[NodeCapacity], tuple[str, ...]]:
    """Return the capacities without those of the group's bundles, and where Ray would place these.

    Bundles without a possible node (their node type is gone) are not placed.
    """
    one = replace(shape, nodes=1, spread=False)
    fresh = replace(one, node_types=growing.types)
    left = {capacity.node_id: capacity for capacity in capacities}
    chosen: list[str] = []
    for node in growing.requested:
        used = {*chosen, *growing.requested} if shape.spread else set()
        fitting = [
            capacity
            for capacity in left.values()
            if (
                capacity.node_id == node
                if node
                else capacity.node_id not in {*growing.avoid, *used}
            )
        ]
        taken = take(fitting, one if node else fresh)
        if taken is not None:
            at = taken[1][0]
            left[at] = left[at].less(shape)
            chosen.append(at)
    return list(left.values()), tuple(chosen)
