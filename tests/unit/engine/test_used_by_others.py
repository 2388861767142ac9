"""The use of nodes by other programs, while rayjobs makes and removes groups all the time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from rayjobs.core.clock import Clock
from rayjobs.engine.allocations import SETTLE_S, Allocations, KnownAllocation
from rayjobs.engine.board import Served
from rayjobs.policy import Shape
from rayjobs.protocol.agent import Cluster, NodeInfo
from tests.unit.engine.test_lost_nodes import TurnedClock

SHAPE = Shape(cpus=1.0)


class Groups:
    """A cluster that makes and removes any group."""

    async def nodes(self) -> list[NodeInfo]:
        return []

    async def create_group(self, _name: str, _shape: Shape, nodes: Any, **_more: Any) -> Any:
        return tuple(nodes)

    async def gpu_ids(self, *_arguments: Any) -> tuple[tuple[str, ...], ...]:
        return ((),)

    async def remove_group(self, _name: str) -> None:
        return None


async def ask(_function: Any, *_arguments: Any, **_named: Any) -> None:
    """Accept any write to the store."""


def node(*, free_cpus: float) -> NodeInfo:
    """A node with 8 CPUs, as Ray describes it."""
    return NodeInfo("n", "10.0.0.1", 8.0, 0.0, 0.0, free_cpus, 0.0, 0.0)


class Scene:
    """The allocations of a target on one node."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.served = cast(Served, SimpleNamespace(path="/w", store=_AnyStore(), ask=ask))
        self.allocations = Allocations("t", cast(Cluster, Groups()), cast(Clock, self.clock))

    async def make(self, shape: Shape = SHAPE) -> KnownAllocation:
        reserved = self.allocations.reserve_new(self.served, shape, "/w::j", ("n",))
        return await self.allocations.create(reserved)

    def free(self, *, ray_says: float) -> float:
        """What the policy may use."""
        (capacity,) = self.allocations.capacities([node(free_cpus=ray_says)])
        return capacity.free_cpus


class _AnyStore:
    def __getattr__(self, name: str) -> str:
        return name


def test_many_short_jobs_do_not_hide_the_use_by_others() -> None:
    """Off switch: the use by others is measured only while no group changes."""

    async def scene() -> None:
        here = Scene()
        lasting = await here.make()
        for _ in range(4):
            here.clock.at += SETTLE_S / 2  # a group changes more often than Ray's figures settle
            short = await here.make()
            # Other programs use 3 CPUs, and the lasting job one.
            seen = here.free(ray_says=8.0 - 3.0 - 1.0)
            await here.allocations.release(short)
        assert seen == 8.0 - 2.0 - 1.0 - 1.0  # one of the 3 may be that of the group just made
        here.clock.at += SETTLE_S + 0.1
        assert here.free(ray_says=4.0) == 4.0
        await here.allocations.release(lasting)

    asyncio.run(scene())


def test_figures_of_ray_that_lag_behind_are_not_the_use_by_others() -> None:
    """Off switch: a group counts as it is now, whatever Ray's figures are from."""

    async def scene() -> None:
        here = Scene()
        made = await here.make()
        assert here.free(ray_says=8.0) == 7.0  # Ray does not report the group yet
        here.clock.at += SETTLE_S + 0.1
        assert here.free(ray_says=7.0) == 7.0
        await here.allocations.release(made)
        assert here.free(ray_says=7.0) == 8.0  # it still reports the removed group
        here.clock.at += SETTLE_S + 0.1
        assert here.free(ray_says=7.0) == 7.0  # by now, another program uses the CPU

    asyncio.run(scene())


def test_use_by_others_that_has_ended_is_free_again() -> None:
    async def scene() -> None:
        here = Scene()
        here.clock.at += SETTLE_S + 0.1
        assert here.free(ray_says=2.0) == 2.0
        made = await here.make()
        assert here.free(ray_says=2.0) == 1.0  # the other program's use is known exactly
        assert here.free(ray_says=8.0) == 7.0
        await here.allocations.release(replace(made))

    asyncio.run(scene())


def test_idle_group_makes_room_on_a_node_that_others_use() -> None:
    """Off switch: only rayjobs' own groups count; the start waits until the idle group is old."""

    async def scene() -> None:
        here = Scene()
        four, three = replace(SHAPE, cpus=4.0), replace(SHAPE, cpus=3.0)
        idle = await here.make(four)
        here.clock.at += SETTLE_S + 0.1
        assert here.free(ray_says=0.0) == 0.0  # another program uses the other half
        await here.allocations.give_back(idle, attempt=1, job="j", proven=True)
        assert here.free(ray_says=0.0) == 4.0
        here.allocations._cluster.nodes = nodes  # type: ignore[method-assign]
        made = await here.make(three)
        assert [one.name for one in here.allocations.all] == [made.name]

    async def nodes() -> list[NodeInfo]:
        return [node(free_cpus=0.0)]

    asyncio.run(scene())
