"""The target watches drivers: each open sweep has one, and a lost one is replaced."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.engine.board import Board
from rayjobs.engine.sweep_drivers import Drivers, resolve
from rayjobs.jobs.states import JobState
from tests.unit.tuning_driver.world import World

DEADLINE_S = 90.0


class Started:
    """Stands in for the starter of drivers; each one ends on request of the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.ends: list[Future[Any]] = []

    def __call__(self, workspace: str, parent: str, *, home: str, target: str) -> Future[Any]:
        self.calls.append((workspace, parent, home, target))
        self.ends.append(Future())
        return self.ends[-1]


async def until(fact: Callable[[], Any], look: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end
        await look()
        await asyncio.sleep(0.01)


async def board_of(world: World) -> Board:
    board = Board("local", world.folder / "none", lambda _path: ("ws", world.store))
    await board.add(str(world.workspace.path))
    return board


@pytest.mark.long
def test_a_sweep_gets_one_driver_and_a_lost_one_is_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        world, started, woken = World(tmp_path), Started(), [0]

        def wake() -> None:
            woken[0] += 1

        sweep = world.submit()
        board = await board_of(world)
        drivers = Drivers(
            "local",
            tmp_path,
            clock=SystemClock(),
            wake=wake,
            resolve=lambda name: {"rayjobs.tuning.driver_actor:start": started}[name],
        )

        async def look() -> None:
            await drivers.look(board)

        await until(lambda: started.calls, look)
        for _ in range(5):
            await look()
        assert started.calls == [(str(world.workspace.path), sweep, str(tmp_path), "local")]
        assert drivers.count == 1
        started.ends[0].set_exception(RuntimeError("The actor died.\nIts node was lost."))
        await until(lambda: len(started.calls) == 2, look)
        assert woken[0] >= 1
        [lost] = [e for e in world.store.events(sweep) if e.kind == "driver_lost"]
        assert lost.message == "its driver was lost and will be replaced: The actor died."
        world.finish(world.driver(sweep))
        started.ends[1].set_result("Completed")
        await until(lambda: drivers.count == 0, look)
        for _ in range(5):
            await look()
        assert len(started.calls) == 2  # nothing to drive any more
        world.close()

    asyncio.run(story())


def test_failing_driver_start_is_reported_in_the_sweep_history(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        sweep = world.submit()
        board = await board_of(world)
        drivers = Drivers(
            "local", tmp_path, clock=SystemClock(), resolve=lambda _: resolve("no.such.module:f")
        )

        def is_reported() -> bool:
            return any("no.such" in e.message or "'no'" in e.message for e in events())

        def events() -> list[Any]:
            return [e for e in world.store.events(sweep) if e.kind == "driver_lost"]

        await until(is_reported, lambda: drivers.look(board))
        assert world.store.job(sweep).state is JobState.RUNNING
        world.close()

    asyncio.run(story())


def test_names_of_drivers() -> None:
    found: object = resolve("json:dumps")
    assert found is json.dumps
    with pytest.raises(ValueError, match="not of the form module:function"):
        resolve("json")
