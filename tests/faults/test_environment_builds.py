"""Builds of environments that cannot succeed, are killed, canceled or too slow, on real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import BUILD_LOG, ENVIRONMENT_LOCK, NodePaths, home
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.node.environments import EVENT
from rayjobs.spec.model import Packages
from tests.support.jobs import Jobs, kill, until, wake
from tests.support.wheels import SlowPackage, make_wheel

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture
def slow(tmp_path: Path) -> SlowPackage:
    return SlowPackage(tmp_path, "slowpackage")


def submit(jobs: Jobs, slow: SlowPackage, **spec: object) -> Job:
    packages = Packages(pip=("--no-index", str(slow.path)))
    return jobs.submit("import slowpackage; print(slowpackage.VALUE)", environment=packages, **spec)


def builds(jobs: Jobs, job: Job) -> list[str]:
    events = [event for event in jobs.store.events(job.id) if event.kind == EVENT]
    return [event.data["step"] for event in events]


def nothing_is_built(jobs: Jobs, job: Job) -> None:
    jobs.nothing_left(job)
    building = NodePaths(home() / "node").environments / "building"
    until(lambda: not list(building.iterdir()), "no partial environment is left")


def test_missing_package_fails_as_environment_with_the_resolver_message(
    jobs: Jobs, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "there")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "not-there-at-all")
    job = jobs.submit("print(1)", environment=Packages(pip=lines))
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.ENVIRONMENT
    assert "not-there-at-all was not found" in done.failure.message
    assert BUILD_LOG in done.failure.message
    assert any("not-there-at-all" in line for line in done.failure.lines)
    assert b"not-there-at-all was not found" in jobs.file(job, BUILD_LOG)
    assert done.attempt == 1
    nothing_is_built(jobs, job)


def test_a_killed_build_is_never_used_and_the_job_is_tried_again(
    jobs: Jobs, slow: SlowPackage
) -> None:
    job = submit(jobs, slow)
    until(slow.has_begun, "the build begins")
    marker = jobs.attempt(job).hosts[0].marker
    (builder,) = [stat for stat in find_leftovers(marker) if stat.comm == "uv"]
    kill(builder.pid)
    until(lambda: len(slow.builds()) == 2, "it is built again")
    first = jobs.store.attempts(job.id)[0]
    assert first.failure is not None
    assert first.failure.failure_class is FailureClass.SYSTEM
    assert "was killed" in first.failure.message
    slow.let_go()
    assert jobs.wait(job, JobState.COMPLETED).attempt == 2
    assert b"slowpackage" in jobs.file(job, ENVIRONMENT_LOCK)
    nothing_is_built(jobs, job)


def test_cancel_ends_a_build(jobs: Jobs, slow: SlowPackage) -> None:
    job = submit(jobs, slow)
    until(slow.has_begun, "the build begins")
    marker = jobs.attempt(job).hosts[0].marker
    assert find_leftovers(marker)
    jobs.store.request_cancel(job.id)
    wake(jobs.workspace)
    jobs.wait(job, JobState.CANCELED)
    assert b"uv pip" in jobs.file(job, BUILD_LOG)
    nothing_is_built(jobs, job)


def test_build_log_is_stored_during_the_build(jobs: Jobs, slow: SlowPackage) -> None:
    job = submit(jobs, slow)
    until(slow.has_begun, "the build begins")

    def stored() -> set[str]:
        return {file.name for file in jobs.store.files(job.id)}

    until(lambda: BUILD_LOG in stored(), "the log is stored before the build has ended")
    assert jobs.job(job).state is JobState.PREPARING
    assert b"uv pip" in jobs.file(job, BUILD_LOG)
    slow.let_go()
    jobs.wait(job, JobState.COMPLETED)
    assert b"built in" in jobs.file(job, BUILD_LOG)


def test_a_build_ends_with_the_time_limit(jobs: Jobs, slow: SlowPackage) -> None:
    job = submit(jobs, slow, max_duration_s=1.0)
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.TIME_LIMIT
    assert "limit of 1s" in done.failure.message
    nothing_is_built(jobs, job)


def test_two_attempts_at_once_build_once(jobs: Jobs, slow: SlowPackage) -> None:
    pair = [submit(jobs, slow), submit(jobs, slow)]
    until(
        lambda: sorted("wait" in builds(jobs, job) for job in pair) == [False, True],
        "one builds and the other waits",
    )
    slow.let_go()
    for job in pair:
        jobs.wait(job, JobState.COMPLETED)
        assert jobs.log(job) == b"tiny\n"
    assert len(slow.builds()) == 1
    assert sorted("built" in builds(jobs, job) for job in pair) == [False, True]


def test_waiter_takes_over_a_dead_build(jobs: Jobs, slow: SlowPackage) -> None:
    pair = [submit(jobs, slow), submit(jobs, slow)]
    until(lambda: any("wait" in builds(jobs, job) for job in pair), "one waits for the other")
    first, second = sorted(pair, key=lambda job: "wait" in builds(jobs, job))
    until(slow.has_begun, "the build begins")
    jobs.store.request_cancel(first.id)
    wake(jobs.workspace)
    jobs.wait(first, JobState.CANCELED)
    until(lambda: len(slow.builds()) == 2, "the one that waited builds")
    slow.let_go()
    jobs.wait(second, JobState.COMPLETED)
    nothing_is_built(jobs, second)
