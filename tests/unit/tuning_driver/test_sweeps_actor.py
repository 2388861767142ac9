"""The process that drives a target's sweeps: several at once; it ends when it is idle."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.jobs.states import JobState
from rayjobs.tuning import driver_actor
from rayjobs.tuning.driver_actor import DRIVER_EVENT, SweepsActor
from tests.unit.tuning_driver.world import World

DEADLINE_S = 120.0


class TurnedClock(SystemClock):
    """A clock whose monotonic time changes only when the test advances it."""

    seconds = 1000.0

    def monotonic_s(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A workspace whose target works on a separate thread."""
    world = World(tmp_path)
    ended = threading.Event()

    def play() -> None:
        while not ended.wait(0.01):
            world.play()

    target = threading.Thread(target=play, daemon=True)
    target.start()
    yield world
    ended.set()
    target.join(DEADLINE_S)
    world.close()


def actor_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None
) -> SweepsActor:
    monkeypatch.setenv("RAYJOBS_HOME", str(folder))
    monkeypatch.setattr(driver_actor, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(driver_actor, "wake", lambda *_, **__: None)
    return SweepsActor(str(folder), "local", clock)


@pytest.mark.long
def test_sweeps_are_driven_at_the_same_time_and_each_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = actor_in(tmp_path / "home", monkeypatch)
    path = str(world.workspace.path)
    first, second = world.submit(begun=False), world.submit(begun=False)

    async def story() -> list[str]:
        # Two target actors, one of which replaced the other, request the first sweep.
        runs = [actor.run(path, sweep) for sweep in (first, second, first)]
        return await asyncio.gather(*runs)

    assert asyncio.run(story()) == ["Completed"] * 3
    for sweep in (first, second):
        assert world.store.job(sweep).state is JobState.COMPLETED
        kinds = [event.kind for event in world.store.events(sweep)]
        assert kinds.count(DRIVER_EVENT) == 1


@pytest.mark.long
def test_waiting_caller_gets_the_error_and_other_sweeps_continue(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = actor_in(tmp_path / "home", monkeypatch)
    sweep = world.submit(begun=False)

    async def story() -> list[object]:
        runs = (
            actor.run(str(tmp_path / "nowhere"), "s"),
            actor.run(str(world.workspace.path), sweep),
        )
        return list(await asyncio.gather(*runs, return_exceptions=True))

    fault, state = asyncio.run(story())
    assert "nowhere" in str(fault)
    assert state == "Completed"


@pytest.mark.long
def test_vanished_caller_ends_no_driver(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = actor_in(tmp_path / "home", monkeypatch)
    path, sweep = str(world.workspace.path), world.submit(begun=False)

    async def story() -> str:
        gone = asyncio.ensure_future(actor.run(path, sweep))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await actor.run(path, sweep)

    assert asyncio.run(story()) == "Completed"
    kinds = [event.kind for event in world.store.events(sweep)]
    assert kinds.count(DRIVER_EVENT) == 1


def test_idle_process_ends_but_held_or_busy_one_does_not(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(driver_actor, "IDLE_POLL_S", 0)
    clock = TurnedClock()
    actor = actor_in(tmp_path / "home", monkeypatch, clock)
    sweep = world.submit(begun=False)
    ended = threading.Event()
    monkeypatch.setattr(driver_actor, "drive", lambda *_, **__: str(ended.wait(DEADLINE_S)))

    async def looks() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def story() -> None:
        assert await actor.hold() == os.getpid()
        clock.advance(driver_actor.LINGER_S - 1)
        await looks()
        assert left == []  # held
        running = asyncio.ensure_future(actor.run(str(world.workspace.path), sweep))
        await looks()
        clock.advance(10 * driver_actor.LINGER_S)
        await looks()
        assert left == []  # at work
        ended.set()
        assert await running == "True"
        await looks()
        assert left == []  # another sweep may come
        clock.advance(driver_actor.LINGER_S + 1)
        assert actor._leaving is not None
        await actor._leaving

    asyncio.run(story())
    assert left == [0]
