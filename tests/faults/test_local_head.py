"""The local head under faults: two starters at once, a killed keeper, idleness, a failed start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayjobs.core import ids
from rayjobs.core.errors import TargetError
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.identity import Identity, is_alive, send_signal
from rayjobs.target import (
    keeper_state,
    local_head,
    revive,
    start_processes,
    starting,
    targets,
    wake_client,
)
from rayjobs.target.condition import Standing
from rayjobs.target.stopping import TargetLocation

# A start takes 5 s, and ten times that on a machine that is busy with other things.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

DEADLINE_S = 240.0
CLIENT = """
import sys
from pathlib import Path
from rayjobs.target.starting import ensure_target
status = ensure_target("local", home=Path(sys.argv[1]), on_stage=lambda text: print(text))
print("epoch", status.epoch)
"""


def wait_for(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def home(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without a head; processes that the test leaves there are ended."""
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "2")
    monkeypatch.setenv("RAYJOBS_LOCAL_DASHBOARD", "0")  # half the time of a start
    location = TargetLocation("local", short_path / "h")
    yield location.home
    targets.stop_target(force=True, home=location.home)


def nothing_is_left(home: Path) -> None:
    """Check that the head left no process, socket, Ray folder, token, record or empty folder."""
    folder = local_head.ray_folder(home)
    paths = TargetPaths.of("local", under=home)
    assert not list(local_head.processes_of(folder))
    assert not folder.exists()
    assert not folder.parent.exists()
    left = {path.name for path in paths.root.iterdir()} - {"lock", "keeper.lock", "log"}
    assert left <= {"starting.log", "workspaces", "last-stop.json"}
    assert not keeper_state.is_kept(paths)


def test_life_of_a_head_with_two_starters_and_killed_keepers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = TargetPaths.of("local", under=home)

    # Two clients start at once: one head comes up, and both get the same actor.
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(home)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [client.communicate(timeout=DEADLINE_S)[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], outputs
    epochs = {text.split("epoch ")[1].strip() for text in outputs}
    assert len(epochs) == 1
    record = local_head.load_record(paths)
    assert record is not None and record.is_running
    gcs = [
        identity
        for identity in local_head.processes_of(Path(record.temp_dir))
        if _name_of(identity) == "gcs_server"
    ]
    assert len(gcs) == 1

    # A killed keeper ends nothing else; any command starts one that takes over.
    first = keeper_state.keeper_of(paths)
    assert first is not None
    assert send_signal(first, signal.SIGKILL)
    wait_for(lambda: not keeper_state.is_kept(paths), "the killed keeper's lock is free")
    assert revive.look_after("local", home=home, workspace=home).standing is Standing.RUNNING
    wait_for(lambda: keeper_state.keeper_of(paths) is not None, "a new keeper")
    status = starting.ensure_target("local", home=home)
    assert status.epoch == epochs.pop()
    assert not status.was_started
    assert local_head.load_record(paths) == record

    # A keeper that finds no job for its idle time stops everything.
    second = keeper_state.keeper_of(paths)
    assert second is not None
    assert send_signal(second, signal.SIGKILL)
    wait_for(lambda: not keeper_state.is_kept(paths), "the killed keeper's lock is free")
    monkeypatch.setenv("RAYJOBS_LOCAL_IDLE_S", "1")
    start_processes.spawn(TargetLocation("local", home), ids.token(4))
    wait_for(lambda: not keeper_state.is_kept(paths), "the keeper stopped the idle head")
    nothing_is_left(home)


def test_a_head_that_died_is_started_again_and_stopped_without_its_keeper(home: Path) -> None:
    paths = TargetPaths.of("local", under=home)
    starting.ensure_target("local", home=home)
    first = local_head.load_record(paths)
    assert first is not None
    raylet = first.identity("raylet")
    assert raylet is not None

    # Ray dies under its keeper: a new head replaces it, and nothing of the old one is left.
    assert send_signal(raylet, signal.SIGKILL)
    wait_for(lambda: not first.is_running, "the head is known to be dead")
    starting.ensure_target("local", home=home)
    wait_for(lambda: _is_another(paths, first.instance), "another head")
    second = local_head.load_record(paths)
    assert second is not None and second.is_running
    assert not any(is_alive(one) for one in first.processes.values())

    # The keeper, the raylet and the control service die, as by kill -9 of everything: a command
    # that reads the queue restarts all of it without waiting.
    starting.register_workspace(paths, home)
    _kill_all(paths, second)
    wait_for(
        lambda: not wake_client.is_listening(TargetLocation("local", home).socket),
        "the actor's end",
    )
    assert revive.look_after("local", home=home, workspace=home).standing is Standing.STARTING
    wait_for(lambda: _is_another(paths, second.instance), "a third head")
    wait_for(
        lambda: (
            revive.look_after("local", home=home, workspace=home).standing is Standing.RUNNING
            and not paths.revival.exists()
        ),
        "the third target answers",
    )
    third = local_head.load_record(paths)
    assert third is not None

    # Again: a stop must still find the leftovers of the head, and the target stays stopped.
    _kill_all(paths, third)
    assert targets.stop_target(home=home, force=True)
    nothing_is_left(home)
    assert revive.look_after("local", home=home, workspace=home).is_stopped
    assert not targets.stop_target(home=home)
    assert not keeper_state.is_kept(paths)


def _kill_all(paths: TargetPaths, head: local_head.HeadRecord) -> None:
    for owner in (
        keeper_state.keeper_of(paths),
        head.identity("raylet"),
        head.identity("gcs_server"),
    ):
        assert owner is not None
        assert send_signal(owner, signal.SIGKILL)
    wait_for(lambda: not keeper_state.is_kept(paths), "the killed keeper's lock is free")


def _name_of(identity: Identity) -> str:
    try:
        return Path(f"/proc/{identity.pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has just ended


def _is_another(paths: TargetPaths, instance: str) -> bool:
    record = local_head.load_record(paths)
    return record is not None and record.instance != instance


def test_start_refused_by_ray_reports_the_reason_and_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_LOCAL_STORE_MIB", "1")  # Ray requires at least 75
    stages: list[str] = []
    with pytest.raises(TargetError, match="could not be started") as caught:
        starting.ensure_target("local", home=home, on_stage=stages.append)
    assert "memory" in str(caught.value)
    assert caught.value.exit_code == 5
    assert any("starting Ray" in stage for stage in stages)
    nothing_is_left(home)

    # A start that fails in the background is retried, and commands report the failure.
    paths = TargetPaths.of("local", under=home)
    starting.register_workspace(paths, home)
    with pytest.raises(TargetError, match="The next try is at"):
        starting.ensure_target("local", home=home, is_patient=True)
    view = targets.target_status("local", home=home)
    assert (view.state, view.keeper_pid is not None) == ("failing", True)
    assert "memory" in view.problem
    condition = revive.look_after("local", home=home, workspace=home)
    assert (condition.standing, condition.reason) == (Standing.FAILING, view.problem)

    # A user who has fixed the cause need not wait for the next try.
    monkeypatch.delenv("RAYJOBS_LOCAL_STORE_MIB")
    assert targets.start_target(home=home).was_started
    assert targets.target_status("local", home=home).state == "running"
