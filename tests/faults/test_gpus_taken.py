"""A GPU that a job is given and whose memory another program holds (a stand-in for nvidia-smi)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayjobs.compute import nodegpus
from rayjobs.injob.processes import MARKER_VARIABLE
from tests.conformance.hosts import until
from tests.preparing import prepared

FOR_EVER_S = 1e9

# Lists the processes of a file as long as they are there; says how it was asked.
TOOL = """#!/bin/sh
echo "$@" >> {folder}/asked
while read pid; do
    [ -d /proc/$pid ] && echo "$pid, 30000, /usr/bin/trainer"
done < {folder}/holders
exit {code}
"""


class Gpu:
    """What the stand-in says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "holders").write_text("")
        self.answers(0)

    def answers(self, code: int) -> None:
        """Let the tool end with this exit code from now on."""
        tool = self.folder / nodegpus.TOOL
        tool.write_text(TOOL.format(folder=self.folder, code=code))
        tool.chmod(0o755)

    def held_by(self, pid: int) -> None:
        """Let a process hold memory as long as it is there."""
        (self.folder / "holders").write_text(f"{pid}\n")

    @property
    def asked(self) -> list[str]:
        """How the tool was called, each time."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def gpu(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setenv("PATH", f"{short_path}:{os.environ['PATH']}")
    return Gpu(short_path)


@contextmanager
def program(**env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that does nothing."""
    waits = [sys.executable, "-S", "-c", "import signal; print(flush=True); signal.pause()"]
    running = subprocess.Popen(waits, env={**os.environ, **env}, stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.communicate()


def told() -> list[str]:
    """Return what is told of GPUs 2 and 3."""
    said: list[str] = []
    asyncio.run(nodegpus.wait_until_free(("2", "3"), said.append))
    return said


def test_another_program_is_told_and_not_waited_for(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", FOR_EVER_S)
    with program() as other:
        gpu.held_by(other.pid)
        (said,) = [one.message for one in prepared(tmp_path, gpus=("2", "3")) if one.kind == "gpu"]
    assert said.startswith("GPU 2,3 is used by programs that are no jobs")
    assert f"pid {other.pid} (trainer) holds 30000 MiB" in said
    assert "--id=2,3" in gpu.asked[0]


def test_a_program_that_ends_is_waited_for(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", FOR_EVER_S)
    monkeypatch.setattr(nodegpus, "LOOK_S", 0.01)

    async def scene() -> list[str]:
        said: list[str] = []
        with program() as other:
            gpu.held_by(other.pid)
            other.send_signal(signal.SIGKILL)
            # It has given its memory back, and is not gone before somebody collects it.
            until(lambda: nodegpus.Holder(other.pid, "", "").is_ending, "it is ending")
            waits = asyncio.ensure_future(nodegpus.wait_until_free(("0",), said.append))
            while len(gpu.asked) < 3:
                assert not waits.done()
                await asyncio.sleep(0.01)
            other.wait()
            await waits
        return said

    assert asyncio.run(scene()) == []


def test_one_that_never_ends_is_told_in_the_end(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", 0.0)
    with program() as other:
        gpu.held_by(other.pid)
        other.send_signal(signal.SIGKILL)
        until(lambda: nodegpus.Holder(other.pid, "", "").is_ending, "it is ending")
        assert len(told()) == 1


def test_jobs_may_share_a_gpu(gpu: Gpu) -> None:
    with program(**{MARKER_VARIABLE: "rj-other-a1"}) as other:
        gpu.held_by(other.pid)
        assert told() == []
        assert len(gpu.asked) == 1


def test_a_tool_that_cannot_tell_holds_nothing_up(gpu: Gpu) -> None:
    with program() as other:
        gpu.held_by(other.pid)
        gpu.answers(9)
        assert told() == []
        assert len(gpu.asked) == 1


def test_nobody_asks_for_a_job_without_gpus(gpu: Gpu, tmp_path: Path) -> None:
    assert [one for one in prepared(tmp_path) if one.kind == "gpu"] == []
    assert gpu.asked == []
