"""A target stores the files that a job left on its node when a user requests it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError
from rayjobs.engine import late_stores
from rayjobs.engine.attempt import ending, record
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.calls import StoreProgress
from rayjobs.protocol.collected import Collected
from rayjobs.target.answers import StoreAnswer
from tests.fakes.world import World, play

OUTPUT = {"made": {"destination": "photos/made"}}
AWAY = "output made: http://photos refused."


async def failed_for_its_storage(here: World, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job that failed because its storage stayed unavailable."""
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.001)
    monkeypatch.setattr(ending, "OUTAGE_S", 0.0)

    async def collect(_: AttemptOnNode) -> Collected:
        return Collected(tails={0: b""}, problems=(AWAY,), outage=AWAY)

    here.agent.collect = collect  # type: ignore[assignment,method-assign]
    here.agent.instant = 0
    job = await here.state(here.submit(outputs=OUTPUT), JobState.FAILED)
    assert job.failure is not None
    assert f"`rayjobs store {job.id}` stores the outputs" in job.failure.message
    await here.until(lambda: not here.engine.attempts)
    return job


def test_remaining_outputs_are_stored_once_and_the_job_stays_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        job = await failed_for_its_storage(here, monkeypatch)
        (served,) = here.engine.board.served
        answers = [
            Collected(problems=(AWAY,)),
            Collected(data=DataFacts(refused=("output made: other files are there.",))),
            Collected(stuck="collecting x has made no progress for 3m"),
            Collected(),
        ]
        asked: list[AttemptOnNode] = []

        async def store_late(on: AttemptOnNode) -> Collected:
            asked.append(on)
            return answers.pop(0)

        here.agent.store_late = store_late  # type: ignore[attr-defined]
        for problem in (
            AWAY,
            "output made: other files are there.",
            "has made no progress for 3m.",
        ):
            answer = await here.engine.late_stores.ask(served, job.id)
            assert answer.done and problem in answer.problems[0]
        assert await here.engine.late_stores.ask(served, job.id) == StoreAnswer(done=True)
        assert {(on.job, on.attempt, on.reads_secrets) for on in asked} == {(job.id, 1, True)}
        with pytest.raises(NotFoundError, match="were stored after its end"):
            await here.engine.late_stores.ask(served, job.id)
        after = here.store.job(job.id)
        assert (after.state, after.attempt) == (JobState.FAILED, 1)

    play(scene, tmp_path)


def test_long_upload_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_stores, "ANSWER_S", 0.0)

    async def scene(here: World) -> None:
        job = await failed_for_its_storage(here, monkeypatch)
        (served,) = here.engine.board.served
        begun, go = 0, asyncio.Event()

        async def store_late(_: AttemptOnNode) -> Collected:
            nonlocal begun
            begun += 1
            await go.wait()
            return Collected()

        here.agent.store_late = store_late  # type: ignore[attr-defined]
        lines = ["", "output made: 1/3 files, 5.0 MB of 9.0 MB"]

        async def store_progress(_: AttemptOnNode) -> StoreProgress:
            return StoreProgress(lines.pop(0))

        here.agent.store_progress = store_progress  # type: ignore[attr-defined]
        assert await here.engine.late_stores.ask(served, job.id) == StoreAnswer()
        await here.until(lambda: begun)
        reports: tuple[tuple[str, ...], ...] = ((), ("output made: 1/3 files, 5.0 MB of 9.0 MB",))
        for progress in reports:
            answer = await here.engine.late_stores.ask(served, job.id)
            assert answer == StoreAnswer(progress=progress)
        monkeypatch.setattr(late_stores, "ANSWER_S", 60.0)
        asking = asyncio.ensure_future(here.engine.late_stores.ask(served, job.id))
        await asyncio.sleep(0)
        go.set()
        assert (await asking).done
        assert begun == 1

    play(scene, tmp_path)


@pytest.mark.parametrize("problems", [(), (AWAY,)])
def test_result_between_two_requests_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: tuple[str, ...]
) -> None:
    monkeypatch.setattr(late_stores, "ANSWER_S", 0.0)

    async def scene(here: World) -> None:
        job = await failed_for_its_storage(here, monkeypatch)
        (served,) = here.engine.board.served
        begun, go = 0, asyncio.Event()

        async def store_late(_: AttemptOnNode) -> Collected:
            nonlocal begun
            begun += 1
            await go.wait()
            return Collected(problems=problems)

        here.agent.store_late = store_late  # type: ignore[attr-defined]
        late = here.engine.late_stores
        assert await late.ask(served, job.id) == StoreAnswer()
        (doing,) = late._running.values()
        go.set()
        await doing
        await asyncio.sleep(0)
        assert await late.ask(served, job.id) == StoreAnswer(done=True, problems=problems)
        assert begun == 1 and not late._running

    play(scene, tmp_path)


def test_result_without_a_next_request_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_stores, "ANSWER_S", 0.0)
    monkeypatch.setattr(late_stores, "KEPT_S", 0.01)

    async def scene(here: World) -> None:
        job = await failed_for_its_storage(here, monkeypatch)
        (served,) = here.engine.board.served

        async def store_late(_: AttemptOnNode) -> Collected:
            return Collected(problems=(AWAY,))

        here.agent.store_late = store_late  # type: ignore[attr-defined]
        assert await here.engine.late_stores.ask(served, job.id) == StoreAnswer()
        await here.until(lambda: not here.engine.late_stores._running)

    play(scene, tmp_path)


@pytest.mark.parametrize("how", ["runs", "failed", "completed", "without"])
def test_other_jobs_have_nothing_to_store(tmp_path: Path, how: str) -> None:
    async def scene(here: World) -> None:
        (served,) = here.engine.board.served
        here.agent.instant = {"failed": 1, "runs": None}.get(how, 0)
        job = here.submit(outputs={} if how == "without" else OUTPUT)
        if how == "runs":
            await here.launched(job)
        else:
            state = JobState.FAILED if how == "failed" else JobState.COMPLETED
            await here.state(job, state)
            await here.until(lambda: not here.engine.attempts)
        message = {
            "runs": "is still being recorded",
            "failed": "did not succeed",
            "completed": "its outputs are stored",
            "without": "has no outputs",
        }[how]
        with pytest.raises(NotFoundError, match=message):
            await here.engine.late_stores.ask(served, job.id)

    play(scene, tmp_path)
