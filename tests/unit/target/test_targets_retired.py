"""A stopping target starts nothing, clients wait for it, and it resumes by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import rayjobs
from rayjobs.core.errors import TargetError
from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.engine import engine
from rayjobs.engine.actor import TargetActor
from rayjobs.injob.identity import Identity
from rayjobs.jobs.states import JobState
from rayjobs.target import (
    background_start,
    keeper,
    keeper_state,
    reach,
    revive,
    start_processes,
    starting,
    stop_record,
    stopping,
    targets,
    wake_client,
)
from rayjobs.target.answers import RetireAnswer, TargetAnswer, WakeAnswer
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.reports import Activity
from rayjobs.target.requests import TargetRequest
from rayjobs.target.revive import in_background  # a fixture replaces it where it is called
from rayjobs.target.stop_request import StopAnswer, StopRequest
from rayjobs.target.stopping import TargetLocation
from tests.fakes.world import World, play
from tests.unit.target.actor_double import answering

STOPPING = {"ok": False, "stopping": True, "error": "the target is being stopped"}
SERVING = {"ok": True, "version": rayjobs.__version__, "epoch": "e1"}


@pytest.fixture
def location(short_path: Path) -> Iterator[TargetLocation]:
    location = TargetLocation("local", short_path / "h")
    runtime_dir(location.home)
    yield location
    stopping.remove_files(location)


def _actor(world: World) -> TargetActor:
    """An actor of the world's engine, without Ray."""
    actor = TargetActor.__new__(TargetActor)
    actor.epoch = "e1"
    actor._engine = world.engine
    return actor


# --- the engine and its actor --------------------------------------------------------------------


@pytest.mark.long
def test_a_retired_target_starts_no_job_until_it_is_resumed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        turns: list[int] = []
        here.engine._note = lambda facts: turns.append(facts.waiting)
        here.engine.retire()
        job = here.submit()
        await here.until(lambda: turns.count(1) >= 2, "it checked the queue twice")
        assert not here.engine.attempts
        assert not here.agent.calls
        here.engine.resume()
        await here.launched(job)

    play(scene, tmp_path)


@pytest.mark.long
def test_target_resumes_after_an_abandoned_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "RETIRED_S", 0.5)

    async def scene(here: World) -> None:
        here.engine.retire()
        job = here.submit()
        await here.launched(job)
        assert not here.engine.is_retired

    play(scene, tmp_path)


def test_the_actor_answers_clients_of_this_version_and_of_earlier_ones(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        actor = _actor(here)
        assert (await actor._answer(TargetRequest("ping").to_json())).ok
        assert (await actor._answer({"op": "wake", "workspace": None, "version": "0.1.0"})).ok

    play(scene, tmp_path)


@pytest.mark.long
def test_actor_reports_that_it_is_being_stopped(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        actor = _actor(here)
        assert (await actor._answer({"op": "retire", "force": False})).ok
        for operation in ("wake", "ping", "status"):
            assert await actor._answer({"op": operation}) == TargetAnswer.from_json(STOPPING)
        assert (await actor._answer({"op": "retire", "force": True})).ok
        assert (await actor._answer({"op": "resume"})).ok
        assert (await actor._answer({"op": "ping"})).ok

    play(scene, tmp_path)


def test_a_refused_stop_retires_nothing(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        refused = await _actor(here)._answer({"op": "retire", "force": False})
        assert isinstance(refused, RetireAnswer)
        assert not refused.ok
        assert refused.busy
        assert not here.engine.is_retired

    play(scene, tmp_path)


def test_forced_stop_requeues_running_jobs_at_no_cost(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        retries = {"preempted": 0}  # a stop must not use what the job has for evictions
        job = here.submit(retries=retries)
        await here.launched(job)
        answer = await _actor(here)._answer({"op": "retire", "force": True})
        assert isinstance(answer, RetireAnswer)
        assert answer.live == 1
        back = await here.state(job, JobState.QUEUED)
        assert "the target was stopped" in back.reason
        [attempt] = here.store.attempts(job.id)
        assert (attempt.outcome, attempt.failure) == ("preempted", None)
        await here.until(lambda: not here.engine.attempts, "its attempt has ended")
        again = await _actor(here)._answer({"op": "retire", "force": True})
        assert isinstance(again, RetireAnswer)
        assert again.live == 0
        here.engine.resume()
        await here.launched(job, attempt=2)

    play(scene, tmp_path)


# --- who stops it --------------------------------------------------------------------------------


def test_failed_stop_lets_the_target_serve_again(location: TargetLocation) -> None:
    with answering(location.socket, lambda _: SERVING) as requests:
        with (
            pytest.raises(TargetError, match="could not be ended"),
            stopping.retired(location, force=False),
        ):
            raise TargetError("these processes could not be ended: 7")
        assert [request["op"] for request in requests] == ["retire", "resume"]


def test_stop_is_sent_again_to_the_new_keeper(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first keeper takes the request and dies; the second one finishes the stop."""
    keepers = [Identity(pid=number, start_time=1, boot_id="b") for number in (1, 2)]
    ids: list[str] = []

    def signal_keeper(owner: Identity, _number: int) -> bool:
        request = StopRequest.read(location.paths)
        assert request is not None
        ids.append(request.id)
        location.paths.stop_request.unlink()
        keepers.remove(owner)
        if not keepers:
            StopAnswer(ids[-1]).write(location.paths)
        return True

    monkeypatch.setattr(keeper_state, "keeper_of", lambda _paths: keepers[0] if keepers else None)
    monkeypatch.setattr(keeper_state, "is_kept", lambda _paths: bool(keepers))
    monkeypatch.setattr(targets, "send_signal", signal_keeper)
    assert targets._stop_by_keeper(location, False, lambda _stage: None)
    assert len(ids) == 2
    assert ids[0] == ids[1]


# --- the record of a stop ------------------------------------------------------------------------


@pytest.fixture
def kept(location: TargetLocation) -> Iterator[None]:
    """A keeper that is alive, but answers nothing."""
    location.paths.root.mkdir(mode=0o700, parents=True)
    with keeper_state.keeper_lock(location.paths) as mine:
        assert mine
        yield


@pytest.mark.usefixtures("kept")
def test_stop_stays_recorded_if_its_client_is_interrupted(
    location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper completes the stop; after that, nothing may restart the target."""

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    starting.register_workspace(location.paths, tmp_path)
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        targets.stop_target("local", force=True, home=location.home)
    condition = revive.look_after("local", home=location.home, workspace=tmp_path)
    assert condition.is_stopped, condition


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("is_refused", [True, False])
def test_only_a_refusal_withdraws_the_record_of_a_stop(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A stop that failed in another way may have ended a part of the target."""

    def answer(_seconds: float) -> None:
        request = StopRequest.read(location.paths)
        assert request is not None
        StopAnswer(request.id, "that did not work", is_refused).write(location.paths)

    monkeypatch.setattr(time, "sleep", answer)
    with pytest.raises(TargetError, match="that did not work"):
        targets.stop_target("local", home=location.home)
    assert stop_record.last(location.paths).is_in_force is not is_refused


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_stop_of_an_attached_target_with_jobs_is_refused_and_not_recorded(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    lab = TargetLocation("lab", short_path / "h")
    save_target(TargetRecord("lab", address="10.0.0.1:6379", token_file="t"), home=lab.home)
    monkeypatch.setattr(reach, "why_unreachable", lambda *_, **__: "")
    monkeypatch.setattr(start_processes, "run_starter", lambda *_, **__: None)
    monkeypatch.setattr(stopping, "SETTLE_S", 0.0)
    lab.paths.root.mkdir(parents=True, exist_ok=True)
    Activity(busy=is_busy).write(lab.paths)
    if is_busy:
        with pytest.raises(stopping.StopRefusedError, match="not finished"):
            targets.stop_target("lab", home=lab.home)
    else:
        assert targets.stop_target("lab", home=lab.home)
    assert stop_record.last(lab.paths).is_in_force is not is_busy


def test_a_stop_is_recorded_though_the_cluster_cannot_be_reached(
    short_path: Path, tmp_path: Path
) -> None:
    lab = TargetLocation("lab", short_path / "h")
    save_target(TargetRecord("lab", address="127.0.0.1:1", token_file="t"), home=lab.home)
    starting.register_workspace(lab.paths, tmp_path)
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:1: Connection refused.*is recorded"):
        targets.stop_target("lab", force=True, home=lab.home)
    assert revive.look_after("lab", home=lab.home, workspace=tmp_path).is_stopped


@pytest.mark.long
def test_unwritable_record_keeps_the_previous_one(location: TargetLocation) -> None:
    """A crash, or a full disk, must not lose the stop that is in force."""
    with starting.start_lock(location.paths):
        stop_record.note(location.paths)
    known = stop_record.last(location.paths)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from rayjobs.core.paths import TargetPaths\n"
        "from rayjobs.target import stop_record as stops\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "stops.note(TargetPaths(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(location.paths.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "File too large" in done.stderr
    assert known.is_in_force
    assert stop_record.last(location.paths) == known


def test_a_start_in_the_background_loses_to_a_stop_that_came_after_it(
    location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit -d`, and `target stop --force` before the process of its start is up."""
    location.paths.root.mkdir(mode=0o700, parents=True)
    asked: list[list[str]] = []

    class Recorded:
        def __init__(self, command: list[str], **_: Any) -> None:
            asked.append(command[command.index("rayjobs.target.background_start") + 1 :])

        def wait(self) -> None:
            return

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(starting, "spawn", _spawns_nothing)
    for stop_comes_first in (False, True):
        if stop_comes_first:
            targets.stop_target("local", force=True, home=location.home)
        in_background("local", home=location.home, workspace=tmp_path)
        if not stop_comes_first:
            targets.stop_target("local", force=True, home=location.home)
            assert background_start.main(asked.pop()) == 1
            assert stop_record.last(location.paths).is_in_force
    # A start that was requested after the stop clears the stop, and begins.
    with pytest.raises(_SpawnedError):
        background_start.main(asked.pop())
    assert not stop_record.last(location.paths).is_in_force


class _SpawnedError(Exception):
    """Something was started."""


def _spawns_nothing(*_: Any, **__: Any) -> None:
    raise _SpawnedError


@pytest.mark.parametrize("is_old", [False, True])
def test_stop_between_check_and_start_of_an_attached_target_wins(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """Both the first start and the replacement of an older version take the lock a second time."""
    lab = TargetLocation("lab", short_path / "h")
    save_target(TargetRecord("lab", address="10.0.0.1:6379", token_file="t"), home=lab.home)
    answers = iter([WakeAnswer(version="0.0.1") if is_old else None])
    locked = starting.start_lock

    @contextlib.contextmanager
    def stopped_before_the_lock(paths: TargetPaths) -> Iterator[None]:
        monkeypatch.setattr(starting, "start_lock", locked)
        with locked(paths):
            yield
        if not is_old:
            stop_record.note(paths)

    def ask(*_: Any, **__: Any) -> WakeAnswer | None:
        if is_old:
            stop_record.note(lab.paths)
        return next(answers, None)

    if not is_old:
        monkeypatch.setattr(starting, "start_lock", stopped_before_the_lock)
    monkeypatch.setattr(wake_client, "ask", ask)
    monkeypatch.setattr(starting, "run_starter", _spawns_nothing)
    with pytest.raises(TargetError, match="was stopped while it was starting"):
        starting.ensure_target("lab", home=lab.home)
    assert stop_record.last(lab.paths).is_in_force


def test_a_keeper_is_not_replaced_after_a_stop(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target answered before the stop, and its keeper was gone."""

    def lost_its_keeper(_location: TargetLocation) -> bool:
        with starting.start_lock(location.paths):
            stop_record.note(location.paths)
        return True

    monkeypatch.setattr(starting, "spawn", _spawns_nothing)
    monkeypatch.setattr(starting, "lost_its_keeper", lost_its_keeper)
    with (
        answering(location.socket, lambda _: SERVING),
        pytest.raises(TargetError, match="was stopped while it was starting"),
    ):
        starting.ensure_target("local", home=location.home)
    assert stop_record.last(location.paths).is_in_force


def test_keeper_refusing_a_stop_withdraws_the_record_of_a_killed_client(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "SETTLE_S", 0.0)
    location.paths.root.mkdir(parents=True)
    Activity(busy=True).write(location.paths)
    with starting.start_lock(location.paths):
        stop_record.note(location.paths)
        # The client is alive: it withdraws the record by itself.
        assert not keeper.Keeper(location, "s1")._stop(force=False, request="r1")
        assert stop_record.last(location.paths).is_in_force
    answer = StopAnswer.read(location.paths)
    assert answer is not None and answer.is_refused
    assert not keeper.Keeper(location, "s1")._stop(force=False, request="r1")
    assert not stop_record.last(location.paths).is_in_force


def test_work_for_a_running_target_clears_a_leftover_stop(
    location: TargetLocation, tmp_path: Path
) -> None:
    with answering(location.socket, lambda _: SERVING):
        for use in (
            lambda: starting.wake("local", home=location.home, workspace=tmp_path),
            lambda: starting.ensure_target("local", home=location.home),
        ):
            with starting.start_lock(location.paths):
                stop_record.note(location.paths)
                assert use()
                assert stop_record.last(location.paths).is_in_force  # a stop is under way
            assert use()
            assert not stop_record.last(location.paths).is_in_force


# --- clients -------------------------------------------------------------------------------------


def test_wake_up_of_a_stopping_target_returns_false(
    location: TargetLocation, tmp_path: Path
) -> None:
    with answering(location.socket, lambda _: STOPPING):
        assert not starting.wake("local", home=location.home, workspace=tmp_path)


@pytest.mark.long
def test_client_waits_for_a_target_with_an_abandoned_stop(location: TargetLocation) -> None:
    answers = iter([STOPPING, STOPPING])
    stages: list[str] = []
    with answering(location.socket, lambda _: next(answers, SERVING)):
        status = starting.ensure_target("local", home=location.home, on_stage=stages.append)
    assert (status.epoch, status.was_started) == ("e1", False)
    assert stages == ["target 'local' is being stopped; waiting for that, then starting it again"]


@pytest.mark.long
def test_a_client_starts_a_target_again_once_its_stop_is_over(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []

    def start(_start: starting._Start) -> WakeAnswer:
        stages.append("started")
        return WakeAnswer.from_json(SERVING)

    def ask(*_: Any, **__: Any) -> WakeAnswer | None:
        return next(answers)

    being_stopped = WakeAnswer.from_json(STOPPING)
    answers = iter([being_stopped, being_stopped, None])
    monkeypatch.setattr(wake_client, "ask", ask)
    monkeypatch.setattr(starting._Start, "_start_local", start)
    status = starting.ensure_target("local", home=location.home, on_stage=stages.append)
    assert status.was_started
    assert stages[-1] == "started"
    assert "is being stopped" in stages[0]


# --- a home on a full disk -----------------------------------------------------------------------


@pytest.mark.parametrize("is_registered", [False, True])
def test_full_disk_is_reported_with_its_path_and_a_remedy(
    location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_registered: bool
) -> None:
    if is_registered:
        starting.register_workspace(location.paths, tmp_path)

    def on_a_full_disk(descriptor: int, *_: Any, **__: Any) -> IO[bytes]:
        os.close(descriptor)
        return open("/dev/full", "wb")

    monkeypatch.setattr(os, "fdopen", on_a_full_disk)
    with pytest.raises(TargetError) as caught:
        starting.ensure_target("local", home=location.home, workspace=tmp_path)
    assert f"{location.paths.root}/" in caught.value.message
    assert "No space left on device. Free some space there" in caught.value.message
    assert caught.value.message.endswith("stay queued; run `rayjobs target start local`.")
    assert caught.value.exit_code == 5
