"""A job gets a GPU whose memory another program holds (with a stand-in for nvidia-smi)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayjobs.injob.identity import identity_of
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.node import gpus as nodegpus
from tests.conformance.hosts import until
from tests.support.attempts import write_plan
from tests.support.preparing import prepared

FOR_EVER_S = 1e9
NO_ATTEMPTS = Path("/nonexistent")

# Lists the processes named in a file while they exist, except hidden ones, and
# the used memory; records its arguments.
TOOL = """#!/bin/sh
echo "$@" >> {folder}/queries
case "$*" in
    *query-gpu*)
        [ -d /proc/$(cat {folder}/holders)/fd ] && cat {folder}/memory_held || cat {folder}/memory
        exit {code} ;;
esac
while read pid; do
    [ -d /proc/$pid ] && echo "GPU-c, $pid, 30000, /usr/bin/trainer"
done < {folder}/holders
cat {folder}/hidden
exit {code}
"""
MEMORY = "2, GPU-b, 4\n3, GPU-c, {}\n"


class Gpu:
    """The output of the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "holders").write_text("")
        (folder / "memory_held").write_text(MEMORY.format(30004))
        self.hides("", used=4)
        self.answers(0)

    def answers(self, code: int) -> None:
        """Let the tool exit with this code from now on."""
        tool = self.folder / nodegpus.TOOL
        tool.write_text(TOOL.format(folder=self.folder, code=code))
        tool.chmod(0o755)

    def held_by(self, pid: int) -> None:
        """Let a process hold memory as long as it exists."""
        (self.folder / "holders").write_text(f"{pid}\n")

    def hides(self, lines: str, *, used: int) -> None:
        """Report this much memory of GPU 3 as used, and only these lines about the users."""
        (self.folder / "hidden").write_text(lines)
        (self.folder / "memory").write_text(MEMORY.format(used))

    @property
    def queries(self) -> list[str]:
        """The arguments of each query for processes."""
        path = self.folder / "queries"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if "compute-apps" in line]


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


def reports(attempts: Path = NO_ATTEMPTS) -> list[str]:
    """Return the messages about GPUs 2 and 3."""
    messages: list[str] = []
    asyncio.run(nodegpus.wait_until_free(("2", "3"), attempts, messages.append))
    return messages


def living_attempt(attempts: Path, marker: str, gpus: str) -> Path:
    """Record an attempt that has GPUs and whose host is this process."""
    root = attempts / marker / "a1"
    root.mkdir(parents=True)
    write_plan(root, {"CUDA_VISIBLE_DEVICES": gpus}, marker=marker)
    me = identity_of(os.getpid())
    assert me is not None
    (root / "host.json").write_text(json.dumps({"socket": "", **me.to_json()}))
    return root


def test_foreign_program_is_reported_without_waiting(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", FOR_EVER_S)
    with program() as other:
        gpu.held_by(other.pid)
        (message,) = [
            one.message for one in prepared(tmp_path, gpus=("2", "3")) if one.kind == "gpu"
        ]
    assert message.startswith("GPU 2,3 is used by programs that do not belong to the job")
    assert f"pid {other.pid} (trainer) holds 29.3 GiB" in message
    assert "--id=2,3" in gpu.queries[0]


def test_ending_program_is_waited_for(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", FOR_EVER_S)
    monkeypatch.setattr(nodegpus, "LOOK_S", 0.01)

    async def scene() -> list[str]:
        messages: list[str] = []
        with program() as other:
            gpu.held_by(other.pid)
            other.send_signal(signal.SIGKILL)
            # It has released its memory, but remains until its parent collects it.
            until(lambda: nodegpus.Holder(other.pid, "", "").is_ending, "it is ending")
            waits = asyncio.ensure_future(
                nodegpus.wait_until_free(("0",), NO_ATTEMPTS, messages.append)
            )
            while len(gpu.queries) < 3:
                assert not waits.done()
                await asyncio.sleep(0.01)
            other.wait()
            await waits
        return messages

    assert asyncio.run(scene()) == []


def test_program_that_never_ends_is_finally_reported(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", 0.0)
    with program() as other:
        gpu.held_by(other.pid)
        other.send_signal(signal.SIGKILL)
        until(lambda: nodegpus.Holder(other.pid, "", "").is_ending, "it is ending")
        assert len(reports()) == 1


@pytest.mark.parametrize("gpus", ["3", "0,GPU-c"])
def test_jobs_may_share_a_gpu(gpu: Gpu, tmp_path: Path, gpus: str) -> None:
    living_attempt(tmp_path, "rj-other-a1", gpus)
    with program(**{MARKER_VARIABLE: "rj-other-a1"}) as other:
        gpu.held_by(other.pid)
        assert reports(tmp_path) == []
        assert len(gpu.queries) == 1


@pytest.mark.parametrize("gpus", [None, "2", ""])
def test_job_without_the_gpu_is_reported(gpu: Gpu, tmp_path: Path, gpus: str | None) -> None:
    if gpus is not None:
        living_attempt(tmp_path, "rj-other-a1", gpus)
    with program(**{MARKER_VARIABLE: "rj-other-a1"}) as other:
        gpu.held_by(other.pid)
        (message,) = reports(tmp_path)
    assert "of rj-other-a1, which does not share this GPU) holds 29.3 GiB" in message


def test_ended_job_no_longer_holds_its_gpu(gpu: Gpu, tmp_path: Path) -> None:
    root = living_attempt(tmp_path, "rj-other-a1", "3")
    host = json.loads((root / "host.json").read_text())
    host["start_time"] += 1  # of another process: that one is gone
    (root / "host.json").write_text(json.dumps(host))
    with program(**{MARKER_VARIABLE: "rj-other-a1"}) as other:
        gpu.held_by(other.pid)
        assert len(reports(tmp_path)) == 1


@pytest.mark.parametrize("pid", ["4194999", "[N/A]"])
def test_invisible_program_is_reported_without_waiting(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    monkeypatch.setattr(nodegpus, "PATIENCE_S", FOR_EVER_S)
    monkeypatch.setattr(nodegpus, "LOOK_S", 0.01)
    gpu.hides(f"GPU-c, {pid}, 30000, [Not Found]\n", used=30004)
    (message,) = reports()
    assert "not visible here) holds 29.3 GiB" in message
    assert len(gpu.queries) == nodegpus.LOOKS


def test_memory_that_no_visible_process_holds_is_reported(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodegpus, "LOOK_S", 0.01)
    gpu.hides("", used=70000)
    (message,) = reports()
    assert message.startswith("GPU 3: 68.4 GiB are in use, but not by a process visible here")


@pytest.mark.parametrize("code", [6, 9])
def test_failing_gpu_tool_is_reported_without_delay(gpu: Gpu, code: int) -> None:
    with program() as other:
        gpu.held_by(other.pid)
        gpu.answers(code)
        (message,) = reports()
        assert f"GPU 2,3 could not be checked: nvidia-smi exited with code {code}" in message
        assert len(gpu.queries) == 1


@pytest.mark.parametrize(
    ("lines", "used"), [("No devices were found\n", "4"), ("", "[N/A]"), ("", "[Unknown Error]")]
)
def test_unreadable_gpu_tool_output_is_reported(gpu: Gpu, lines: str, used: str) -> None:
    gpu.hides(lines, used=4)
    (gpu.folder / "memory").write_text(MEMORY.format(used))
    (message,) = reports()
    assert "could not be checked: nvidia-smi prints" in message


def test_a_machine_without_the_tool_is_reported(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(short_path))
    assert reports() == ["whether others use GPU 2,3 could not be checked: PATH has no nvidia-smi"]


def test_job_without_gpus_is_not_checked(gpu: Gpu, tmp_path: Path) -> None:
    assert [one for one in prepared(tmp_path) if one.kind == "gpu"] == []
    assert gpu.queries == []
