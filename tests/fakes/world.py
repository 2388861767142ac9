"""An engine on a real store and a fake cluster, in which a test plays a scene."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from rayjobs.core.clock import SystemClock
from rayjobs.engine.board import Board
from rayjobs.engine.engine import Engine, TargetMachines
from rayjobs.engine.pending_nodes import PendingNodes
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from tests.fakes.cluster import FakeAgent, FakeCluster

DEADLINE_S = 90.0


class World:
    """One workspace, one fake cluster, one engine that runs."""

    def __init__(
        self,
        folder: Path,
        cluster: FakeCluster,
        *,
        growth: PendingNodes | None = None,
        lease_s: float | None = None,
    ) -> None:
        """Create an engine; with `growth` or `lease_s`, its nodes are separate machines."""
        self.growth = growth
        self.lease_s = lease_s
        self.folder = folder
        self.cluster = cluster
        self.store = SqlStore(folder / "store.db")
        # How the engine opens its store; a test may replace it.
        self.open: Callable[[], Store] = lambda: self.store
        # The same by path, for a workspace that is moved.
        self.open_at: Callable[[str], Store] = lambda _path: self.open()
        self.registrations = folder / "none"
        self.epoch: str | None = None
        self.engine = self._engine()
        self._task: asyncio.Task[None] | None = None

    def _engine(self) -> Engine:
        board = Board("local", self.registrations, lambda path: ("ws", self.open_at(path)))
        return Engine(
            "local",
            machines=TargetMachines(
                cluster=self.cluster,
                is_shared=self.growth is None and self.lease_s is None,
                pending_nodes=self.growth,
                lease_s=self.lease_s,
            ),
            board=board,
            clock=SystemClock(),
            epoch=self.epoch,
        )

    @property
    def agent(self) -> FakeAgent:
        return self.cluster.agents["node0"]

    async def start(self) -> None:
        await self.engine.board.add(str(self.folder))
        self._task = asyncio.ensure_future(self.engine.run())

    async def ended(self) -> None:
        """Wait until the engine has ended by itself."""
        assert self._task is not None
        async with asyncio.timeout(DEADLINE_S):
            await self._task

    async def crash(self) -> None:
        """Stop the engine at once, and lose its state in memory."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, *self.engine.attempts.cancel(), return_exceptions=True)

    async def restart(self) -> None:
        self.engine = self._engine()
        await self.start()

    def submit(self, **more: Any) -> Job:
        values: dict[str, Any] = {"script": "train.py", "name": "t"} | more
        job, _ = self.store.submit(
            NewJob(spec=JobSpec(**values), experiment="t", snapshot=None, user="u")
        )
        self.engine.wake()
        return job

    async def until(self, fact: Callable[[], Any], what: str = "") -> Any:
        end = time.monotonic() + DEADLINE_S
        while True:
            value = fact()
            if value:
                return value
            if time.monotonic() > end:
                jobs = [(job.id, job.state, job.reason) for job in self.store.jobs()]
                raise AssertionError(f"not true in time: {what or fact}; {jobs}")
            await asyncio.sleep(0.005)

    async def state(self, job: Job, state: JobState) -> Job:
        await self.until(lambda: self.store.job(job.id).state is state, f"{job.id} {state}")
        return self.store.job(job.id)

    async def launched(self, job: Job, attempt: int = 1) -> None:
        await self.launched_in(self.store, job, attempt)

    async def launched_in(self, store: SqlStore, job: Job, attempt: int = 1) -> None:
        await self.until(
            lambda: (
                ("follow", job.id, attempt) in self.agent.calls
                and store.job(job.id).state is JobState.RUNNING
            ),
            f"{job.id} launched",
        )


@contextlib.asynccontextmanager
async def world(
    folder: Path, *, growth: PendingNodes | None = None, lease_s: float | None = None, **size: Any
) -> AsyncIterator[World]:
    made = World(folder, FakeCluster(**size), growth=growth, lease_s=lease_s)
    await made.start()
    try:
        yield made
    finally:
        await made.crash()
        made.store.close()


Scene = Callable[[World], Awaitable[None]]


def play(scene: Scene, folder: Path, **size: Any) -> None:
    async def whole() -> None:
        async with world(folder, **size) as here:
            await scene(here)

    asyncio.run(whole())
