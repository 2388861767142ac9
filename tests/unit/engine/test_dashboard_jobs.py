"""Ray's list of jobs follows the queue: the listed jobs, their number, and their owner."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.engine import dashboard_jobs
from rayjobs.engine.board import QueueView, Served
from rayjobs.engine.dashboard_jobs import DashboardJobs
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Job
from rayjobs.jobs.run_filter import STEP_OF
from rayjobs.jobs.states import JobState
from rayjobs.protocol.ray_jobs import Shown, UnsupportedRayError
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob, NewPipeline, NewStep
from rayjobs.store.sql import SqlStore


class Records:
    """Ray's job records in memory; counts what is written."""

    def __init__(self) -> None:
        self.kept: dict[str, Shown] = {}
        self.puts: list[str] = []
        self.primed: list[tuple[str, ...]] = []
        self.manager_starts = True
        self.error: Exception | None = None

    async def prime(self, node_ids: Iterable[str]) -> bool:
        self.primed.append(tuple(node_ids))
        starts, self.manager_starts = self.manager_starts, False
        return starts

    async def entries(self) -> dict[str, Shown]:
        return dict(self.kept)

    async def statuses(self, jobs: Iterable[str]) -> dict[str, str | None]:
        return {job: self.kept[job].status if job in self.kept else None for job in jobs}

    async def put(self, job: str, shown: Shown) -> None:
        if self.error is not None:
            raise self.error
        self.puts.append(job)
        self.kept[job] = shown

    async def delete(self, job: str) -> None:
        self.kept.pop(job, None)


class Turned(SystemClock):
    """A clock that a test advances."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self.ahead_s


class Scene:
    """A store, its view, and a list of jobs that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqlStore(folder / "store.db")
        self.records = Records()
        self.clock = Turned()
        self.served = Served(str(folder), "ws", self.store)
        self.view = QueueView(self.served, "local")
        self.jobs = self.new()

    def new(self) -> DashboardJobs:
        return DashboardJobs("local", lambda: self.records, self.clock)

    def submit(self, **more: Any) -> Job:
        values: dict[str, Any] = {"script": "train.py", "name": "t"} | more
        job, _ = self.store.submit(
            NewJob(spec=JobSpec(**values), experiment="e", snapshot=None, user="ann")
        )
        return job

    def start(self, job: Job) -> Job:
        name = f"rj-local-{job.id}"
        self.store.add_allocation(name, target="local", shape={"nodes": 1})
        attempt = self.store.start(job.id, attempt=job.attempt, allocation=name)
        assert attempt is not None
        for old, new in (
            (JobState.PROVISIONING, JobState.PREPARING),
            (JobState.PREPARING, JobState.RUNNING),
        ):
            self.store.move(job.id, attempt=attempt.number, old=old, new=new)
        hosts = [HostRecord(node=0, node_id="node0")]
        self.store.set_hosts(job.id, attempt=attempt.number, hosts=hosts, cold_reason=None)
        return self.store.job(job.id)

    def complete(self, job: Job) -> None:
        self.store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING)
        self.store.finish(job.id, attempt=1, state=JobState.COMPLETED, outcome=Outcome.COMPLETED)

    async def step(self, seconds: float = 10.0) -> None:
        self.clock.ahead_s += seconds
        await self.view.look()
        self.jobs.look([self.view], None, ["node0"])
        await self.jobs.settled()

    def shown(self, job: Job) -> Shown:
        return self.records.kept[job.id]


def play(folder: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    here = Scene(folder)
    try:
        asyncio.run(scene(here))  # type: ignore[arg-type]
    finally:
        here.store.close()


def test_a_job_is_listed_from_its_submission_to_its_end(tmp_path: Path) -> None:
    async def scene(here: Scene) -> None:
        job = here.submit(arguments=("--lr", "0.1 or so"), name="digits")
        await here.step()
        waiting = here.shown(job)
        assert waiting.status == "PENDING"
        assert waiting.entrypoint == "train.py --lr '0.1 or so'"
        assert waiting.start_ms == int(job.submitted_at.timestamp() * 1000)
        assert waiting.metadata["experiment"] == "e"
        assert waiting.metadata["user"] == "ann"
        job = here.start(job)
        await here.step()
        running = here.shown(job)
        assert (running.status, running.node_id, running.end_ms) == ("RUNNING", "node0", None)
        assert running.metadata["attempt"] == "1"
        failure = Failure(FailureClass.USER, "rank 0 exited with code 3", exit_code=3)
        here.store.finish(
            job.id,
            attempt=1,
            state=JobState.FAILED,
            outcome=Outcome.FAILED,
            reason=failure.message,
            failure=failure,
        )
        await here.step()
        ended = here.shown(job)
        assert (ended.status, ended.message, ended.exit_code) == ("FAILED", failure.message, 3)
        assert ended.end_ms is not None
        assert ended.node_id == "node0"  # where its log is served

    play(tmp_path, scene)


def test_a_job_that_ended_between_two_updates_is_listed_with_the_node_of_its_log(
    tmp_path: Path,
) -> None:
    async def scene(here: Scene) -> None:
        job = here.start(here.submit())
        here.complete(job)
        await here.step()
        assert here.shown(job).status == "SUCCEEDED"
        assert here.shown(job).node_id == "node0"

    play(tmp_path, scene)


def test_the_parent_of_a_step_is_its_pipeline(tmp_path: Path) -> None:
    async def scene(here: Scene) -> None:
        spec = JobSpec(script="train.py", name="t")
        step = NewStep(
            number=0, name="t", job="t_1_0000000a", spec=spec, properties={STEP_OF: "p_1_0000000b"}
        )
        run, _ = here.store.put_pipeline(
            NewPipeline(
                name="p",
                base=spec,
                definition={},
                parameters={},
                steps=(step,),
                experiment="e",
                user="ann",
                id="p_1_0000000b",
            )
        )
        await here.step()
        metadata = here.shown(here.store.job(step.job)).metadata
        assert metadata["pipeline"] == run.job.id
        assert "sweep" not in metadata

    play(tmp_path, scene)


@pytest.mark.long
def test_the_same_job_in_a_copied_workspace_does_not_hide_the_others(tmp_path: Path) -> None:
    """Both workspaces have both jobs; the waiting one is canceled only in the copy."""

    async def scene(here: Scene) -> None:
        ended, waiting = here.start(here.submit()), here.submit()
        here.complete(ended)
        here.store.close()
        copy = tmp_path / "copy"
        shutil.copytree(here.folder, copy)
        here.store = SqlStore(here.folder / "store.db")
        here.served = Served(str(here.folder), "ws", here.store)
        there = SqlStore(copy / "store.db")
        views = [
            QueueView(Served(str(copy), "ws2", there), "local"),
            QueueView(here.served, "local"),
        ]
        there.request_cancel(waiting.id)
        here.clock.ahead_s += 10.0
        for view in views:
            await view.look()
        here.jobs.look(views, None, ["node0"])
        await here.jobs.settled()
        there.close()
        assert here.shown(ended).status == "SUCCEEDED"
        assert here.shown(waiting).status == "PENDING"

    (tmp_path / "w").mkdir()
    play(tmp_path / "w", scene)


def test_long_queue_is_listed_up_to_a_bound_and_costs_nothing_when_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: take every waiting job in `_wanted`."""
    monkeypatch.setattr(dashboard_jobs, "MOST_WAITING", 5)

    async def scene(here: Scene) -> None:
        jobs = [here.submit() for _ in range(40)]
        await here.step()
        assert set(here.records.kept) == {job.id for job in jobs[-5:]}
        for _ in range(5):
            await here.step()
        assert len(here.records.puts) == 5
        running = here.start(jobs[0])
        await here.step()
        assert here.shown(running).status == "RUNNING"

    play(tmp_path, scene)


@pytest.mark.long
def test_ended_jobs_are_listed_up_to_a_bound_and_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_jobs, "MOST_ENDED", 3)

    async def scene(here: Scene) -> None:
        long = here.start(here.submit())
        for _ in range(6):
            job = here.start(here.submit())
            await here.step()
            here.complete(job)
            await here.step()
        here.complete(long)
        await here.step()
        assert len(here.records.kept) == 3
        assert here.shown(long).status == "SUCCEEDED"  # the oldest by number, the newest by its end

    play(tmp_path, scene)


def test_job_marked_failed_by_ray_is_written_again(tmp_path: Path) -> None:
    """Off switch: leave out `_forget_what_was_changed`."""

    async def scene(here: Scene) -> None:
        job = here.start(here.submit())
        await here.step()
        right = here.shown(job)
        here.records.kept[job.id] = Shown("", "FAILED", "failed to get job supervisor", 0)
        await here.step()
        assert here.shown(job) == right

    play(tmp_path, scene)


def test_records_are_removed_with_jobs_and_taken_over_by_a_new_actor(
    tmp_path: Path,
) -> None:
    """Off switch: begin with nothing written instead of `entries()`."""

    async def scene(here: Scene) -> None:
        kept = here.submit()
        await here.step()
        here.records.kept["gone_1"] = Shown("x", "RUNNING", "", 0)
        here.records.manager_starts = True
        here.jobs = here.new()
        await here.step()
        assert set(here.records.kept) == {kept.id}
        job = here.start(kept)
        here.complete(job)
        await here.step()
        here.store.prune_records([job.id])
        await here.step()
        assert here.records.kept == {}

    play(tmp_path, scene)


def test_a_new_head_gets_every_job_again(tmp_path: Path) -> None:
    async def scene(here: Scene) -> None:
        ended = here.start(here.submit())
        here.complete(ended)
        waiting = here.submit()
        await here.step()
        here.records = Records()
        here.jobs = here.new()
        await here.step()
        assert set(here.records.kept) == {ended.id, waiting.id}

    play(tmp_path, scene)


def test_nothing_is_written_before_the_job_managers_have_started(tmp_path: Path) -> None:
    async def scene(here: Scene) -> None:
        here.records.manager_starts = False
        here.submit()
        await here.step(5.0)
        assert here.records.kept == {}
        await here.step(dashboard_jobs.AGENTS_WAIT_S)  # the wait for the managers is over
        assert len(here.records.kept) == 1

    play(tmp_path, scene)


def test_ray_without_the_interface_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Records:
        raise UnsupportedRayError("Ray 9.9 stores job records in another form")

    async def scene(here: Scene) -> None:
        here.jobs = DashboardJobs("local", refuse, here.clock)
        here.submit()
        with caplog.at_level(logging.WARNING, "rayjobs.engine.dashboard_jobs"):
            for _ in range(3):
                await here.step()
        assert [one.getMessage() for one in caplog.records] == [
            "jobs are not shown on the Ray dashboard: Ray 9.9 stores job records in another form"
        ]

    play(tmp_path, scene)


def test_failing_control_service_is_reported_once_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(here: Scene) -> None:
        job = here.submit()
        here.records.error = OSError("it is busy")
        with caplog.at_level(logging.WARNING, "rayjobs.engine.dashboard_jobs"):
            for _ in range(3):
                await here.step(20.0)
        assert len(caplog.records) == 1
        here.records.error = None
        await here.step(20.0)
        assert here.shown(job).status == "PENDING"

    play(tmp_path, scene)
