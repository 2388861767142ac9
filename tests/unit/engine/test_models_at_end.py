"""Models and the end of their run are atomic: a target crash neither loses nor duplicates one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import StoreBusyError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.models import requested
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.collected import Collected, RequestedModel
from rayjobs.protocol.settled import Settled
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import WorkspaceFiles
from tests.fakes.cluster import FakeAgent, exit_record
from tests.fakes.world import World, play

REQUEST = {
    "name": "m",
    "path": "outputs/m.pt",
    "file": "outputs/m.pt",
    "rank": 0,
    "why": "",
    "tags": {},
    "properties": {},
    "framework": "",
    "framework_version": "",
    "description": None,
}


def submit(here: World) -> Job:
    spec = JobSpec(script="train.py", name="t")
    job, _ = here.store.submit(
        NewJob(spec=spec, experiment="t", snapshot="sha256:" + "ab" * 32, user="ada")
    )
    here.engine.wake()
    return job


class Script:
    """Agents whose scripts leave one file and request that it becomes a model."""

    def __init__(self, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = here
        self.requests: list[dict[str, Any]] = [dict(REQUEST)]
        self.before_collect: Callable[[], Any] = asyncio.Event().set
        script, real = self, FakeAgent.collect

        async def collect(agent: FakeAgent, on: AttemptOnNode) -> Collected:
            waits = script.before_collect()
            if waits is not None:
                await waits
            script.publish(on.job, on.attempt)
            return replace(
                await real(agent, on), models=tuple(map(RequestedModel.from_json, script.requests))
            )

        monkeypatch.setattr(FakeAgent, "collect", collect)

    def publish(self, job: str, attempt: int) -> None:
        source = self.here.folder / "m.pt"
        source.write_bytes(b"weights")
        blob = FolderBlobs(WorkspaceFiles(self.here.folder).blobs).add_file(source)
        file = StoredFile(
            name="outputs/m.pt",
            attempt=attempt,
            size=blob.size,
            digest=blob.digest,
            blob=blob.key,
            stored_at=SystemClock().now(),
        )
        self.here.store.publish_files(job, attempt=attempt, files=[file])


def versions(here: World) -> list[tuple[str, int, int]]:
    return [(one.name, one.version, one.attempt) for one in here.store.models()]


class Stop:
    """Blocks the caller of a function before or after the call, in a thread, until released."""

    def __init__(self, real: Callable[..., Any], *, after: bool) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self.done = threading.Event()
        self._real, self._after = real, after

    def __call__(self, *given: Any, **more: Any) -> Any:
        try:
            result = self._real(*given, **more) if self._after else None
            self.reached.set()
            assert self.go.wait(100), "the test did not release the call"
            return result if self._after else self._real(*given, **more)
        finally:
            self.done.set()


@pytest.mark.parametrize("moment", ["collect", "prepare", "before the end", "after the end"])
@pytest.mark.long
def test_target_death_at_the_end_neither_loses_nor_duplicates_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    async def scene(here: World) -> None:
        script = Script(here, monkeypatch)
        stop = Stop(here.store.finish, after=moment == "after the end")
        collecting = asyncio.Event()
        with monkeypatch.context() as dying:
            if moment == "collect":

                def hang() -> Any:
                    collecting.set()
                    return asyncio.Event().wait()

                dying.setattr(script, "before_collect", hang)
            elif moment == "prepare":
                stop = Stop(requested.prepare, after=False)
                dying.setattr(requested, "prepare", stop)
            else:
                dying.setattr(here.store, "finish", stop)
            here.agent.instant = 0
            job = submit(here)
            await here.until(lambda: stop.reached.is_set() or collecting.is_set(), moment)
            await here.crash()
        try:
            is_written = moment == "after the end"
            assert versions(here) == ([("m", 1, 1)] if is_written else [])
            # The host has ended; the next target actor finds its exit record.
            record = exit_record(job.id, 1)
            here.agent.settled = Settled.of_record(record, proven=True, ended_now=False)
            await here.restart()
            await here.state(job, JobState.COMPLETED)
            assert versions(here) == [("m", 1, 1)]
        finally:
            stop.go.set()  # a delayed request may still arrive, and is refused
        if stop.reached.is_set():
            await here.until(stop.done.is_set, "the late call")
        assert versions(here) == [("m", 1, 1)]
        kinds = [one.kind for one in here.store.events(job.id)]
        assert kinds.count("model") == 1

    play(scene, tmp_path)


@pytest.mark.long
def test_an_attempt_that_fails_registers_nothing_and_its_retry_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        Script(here, monkeypatch)
        job = submit(here)
        await here.launched(job)
        here.agent.end(job.id, 1, outcome=Outcome.LEASE_LOST)
        await here.launched(job, attempt=2)
        assert versions(here) == []
        here.agent.end(job.id, 2, exit_code=0)
        await here.state(job, JobState.COMPLETED)
        assert versions(here) == [("m", 1, 2)]

    play(scene, tmp_path)


@pytest.mark.parametrize("how", ["failed", "canceled", "not stored"])
@pytest.mark.long
def test_a_run_that_does_not_complete_registers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("rayjobs.engine.attempt.record.STORE_PAUSE_S", 0.01)

    async def scene(here: World) -> None:
        Script(here, monkeypatch)
        job = submit(here)
        await here.launched(job)
        if how == "canceled":
            here.store.request_cancel(job.id)
        elif how == "not stored":
            here.agent.collect_problems = ["outputs/other: the disk is full."]
            here.agent.end(job.id, 1, exit_code=0)
        else:
            here.agent.end(job.id, 1, exit_code=1)
        await here.until(lambda: here.store.job(job.id).state.is_final)
        assert here.store.job(job.id).state is not JobState.COMPLETED
        assert versions(here) == []

    play(scene, tmp_path)


def test_a_model_that_is_refused_does_not_fail_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        script = Script(here, monkeypatch)
        gone = {**REQUEST, "name": "gone", "path": "outputs/g.pt", "file": "outputs/g.pt"}
        script.requests = [gone, dict(REQUEST)]
        here.agent.instant = 0
        job = await here.state(submit(here), JobState.COMPLETED)
        assert versions(here) == [("m", 1, 1)]
        assert job.reason.startswith("the model 'gone' of 'outputs/g.pt' was not registered: ")
        assert job.failure is None

    play(scene, tmp_path)


@pytest.mark.long
def test_busy_store_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, busy = SqlStore.metrics, 2

    def metrics(self: SqlStore, *given: Any, **more: Any) -> Any:
        nonlocal busy
        if busy:
            busy -= 1
            raise StoreBusyError("locked")
        return real(self, *given, **more)

    monkeypatch.setattr("rayjobs.engine.attempt.record.STORE_PAUSE_S", 0.01)
    monkeypatch.setattr(SqlStore, "metrics", metrics)

    async def scene(here: World) -> None:
        Script(here, monkeypatch)
        here.agent.instant = 0
        job = await here.state(submit(here), JobState.COMPLETED)
        assert (versions(here), job.reason, busy) == ([("m", 1, 1)], "", 0)

    play(scene, tmp_path)
