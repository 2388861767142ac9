"""The file system of one workspace's folder hangs: the other workspaces do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayjobs.engine import engine, folder_probe
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.workspace import registrations
from rayjobs.workspace.folder import open_workspace
from tests.fakes.world import World, play
from tests.support.passthrough import mounted

LONGEST_S = 20.0
MORE_THAN_THE_LOOPS_THREADS = 40


@contextmanager
def stopped(pid: int) -> Iterator[threading.Event]:
    """Stop a process; set the event and continue it if the caller hangs."""
    hung = threading.Event()

    def go_on() -> None:
        hung.set()
        os.kill(pid, signal.SIGCONT)

    timer = threading.Timer(LONGEST_S, go_on)
    os.kill(pid, signal.SIGSTOP)
    timer.start()
    try:
        yield hung
    finally:
        timer.cancel()
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "registered"])
def test_hanging_folder_delays_no_other_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    monkeypatch.setattr(folder_probe, "PROBE_S", 0.2)
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr(engine, "TIDY_S", 0.05)
    folder = tmp_path / "slow"
    open_workspace(folder).close()
    folder.rename(tmp_path / "source")
    other = SqlStore(tmp_path / "other.db")  # its records are elsewhere, as in PostgreSQL

    def submit() -> Job:
        spec = JobSpec(script="train.py", name="t")
        return other.submit(NewJob(spec=spec, experiment="t", snapshot=None, user="u"))[0]

    async def scene(here: World) -> None:
        await here.crash()
        here.open_at = lambda path: other if path == str(folder) else here.store
        here.registrations = tmp_path / "registrations"
        registrations.register(here.registrations, folder)
        here.engine = here._engine()
        if is_served:
            await here.start()
            job = submit()
            await here.launched_in(other, job)
        with stopped(file_system.pid) as hung:
            if not is_served:
                await here.start()
            board = here.engine.board
            await here.until(lambda: board.refused == {str(folder): "its folder does not answer"})
            calls = [
                asyncio.ensure_future(one.ask(folder.is_dir))
                for one in board.known
                for _ in range(MORE_THAN_THE_LOOPS_THREADS)
                if one.path == str(folder)
            ]
            mine = here.submit()
            await here.launched(mine)
            here.agent.end(mine.id, 1, exit_code=0)
            await here.state(mine, JobState.COMPLETED)
            assert not board.is_complete  # it may own groups that nothing else names
            assert not hung.is_set()
        assert all(await asyncio.gather(*calls))
        later = submit()
        await here.launched_in(other, later)
        assert not here.engine.board.refused
        if is_served:
            assert other.job(job.id).state is JobState.RUNNING
            assert other.job(job.id).attempt == 1

    with mounted(tmp_path / "source", folder) as file_system:
        play(scene, tmp_path)
    other.close()
