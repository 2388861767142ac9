"""The keeper without Ray: one per target, stage lines, ending processes, its own size."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.files import write_message, write_private
from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.injob.host_messages import HostFile
from rayjobs.injob.identity import identity_of, is_alive
from rayjobs.target import keeper_state, local_head, progress, stopping
from rayjobs.target.progress import Line, Progress
from rayjobs.target.stopping import TargetLocation

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def paths(short_path: Path) -> TargetPaths:
    return TargetPaths.of("local", under=short_path / "h")


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_target_has_one_keeper_at_a_time(paths: TargetPaths) -> None:
    assert not keeper_state.is_kept(paths)
    with keeper_state.keeper_lock(paths) as first:
        assert first
        assert keeper_state.is_kept(paths)
        with keeper_state.keeper_lock(paths) as second:
            assert not second
    assert not keeper_state.is_kept(paths)


@pytest.mark.long
def test_a_second_keeper_of_a_target_ends_at_once(paths: TargetPaths, short_path: Path) -> None:
    with keeper_state.keeper_lock(paths):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "rayjobs.target.keeper"),
                *(str(short_path / "h"), "local", "s1"),
            ],
            check=False,
        )
    assert done.returncode == 0
    assert not paths.head.exists()


def test_file_with_a_reused_pid_is_not_a_keeper(paths: TargetPaths) -> None:
    own = identity_of(1)
    assert own is not None
    write_private(
        paths.root / "keeper.json",
        f'{{"pid": 1, "start_time": {own.start_time + 1}, "boot_id": "{own.boot_id}"}}',
    )
    assert keeper_state.keeper_of(paths) is None


def test_stage_lines_are_read_as_they_were_written(paths: TargetPaths) -> None:
    written = Progress(paths.progress, "s1")
    written.stage("starting Ray")
    written.failed("no room:\nnot on this disk")
    with paths.progress.open("ab") as file:
        file.write(b'{"start": "s1", "kind": "sta')  # a line in the middle of being written
    assert progress.read(paths.progress) == [
        Line("s1", "stage", "starting Ray"),
        Line("s1", "failed", "no room:\nnot on this disk"),
    ]


def test_many_writers_do_not_tear_each_others_lines(paths: TargetPaths) -> None:
    def write(name: str) -> None:
        for _ in range(50):
            Progress(paths.progress, name).stage("x" * 500)

    writers = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(progress.read(paths.progress)) == 200


@pytest.mark.long
def test_process_ignoring_a_request_to_end_is_killed(stubborn: subprocess.Popen[str]) -> None:
    identity = identity_of(stubborn.pid)
    assert identity is not None
    stopping.end([identity], polite_s=0.1)
    assert not is_alive(identity)
    assert stubborn.wait() == -signal.SIGKILL


def test_process_that_only_mentions_the_folder_is_not_killed(short_path: Path) -> None:
    """An editor or a tail on one of Ray's logs must survive a stop."""
    folder = short_path / "r"
    folder.mkdir()
    log = folder / "raylet.out"
    log.write_text("")
    with subprocess.Popen(["tail", "-f", str(log)]) as reader:
        try:
            found = {identity.pid for identity in local_head.processes_of(folder)}
            assert reader.pid not in found
        finally:
            reader.kill()


@pytest.mark.long
@pytest.mark.parametrize("root", ["h/node", "fast"])
def test_running_attempts_are_ended_through_their_hosts(
    short_path: Path, stubborn: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setattr(stopping, "HOST_GRACE_S", 0.2)
    # The shell that stops a target may have other variables than the one that started it.
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(short_path / "fast"))
    home = short_path / "h"
    identity = identity_of(stubborn.pid)
    assert identity is not None
    folder = short_path / root / "attempts" / "digits_1" / "a1"
    folder.mkdir(parents=True)
    host = HostFile(identity.pid, identity.start_time, identity.boot_id, socket="")
    write_message(folder / "host.json", host)
    messages: list[str] = []
    stopping.stop_head(TargetLocation("local", home), say=messages.append)
    assert not is_alive(identity)
    assert "ending 1 running attempt" in messages


@pytest.mark.long
def test_a_warm_interpreter_that_does_not_listen_yet_is_ended(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "POLITE_S", 0.1)
    home = short_path / "h"
    socket = runtime_dir(home) / "warm-0123456789abcdef.sock"
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "--socket", str(socket)]
    ) as importing:
        stopping.stop_head(TargetLocation("local", home), say=lambda _text: None)
        assert importing.wait(timeout=120) == -signal.SIGTERM


@pytest.mark.long
def test_the_keeper_is_small() -> None:
    """Its imports determine its memory: about 10 MiB."""
    code = (
        "import rayjobs.target.keeper\n"
        "text = open('/proc/self/smaps_rollup').read()\n"
        "print(text.split('Private_Dirty:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 60 * 1024
