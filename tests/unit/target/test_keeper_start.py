"""A head's start that is too slow is retried; the final error names a remedy."""

from __future__ import annotations

import errno
import inspect
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import RayjobsError
from rayjobs.core.files import write_private
from rayjobs.core.paths import runtime_dir
from rayjobs.engine import starter as raylaunch
from rayjobs.injob.identity import identity_of, is_alive
from rayjobs.target import keeper, keeper_state, local_head, progress, start_processes, stopping
from rayjobs.target.keeper import Keeper
from rayjobs.target.stopping import TargetLocation

STACK = "raylet(+0x8d2f4a) [0x55d1] ray::RayLog::~RayLog()"
STARTER = """#!/bin/sh
# It is called like the interpreter: -P -m MODULE HOME TARGET START WHAT
echo "$7" >> "{calls}"
echo '{stack}' >&2
if [ "$(wc -l < "{calls}")" -le {failures} ]; then
    printf '{{"start": "%s", "kind": "{kind}", "text": "{text}"}}\\n' "$6" >> "{progress}"
    exit {code}
fi
"""
FakeStarter = Callable[..., list[str]]


@pytest.fixture
def location(short_path: Path) -> Iterator[TargetLocation]:
    location = TargetLocation("local", short_path / "h")
    yield location
    stopping.remove_files(location)


@pytest.fixture
def start(location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStarter:
    """Start a head with a starter that fails this many times; return the requests to it."""

    def run(failures: int, *, code: int = local_head.EXIT_LATE, kind: str = "late") -> list[str]:
        calls, script = tmp_path / "calls", tmp_path / "starter"
        script.write_text(
            STARTER.format(
                calls=calls,
                stack=STACK,
                failures=failures,
                kind=kind,
                text="the raylet did not register within 120 s",
                progress=location.paths.progress,
                code=code,
            )
        )
        script.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(script))
        try:
            Keeper(location, "s1")._start_head()
        finally:
            monkeypatch.undo()
        return calls.read_text().split()

    return run


def _lines(location: TargetLocation) -> list[tuple[str, str]]:
    return [(line.kind, line.message) for line in progress.read(location.paths.progress)]


@pytest.mark.long
def test_a_start_that_was_too_slow_is_tried_again(
    location: TargetLocation, start: FakeStarter
) -> None:
    assert start(failures=2) == ["head"] * 3
    assert [text for kind, text in _lines(location) if kind == "stage"] == [
        "Ray did not come up in time; trying again (2 of 3)",
        "Ray did not come up in time; trying again (3 of 3)",
    ]
    assert "failed" not in dict(_lines(location))
    assert location.paths.token.exists()


@pytest.mark.long
def test_last_failure_names_a_remedy_and_shows_no_stack(
    location: TargetLocation, start: FakeStarter
) -> None:
    with pytest.raises(RayjobsError) as caught:
        start(failures=99)
    kind, text = _lines(location)[-1]
    assert (kind, text) == ("failed", caught.value.message)
    assert text.endswith("stay queued; run `rayjobs target start local`.")
    assert "did not register within 120 s" in text
    log = location.paths.log / "start.log"
    assert str(log) in text
    assert STACK not in text
    assert log.read_text().count(STACK) == 3
    assert not location.paths.token.exists()


@pytest.mark.long
def test_start_refused_by_ray_is_not_retried(location: TargetLocation, start: FakeStarter) -> None:
    with pytest.raises(RayjobsError):
        start(failures=99, code=1, kind="failed")
    assert [kind for kind, _ in _lines(location)] == ["failed"]


@pytest.mark.long
def test_stop_ends_the_retries(location: TargetLocation, start: FakeStarter) -> None:
    write_private(location.paths.stop_request, '{"id": "r1", "force": true}')
    with pytest.raises(RayjobsError):
        start(failures=99)
    assert [kind for kind, _ in _lines(location)] == ["late", "failed"]


def _raise(error: Exception) -> None:
    raise error


def _fails() -> None:
    raise RayjobsError("Ray does not start")


def test_keeper_with_work_retries_with_growing_pauses(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(keeper, "_now_s", lambda: now_s)
    kept = Keeper(location, "s1", is_patient=True)
    for failures, pause_s in enumerate((10.0, 20.0, 40.0), start=1):
        assert kept._tries(_fails)
        assert kept._paused_until_s == now_s + pause_s
        pause = keeper_state.pause_of(location.paths)
        assert pause is not None and pause.failures == failures
        assert "Ray does not start. The next try is at " in pause.sentence("local")
        assert "`rayjobs target start local` tries now" in pause.sentence("local")
    kept._failures = 99
    kept._pause("again")
    assert kept._paused_until_s == now_s + 600.0
    kept._end_pause()
    assert keeper_state.pause_of(location.paths) is None


def test_pause_has_cause_of_failure_without_advice(location: TargetLocation) -> None:
    def fails() -> None:
        raise local_head.StartError("Ray does not start.", advice="In other words: start it.")

    kept = Keeper(location, "s1", is_patient=True)
    assert kept._tries(fails)
    pause = keeper_state.pause_of(location.paths)
    assert pause is not None and pause.reason == "Ray does not start."
    assert "In other words" not in pause.sentence("local")


def test_report_of_starter_keeps_cause_and_advice_apart(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Keeper(location, "s1")

    def refused(*_: object) -> int:
        told = progress.Progress(location.paths.progress, "s1")
        error = local_head.StartError("Ray refuses.", advice="Ask Ada.")
        with raylaunch._reporting_failures(told, is_head=True):
            _raise(error)
        return 1

    monkeypatch.setattr(kept, "_run_child", refused)
    with pytest.raises(local_head.StartError) as caught:
        kept._starter("head")
    assert (caught.value.cause, caught.value.advice) == ("Ray refuses.", "Ask Ada.")
    assert caught.value.message == "Ray refuses. Ask Ada."
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.cause, again.message) == ("Ray refuses.", "Ray refuses. Ask Ada.")
    follower = start_processes.Follower(location, print)
    follower.look()
    assert follower.failure == "Ray refuses. Ask Ada."


def test_a_target_without_a_record_of_its_head_is_left_as_it_is(location: TargetLocation) -> None:
    runtime_dir(location.home)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as target:
        target.bind(str(location.socket))
        target.listen()
        kept = Keeper(location, "s1", is_patient=True)
        assert kept._tries(kept._bring_up)
    follower = start_processes.Follower(location, print)
    follower.look()
    assert follower.failure is not None and "record of its head is missing" in follower.failure
    pause = keeper_state.pause_of(location.paths)
    assert pause is not None and "`rayjobs target stop local` stops it" in pause.reason


def test_full_disk_does_not_end_a_keeper_with_work(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_head, "new_token", full)
    kept = Keeper(location, "s1", is_patient=True)
    assert kept._tries(kept._start_head)
    pause = keeper_state.pause_of(location.paths)
    assert pause is not None and "No space left on device" in pause.reason
    monkeypatch.setattr(kept, "_run_child", full)
    assert kept._has_jobs()


def test_a_keeper_without_work_ends_when_a_start_fails(location: TargetLocation) -> None:
    assert not Keeper(location, "s1")._tries(_fails)
    assert keeper_state.pause_of(location.paths) is None


def test_the_fourth_death_within_ten_minutes_is_the_first_with_a_pause(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(keeper, "_now_s", lambda: now_s)
    kept = Keeper(location, "s1", is_patient=True)
    for _ in range(3):
        assert kept._tries(kept._count_restart)
        assert kept._paused_until_s is None
    assert kept._tries(kept._count_restart)
    assert kept._paused_until_s == now_s + 10.0
    kept._end_pause()
    now_s += 601.0  # up for ten minutes: earlier deaths no longer count
    assert kept._tries(kept._count_restart)
    assert kept._paused_until_s is None


@pytest.mark.long
def test_process_started_by_a_client_ends_with_it(tmp_path: Path) -> None:
    """Ray waits forever for a vanished cluster, and ignores SIGTERM meanwhile."""
    starter = "import sys, time\nfrom rayjobs.engine import starter as raylaunch\n"
    starter += "raylaunch.end_with_parent(int(sys.argv[1]))\nprint('up', flush=True)\n"
    starter += "time.sleep(600)\n"
    client = "import os, subprocess, sys\n"
    client += "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())],\n"
    client += "    stdout=subprocess.PIPE, start_new_session=True)\n"
    client += "child.stdout.readline(); print(child.pid, flush=True); child.wait()\n"
    with subprocess.Popen(
        [sys.executable, "-c", client, starter], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = identity_of(int(process.stdout.readline()))
        assert child is not None
        process.kill()
    deadline = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_raylet_is_waited_for_as_long_as_it_lives(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    folder = short_path / "r"
    raylet = folder / "ray" / "raylet"
    raylet.parent.mkdir(parents=True)
    raylet.write_text("#!/bin/sh\nread line\n")
    raylet.chmod(0o700)
    answers = iter([None, None, {"state": "ALIVE"}])

    def get_node(_address: str, _node: str) -> dict[str, str]:
        if answer := next(answers, None):
            return answer
        raise RuntimeError("no such node")

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(raylaunch, "LOOK_EVERY_S", 0.01)
    with raylaunch.patience_for_raylet(folder):
        with subprocess.Popen([str(raylet)], stdin=subprocess.PIPE) as process:
            try:
                wait_for_comm(process.pid, "raylet")
                assert services.get_node("127.0.0.1:1", "n1") == {"state": "ALIVE"}
            finally:
                process.kill()
        with pytest.raises(raylaunch.LateError, match="raylet ended"):
            services.get_node("127.0.0.1:1", "n1")
    assert services.get_node is get_node


def test_the_installed_ray_looks_up_its_node_through_the_replaced_name() -> None:
    """`patience_for_raylet` replaces a function that Ray looks up by name at each call."""
    from ray._private.node import Node

    assert "services.get_node(" in inspect.getsource(Node.__init__)


def wait_for_comm(pid: int, name: str) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/comm").read_text().strip() != name:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "is_late"),
    [
        (Exception("The current node timed out during startup."), True),
        (RuntimeError("Failed to start GCS."), True),
        (TimeoutError("no port file"), True),
        (SystemExit(1), True),
        (ValueError("the minimum allowed is 78643200 bytes."), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_only_a_slow_start_is_retried(error: BaseException, is_late: bool) -> None:
    assert raylaunch.is_late(error) == is_late


@pytest.mark.long
def test_hanging_start_ends_by_itself_and_reports_it(tmp_path: Path) -> None:
    source = (
        "import sys, time; from pathlib import Path\n"
        "from rayjobs.target import progress; from rayjobs.engine import starter as raylaunch\n"
        "raylaunch._end_after(progress.Progress(Path(sys.argv[1]), 'one'), life_s=0.1)\n"
        "time.sleep(600)\n"
    )
    file = tmp_path / "progress"
    ended = subprocess.run([sys.executable, "-c", source, str(file)], timeout=120, check=False)
    assert ended.returncode == 1
    (line,) = progress.read(file)
    assert (line.kind, line.start) == ("failed", "one")
    assert "did not finish within 0.1s" in line.text
