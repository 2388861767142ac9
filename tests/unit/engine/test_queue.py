"""The queue with arrays, holds, dependencies on arrays, durations and predictions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import UnreadableSpecError
from rayjobs.engine.board import Served
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs import retry
from rayjobs.jobs.records import Job, JobLine
from rayjobs.jobs.states import JobState
from rayjobs.policy import Waiting
from rayjobs.spec.model import Array, Dependency, JobSpec, Resources, Retries
from rayjobs.store.requests import JobFilter, NewJob
from tests.fakes.world import World, play


def test_scheduling_round_after_a_hold_applies_it(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        runs = here.submit(resources=Resources(cpus=1))
        await here.launched(runs)
        waits = here.submit(resources=Resources(cpus=1))
        key = f"{here.folder}::{waits.id}"
        await here.until(lambda: here.engine.explain(key))
        for count in range(10):  # at different moments of the engine's turn
            await asyncio.sleep(0.001 * count)
            here.store.hold(waits.id, reason="by ada")
            await here.engine.turned()
            assert (held := here.engine.explain(key)) and held.rule == "held"
            here.store.release(waits.id)
            await here.engine.turned()
            assert (freed := here.engine.explain(key)) and freed.rule != "held"

    play(scene, tmp_path, cpus=1.0)


def submit_array(here: World, indices: str, limit: int | None = None) -> Job:
    spec = JobSpec(
        script="train.py", array=Array(indices=indices, limit=limit), resources=Resources(cpus=1)
    )
    array, _ = here.store.submit_array(NewJob(spec=spec, experiment="t", snapshot=None, user="ada"))
    here.engine.wake()
    return array


def members(here: World, array: Job) -> list[Job]:
    return here.store.jobs(JobFilter(parent=array.id, newest_first=False))


def launches(here: World) -> list[str]:
    return [job for what, job, _ in here.agent.calls if what == "launch"]


@pytest.mark.long
def test_an_array_runs_within_its_limit_and_ends_with_its_last_member(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        array = submit_array(here, "0-3", limit=2)
        first, second, third, fourth = members(here, array)
        await here.launched(first)
        await here.launched(second)
        key = f"{here.folder}::{third.id}"
        await here.until(
            lambda: (found := here.engine.explain(key)) and found.rule == "array_limit"
        )
        assert set(launches(here)) == {first.id, second.id}
        request = next(one for one in here.agent.requests if one.on.job == first.id)
        environment = request.plan.env
        assert environment["RAYJOBS_ARRAY_INDEX"] == "0"
        assert environment["RAYJOBS_ARRAY_ID"] == array.id
        here.agent.end(second.id, 1, exit_code=0)
        await here.launched(third)
        assert here.store.job(fourth.id).state is JobState.QUEUED
        for job in (first, third):
            here.agent.end(job.id, 1, exit_code=0)
        await here.launched(fourth)
        here.agent.end(fourth.id, 1, exit_code=0)
        assert (await here.state(array, JobState.COMPLETED)).reason == "4 Completed"

    play(scene, tmp_path, cpus=8.0)


@pytest.mark.long
def test_dependent_of_an_array_starts_after_its_last_member(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        array = submit_array(here, "0-1")
        child = here.submit(depends_on=(Dependency(job=array.id),))
        first, second = members(here, array)
        await here.launched(first)
        await here.launched(second)
        here.agent.end(first.id, 1, exit_code=0)
        await here.state(first, JobState.COMPLETED)
        assert here.store.job(child.id).state is JobState.QUEUED
        here.agent.end(second.id, 1, exit_code=0)
        await here.launched(child)
        assert here.store.job(array.id).state is JobState.COMPLETED

    play(scene, tmp_path, cpus=8.0)


@pytest.mark.long
def test_dependent_of_a_failed_array_is_canceled(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        array = submit_array(here, "0-1")
        child = here.submit(depends_on=(Dependency(job=array.id),))
        anyway = here.submit(depends_on=(Dependency(job=array.id, when="any"),))
        here.agent.instant = 3
        ended = await here.state(child, JobState.CANCELED)
        assert ended.reason == f"{array.id}, which it waited for, ended as Failed"
        assert (await here.state(anyway, JobState.FAILED)).attempt == 1  # despite the failed parent

    play(scene, tmp_path, cpus=8.0)


def test_a_held_job_starts_once_it_is_released(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        held = here.submit(depends_on=())
        here.store.hold(held.id, reason="not yet")
        other = here.submit()
        await here.launched(other)
        key = f"{here.folder}::{held.id}"
        await here.until(lambda: (found := here.engine.explain(key)) and found.rule == "held")
        decision = here.engine.explain(key)
        assert decision is not None
        assert "not yet" in decision.reason
        here.store.release(held.id)
        here.engine.wake()
        await here.launched(held)

    play(scene, tmp_path, cpus=8.0)


@pytest.mark.long
def test_predicted_start_is_kept(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        first = here.submit(resources=Resources(cpus=2), max_duration_s=100)
        await here.launched(first)
        second = here.submit(resources=Resources(cpus=2))

        def is_predicted() -> bool:
            rows = {row.job: row for row in here.store.queue_history()}
            return rows[second.id].predicted_first is not None

        await here.until(is_predicted, "a prediction")
        here.agent.end(first.id, 1, exit_code=0)
        await here.launched(second)
        rows = {row.job: row for row in here.store.queue_history()}
        prediction = rows[second.id].predicted_first
        assert prediction is not None
        assert prediction.basis in ("limit", "elapsed")
        assert rows[second.id].placed_at is not None
        assert rows[first.id].predicted_first is None  # it never waited

    play(scene, tmp_path)


@pytest.mark.long
def test_estimates_come_from_durations_of_similar_jobs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        here.agent.instant = 0
        done = here.submit()
        await here.state(done, JobState.COMPLETED)
        here.agent.instant = None
        first = here.submit(resources=Resources(cpus=2))
        await here.launched(first)
        second = here.submit(resources=Resources(cpus=2))
        key = f"{here.folder}::{second.id}"
        # The earlier run took no time at all.
        await here.until(lambda: (found := here.engine.explain(key)) and found.basis == "outrun")
        explanation = here.engine.explain(key)
        assert explanation is not None
        assert explanation.source.startswith(
            f"job {first.id} has already outrun the only earlier run of train.py in experiment"
        )

    play(scene, tmp_path)


@pytest.mark.long
def test_job_that_kills_its_host_three_times_is_held_and_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.0)

    async def scene(here: World) -> None:
        job = here.submit(retries=Retries(system=9))
        for attempt in (1, 2, 3):
            await here.launched(job, attempt=attempt)
            here.agent.end(
                job.id, attempt, outcome=Outcome.HOST_ERROR, reason="the host was killed"
            )
        await here.until(lambda: here.store.job(job.id).held, "a hold")
        held = here.store.job(job.id)
        assert (held.state, held.attempt) == (JobState.QUEUED, 3)
        assert "the host was killed" in (held.held or "")
        other = here.submit()
        await here.launched(other)
        assert here.store.job(job.id).attempt == 3
        here.store.release(job.id)
        here.engine.wake()
        await here.launched(job, attempt=4)

    play(scene, tmp_path)


def test_uninspectable_job_is_held_and_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        usual = here.engine.candidates.waiting

        def look(served: Served, job: Job, **more: Any) -> Waiting:
            if job.name == "poison":
                raise RecursionError("this spec is nested too deeply")
            return usual(served, job, **more)

        monkeypatch.setattr(here.engine.candidates, "waiting", look)
        poison = here.submit(name="poison")
        other = here.submit()
        await here.launched(other)
        held = await here.until(lambda: here.store.job(poison.id).held, "a hold")
        assert "RecursionError: this spec is nested too deeply" in held
        assert here.store.job(poison.id).state is JobState.QUEUED

    play(scene, tmp_path)


def test_damaged_spec_stops_no_other_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        # The job is for another target until it is damaged, because the engine is already running.
        damaged = here.submit(target="elsewhere")
        with here.store._database.write() as connection:
            connection.execute(
                "UPDATE jobs SET spec = '{}', target = 'local' WHERE id = ?", (damaged.id,)
            )
        other = here.submit()
        await here.launched(other)

        def line() -> JobLine:
            return next(one for one in here.store.job_lines() if one.id == damaged.id)

        assert "cannot be read" in await here.until(lambda: line().held, "a hold")
        assert line().state is JobState.QUEUED
        with pytest.raises(UnreadableSpecError, match="damaged, or written by a later version"):
            here.store.job(damaged.id)
        assert here.store.request_cancel(damaged.id) is JobState.CANCELED

    play(scene, tmp_path)
