"""Simulated nodes on separate machines, which are lost, frozen, cut off, and return."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rayjobs.injob.lease import Lease
from rayjobs.injob.outcomes import EndCause, Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.node.ends import Fence
from rayjobs.node.leases import require
from rayjobs.policy import Shape
from rayjobs.protocol.agent import AgentLostError, NotPlacedError
from rayjobs.protocol.attempts import AttemptOnNode
from tests.simulation.boxes import Box
from tests.simulation.nodes import Host, Machine

Later = Coroutine[Any, Any, None]
LEASE_S = 20.0
# The longest outages of a machine, one chosen at random; Ray gives up a node within GIVEN_UP_S,
# which is before its lease is over.
AWAY_S = (1.0, 20.0, 60.0, 60.0)
GIVEN_UP_S = 10.0
# The share of these calls during which their machine freezes or is cut off.
MEETS = {"launch": 0.15, "renew": 0.01}
# How often a host checks its clocks.
TICK_S = 0.5


class Machines(Machine):
    """One box for each node; boxes share nothing but Ray."""

    lease_s = LEASE_S
    longest_s = 60.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        *,
        nodes: int,
        cpus: float,
        gpus: int,
        calm_at_s: float,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(loop, rng, nodes=0, cpus=cpus, gpus=gpus)
        self._size = (cpus, float(gpus))
        self.calm_at_s = calm_at_s
        self._note = note
        self._ids = 0
        self._box: Box | None = None  # whose boot clock is read
        self._where: dict[str, tuple[Box, int]] = {}
        self._at: dict[str, tuple[Box, int]] = {}  # marker → where its host is
        self._tasks: set[asyncio.Task[None]] = set()
        self.boxes = [Box(f"10.0.0.{number + 1}", rng.random() * 1e6) for number in range(nodes)]
        for box in self.boxes:
            self._join(box)

    def boot_clock_s(self) -> float:
        """Return the boot clock of the box that `asks` has named."""
        assert self._box is not None
        return self.loop.time() + self._box.clock_s

    def asks(self, box: Box) -> None:
        """Select the box whose boot clock is read next."""
        self._box = box

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what Ray knows ------------------------------------------------------------------------
    def _join(self, box: Box) -> None:
        """Start a raylet on a box, and register it as a new node."""
        box.starts += 1
        box.raylet = box.starts
        self._ids += 1
        box.node = f"node{self._ids}"
        self._where[box.node] = (box, box.raylet)
        self.sizes[box.node] = self._size
        self.agents[box.node] = 0
        box.change()

    def _delist(self, node: str) -> None:
        """Let Ray declare a node dead, and move its bundles to nodes with capacity."""
        if self.sizes.pop(node, None) is None:
            return
        self._note(f"Ray gives up {node}")
        del self.agents[node]
        for name, (shape, at, _) in list(self.groups.items()):
            if node not in at:
                continue
            del self.groups[name]
            kept = [one for one in at if one != node]
            for other in (*self.sizes, None):
                try:
                    self.make_group(name, shape, [*kept, other] if other else kept)
                    break
                except NotPlacedError:
                    continue
        self._where[node][0].change()

    def _end_raylet(self, box: Box) -> None:
        """End the raylet of a box, and its agents."""
        box.raylet = 0
        box.change()

    # -- what the target sees ------------------------------------------------------------------
    @property
    def shares_machine(self) -> bool:
        """See `Machine`."""
        return False

    def address(self, node: str) -> str:
        """See `Machine`."""
        return self._where[node][0].name

    def gpu_name(self, node: str, index: int) -> str:
        """See `Machine`: named after the box, which may be several nodes of Ray in turn."""
        return f"{self.address(node)}/{index}"

    def fence_of(self, node: str) -> Fence:
        """See `Machine`."""
        return self._where[node][0].fence

    def host_on(self, node: str, marker: str) -> Host | None:
        """See `Machine`: an agent sees what is on its box."""
        box, _ = self._at.get(marker, (None, 0))
        return self.hosts.get(marker) if box is self._where[node][0] else None

    def raylet_is_gone(self, node: str) -> bool:
        """See `Machine`: a responding box reports it."""
        box, raylet = self._where[node]
        answers = box.is_up and box.frozen_s is None and not box.is_cut
        return node not in self.sizes and answers and box.raylet != raylet

    def is_doubted(self, node: str) -> bool:
        """See `Machine`."""
        box, raylet = self._where[node]
        answers = box.is_up and box.frozen_s is None and not box.is_cut
        return node in self.doubted and answers and box.raylet != raylet

    async def _wait(self, box: Box) -> None:
        await box.changed.wait()

    async def reach(self, node: str) -> None:
        """See `Machine`."""
        box, raylet = self._where[node]
        while True:
            if node not in self.sizes or box.raylet != raylet:
                raise AgentLostError("the node is not there any more")
            if box.is_sound:
                return
            await self._wait(box)

    async def runs(self, node: str) -> bool:
        """See `Machine`: a node that Ray considers dead runs until its raylet learns of it."""
        box, raylet = self._where[node]
        while box.raylet == raylet:
            if box.is_sound:
                return True
            await self._wait(box)
        return False

    async def answered(self, node: str, work: asyncio.Future[Any]) -> Any:
        """See `Machine`."""
        box, raylet = self._where[node]
        while not work.done():
            if node not in self.sizes or box.raylet != raylet:
                raise AgentLostError("the node is not there any more")
            changed = asyncio.ensure_future(box.changed.wait())
            try:
                await asyncio.wait({work, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        await self.reach(node)
        return work.result()

    async def list_agent(self, node: str) -> None:
        """See `Machine`; an ended raylet counts as listed until Ray detects its end."""
        box, raylet = self._where[node]
        while node in self.sizes and not self.is_doubted(node):
            if box.is_sound and box.raylet == raylet:
                return
            await self._wait(box)
        raise AgentLostError("the node is not among the living")

    async def places(self, nodes: Sequence[str]) -> None:
        """See `Machine`."""
        try:
            async with asyncio.timeout(30.0):
                for node in nodes:
                    await self.list_agent(node)
        except (TimeoutError, AgentLostError) as error:
            raise NotPlacedError("a node is not there") from error

    # -- hosts ---------------------------------------------------------------------------------
    def begin(
        self,
        on: AttemptOnNode,
        node_id: str,
        shape: Shape,
        gpus: tuple[str, ...],
        lease: Lease | None,
    ) -> None:
        """See `Machine`: the host has a lease, and watches the raylet on its box."""
        box, raylet = self._where[node_id]
        self._at[on.marker] = (box, raylet)
        assert lease is not None
        self.asks(box)
        require(lease)
        if node_id not in self.sizes:
            box.troubles.append(self.loop.time())  # its start is not reported
        host = self.drawn(on, node_id, shape, gpus)
        host.lease = Lease(lease.lease_s, since_s=lease.since_s)
        self._spawn(self._live(host, box, raylet))

    async def _live(self, host: Host, box: Box, raylet: int) -> None:
        """Run a host's ranks to their end, and check its clocks."""
        assert host.lease is not None
        left_s, limit = host.ends_at - host.began_at, host.on.max_duration_s
        while host.is_alive:
            now = self.loop.time()
            tick_s = min(TICK_S, left_s)
            if limit is not None:
                tick_s = min(tick_s, max(0.0, host.began_at + limit - now))
            await asyncio.sleep(tick_s)
            ran_s = (box.frozen_s or self.loop.time()) - now
            frozen_s = await self._thawed(box)
            host.frozen_s += self.loop.time() - (frozen_s or self.loop.time())
            left_s -= ran_s
            if _has_ended(host):
                return
            self.asks(box)
            why = host.lease.why_over()
            if why is None and box.raylet != raylet:
                why = "raylet has ended"
            if why is not None:
                grace_s = host.lease.end_grace_s(host.on.grace_s)
                grace_s *= self.rng.random()
                await asyncio.sleep(grace_s)
                frozen_s = await self._thawed(box) or (frozen_s if grace_s == 0 else None)
                self.end(host, at_s=frozen_s, outcome=Outcome.LEASE_LOST, signal=15, reason=why)
            elif limit is not None and self.loop.time() >= host.began_at + limit:
                self.end(host, at_s=frozen_s, outcome=Outcome.TIME_LIMIT, signal=15)
            elif left_s <= 1e-6:
                self.by_itself(host)

    async def _thawed(self, box: Box) -> float | None:
        """Wait until a box runs; return since when it was frozen, None if it was not."""
        since_s = box.frozen_s
        while box.frozen_s is not None:
            await self._wait(box)
        return since_s

    def kill(self, host: Host) -> None:
        """See `Machine`; the ranks of a frozen box ran until it froze."""
        box, _ = self._at[host.on.marker]
        was_alive = host.is_alive
        super().kill(host)
        if was_alive and box.frozen_s is not None:
            host.ended_at = box.frozen_s

    def stop(self, host: Host, *, after_s: float, cause: EndCause) -> None:
        """See `Machine`."""
        self._spawn(self._stop(host, after_s, cause))

    async def _stop(self, host: Host, after_s: float, cause: EndCause) -> None:
        box, _ = self._at[host.on.marker]
        await asyncio.sleep(after_s)
        if await self._thawed(box) is not None:
            await asyncio.sleep(TICK_S)
        self.end(host, signal=15, cause=cause)

    def clock_s(self, node: str) -> float | None:
        """See `Machine`."""
        self.asks(self._where[node][0])
        return self.boot_clock_s()

    def starting(self, node: str, plan: LaunchPlan) -> AbstractContextManager[Lease | None]:
        """See `Machine`."""
        box, _ = self._where[node]
        self.asks(box)
        return box.launching.starting(plan)

    def renew(self, node: str, marker: str, stamp: float | None) -> float | None:
        """See `Machine`; the same as `NodeService._renew`."""
        box, _ = self._where[node]
        self.asks(box)
        answer = box.launching.renew(marker, stamp)
        host = self.host_on(node, marker)
        if answer is not None or host is None or not host.is_alive:
            return answer
        assert host.lease is not None
        return host.lease.renew(stamp)

    def was_reachable(self, host: Host) -> bool:
        """Whether a host's box had no fault between its start and the report of its end."""
        box, _ = self._at[host.on.marker]
        assert host.ended_at is not None
        return not any(host.began_at - 5 <= at <= host.ended_at + 30 for at in box.troubles)

    # -- faults --------------------------------------------------------------------------------
    def harm(self) -> None:
        """Inject a random fault into a box that has none."""
        sound = [box for box in self.boxes if box.is_sound and box.node in self.sizes]
        if not sound:
            return
        harms = (self._power_off, self._raylet_dies, self._freeze, self._cut_off)
        self._harm(self.rng.choice(sound), self.rng.choice(harms))

    async def travel(self, node: str, call: str) -> None:
        """See `Machine`: the call may take effect when no task waits for it any longer."""
        box, _ = self._where[node]
        is_there = box.is_sound and node in self.sizes and self.loop.time() < self.calm_at_s
        if is_there and self.rng.random() < MEETS[call]:
            self._harm(box, self.rng.choice((self._freeze, self._cut_off)))
        await asyncio.sleep(self.rng.random() * 0.02)

    def _harm(self, box: Box, what: Callable[[Box], Later]) -> None:
        box.troubles.append(self.loop.time())
        self._note(f"{box.node} at {box.name}: {what.__name__}")
        later = what(box)
        box.change()
        self._give_up(box)
        self._spawn(later)

    def _give_up(self, box: Box) -> None:
        node = box.node
        after_s = self.rng.uniform(0.2, GIVEN_UP_S)

        async def later() -> None:
            await asyncio.sleep(after_s)
            if not (box.is_sound and box.node == node):
                self._delist(node)

        self._spawn(later())

    # Each of these injects its fault at once, and returns the recovery.
    def _power_off(self, box: Box) -> Later:
        box.is_up = False
        for host in self.history:
            if self._at[host.on.marker][0] is box:
                self.kill(host)
        box.fence = Fence()
        return self._raylet_dies(box)

    def _raylet_dies(self, box: Box) -> Later:
        self._end_raylet(box)
        return self._up_again(box)

    async def _up_again(self, box: Box) -> None:
        await asyncio.sleep(self.rng.uniform(0.5, 30.0))
        box.is_up = True
        self._join(box)

    def _freeze(self, box: Box) -> Later:
        box.frozen_s = self.loop.time()
        return self._recover(box)

    def _cut_off(self, box: Box) -> Later:
        box.is_cut = True
        return self._recover(box)

    async def _recover(self, box: Box) -> None:
        await asyncio.sleep(self.rng.random() * self.rng.choice(AWAY_S))
        box.frozen_s, box.is_cut = None, False
        box.change()
        await self._back(box)

    async def _back(self, box: Box) -> None:
        """Let a raylet learn that Ray considers it dead: it ends, and another one starts."""
        raylet = box.raylet
        if box.node in self.sizes:
            return
        await asyncio.sleep(self.rng.random() * 1.5)
        if box.raylet != raylet:
            return  # the whole cluster was restarted meanwhile
        self._end_raylet(box)
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        self._join(box)

    def restart_ray(self) -> None:
        """See `Machine`: each box that runs gets a new raylet and a new node id."""
        self.generation += 1
        self.groups.clear()
        for node in list(self.sizes):
            del self.sizes[node]
            del self.agents[node]
            box, raylet = self._where[node]
            box.troubles.append(self.loop.time())
            box.change()
            if box.raylet == raylet:
                self._spawn(self._rejoin(box))

    async def _rejoin(self, box: Box) -> None:
        raylet = box.raylet
        await asyncio.sleep(self.rng.random() * 3.0)
        if box.raylet == raylet and box.is_sound:
            self._end_raylet(box)
            self._join(box)


def _has_ended(host: Host) -> bool:
    """Check again: the host may have ended while the caller waited."""
    return not host.is_alive
