"""Samples of the resources of an attempt: correct, limited in number, and rarer if expensive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.injob import usage
from rayjobs.injob.identity import ProcessStat, stat_of
from rayjobs.injob.usage import POINTS, SHARE, Usage

BUSY = "x = bytearray(40_000_000)\nprint(flush=True)\nwhile True: pass\n"
SMI = "#!/bin/sh\necho '0, GPU-a, 37, 1024'\necho '1, GPU-b, [N/A], 2'\nexec sleep 600\n"


def host(root: Path, pids: list[int] | None = None, devices: str = "") -> Any:
    """Return what the samples need: a plan, and a tree of real processes."""

    def contained() -> list[ProcessStat]:
        found = [stat_of(pid) for pid in pids or ()]
        return [one for one in found if one is not None]

    plan = SimpleNamespace(root=str(root), node=0, env={"CUDA_VISIBLE_DEVICES": devices})
    tree = SimpleNamespace(
        cgroup=None, contained=contained, is_empty_quickly=lambda: not contained(), helpers=set()
    )
    return plan, tree


@pytest.fixture
def busy() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def test_cpu_and_memory_of_a_busy_process(tmp_path: Path, busy: int) -> None:
    samples = Usage(*host(tmp_path, [busy]))
    deadline = time.monotonic() + 30
    while samples.as_record().cpu_s < 0.05:
        samples._next_s = 0.0
        samples.turn()
        assert time.monotonic() < deadline
    record = samples.as_record()
    assert (record.peak_bytes or 0) > 40_000_000
    assert max(record.cpu) > 0
    written = usage.read(str(tmp_path))
    assert written is not None
    assert (written.t, written.memory) == (record.t, record.memory)


@pytest.mark.long
def test_a_job_of_half_a_second_has_a_sample_of_its_memory(tmp_path: Path, busy: int) -> None:
    pids = [busy]
    samples = Usage(*host(tmp_path, pids))
    time.sleep(0.5)
    samples.turn()
    pids.clear()  # it ends before a second has passed
    samples.stop()
    assert [used > 40_000_000 for used in samples.as_record().memory] == [True]


def test_processes_are_not_searched_once_all_have_ended(tmp_path: Path) -> None:
    def search() -> None:
        raise AssertionError("all processes of the machine are read")

    plan, tree = host(tmp_path)
    tree.contained, tree.is_empty_quickly = search, lambda: True
    samples = usage.Usage(plan, tree)
    samples.stop()
    assert samples.as_record().memory == (0,)


@pytest.mark.long
def test_any_length_of_run_keeps_a_bounded_number_of_points(tmp_path: Path) -> None:
    samples = Usage(*host(tmp_path))
    samples._memory_bytes = lambda: 1  # type: ignore[method-assign]
    for second in range(100_000):
        samples._sample(samples._began_s + second)
    record = samples.as_record()
    assert POINTS // 2 <= len(record.t) < POINTS
    assert list(record.t) == sorted(record.t)
    assert record.t[-1] > 99_000
    assert record.every_s > 100
    assert len(json.dumps(record.to_json())) < 20_000


def test_expensive_samples_are_taken_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = Usage(*host(tmp_path))

    def dear(_now_s: float) -> None:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass

    monkeypatch.setattr(samples, "_sample", dear)
    samples._next_s = 0.0
    before_s = time.monotonic()
    samples.turn()
    assert samples._next_s - before_s >= 0.02 / SHARE
    cost_s = samples.as_record().cost_s
    samples.turn()
    assert samples.as_record().cost_s == cost_s


def test_a_full_disk_or_a_dead_process_costs_nothing(tmp_path: Path) -> None:
    samples = Usage(*host(tmp_path / "none", [2**22 + 1]))
    samples._next_s = 0.0
    samples.turn()
    samples.stop()
    assert samples.as_record().t


@pytest.mark.long
def test_gpus_are_watched_by_the_drivers_own_program_which_ends_with_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    owner = host(tmp_path, [os.getpid()], devices="0,1")
    samples = Usage(*owner)
    samples.start()
    (pid,) = owner[1].helpers
    assert b"RAYJOBS" not in Path(f"/proc/{pid}/environ").read_bytes()
    deadline = time.monotonic() + 30
    while not samples.as_record().gpus:
        samples._next_s = 0.0
        samples.turn()
        assert time.monotonic() < deadline
    gpus = samples.as_record().gpus
    assert gpus["0"].use[-1] == 37.0
    assert gpus["0"].memory[-1] == 2**30
    assert gpus["1"].use[-1] == 0.0
    samples.stop()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)  # as its host does
    assert not Path(f"/proc/{pid}").exists()
    samples.stop()


def test_a_driver_program_that_does_not_end_does_not_delay_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = os.waitpid

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        assert options & os.WNOHANG, "the host waits for a program that a driver holds"
        return wait(pid, options)

    samples = Usage(*host(tmp_path))
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        os.set_blocking(held.stdout.fileno(), False)
        samples._gpu = held
        monkeypatch.setattr(os, "kill", lambda pid, number: None)  # a driver holds the process
        monkeypatch.setattr(os, "waitpid", waitpid)
        try:
            samples.stop()
        finally:
            monkeypatch.undo()
            held.returncode = None
            held.kill()


def test_without_a_driver_program_or_gpus_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for devices in ("", "0"):
        owner = host(tmp_path, devices=devices)
        Usage(*owner).start()
        assert owner[1].helpers == set()


@pytest.mark.parametrize("kind", ["fifo", "link", "noise", "deep", "missing"])
def test_replaced_sample_file_is_ignored(tmp_path: Path, kind: str) -> None:
    path = tmp_path / usage.FILE
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "noise":
        path.write_text('{"t": [1], "cpu": [], "memory": 3}')
    elif kind == "deep":
        path.write_text("[" * 100_000)
    assert usage.read(str(tmp_path)) is None
