"""An interactive run whose process dies gets the correct end, without any target (fault 112)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Experiment, Run, Workspace
from rayjobs.jobs import writers
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.workspace.folder import open_workspace

SCRIPT = """
import json, os, sys
from rayjobs import Experiment, Workspace

workspace = Workspace.create("team", path=sys.argv[1], exist_ok=True)
experiment = Experiment(workspace, "notes")
alone = experiment.start_logging(snapshot_directory=None, outputs=False)
alone.log("loss", 0.5)
done = experiment.start_logging(snapshot_directory=None, outputs=False)
child = done.child_run()
done.complete()
print(json.dumps([os.getpid(), alone.id, child.id]), flush=True)
"""
ENDS = {
    "killed": "import time\nwhile True: time.sleep(60)\n",
    "exits": "",
    "raises": "raise SystemExit(3)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "team"


def started(folder: Path, end: str) -> tuple[subprocess.Popen[str], int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + ENDS[end], str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder.parent,
    )
    assert process.stdout is not None
    with process.stdout:
        pid, alone, child = json.loads(process.stdout.readline())
    return process, pid, alone, child


@pytest.mark.parametrize("end", sorted(ENDS))
def test_next_reader_ends_the_runs_of_a_dead_process(folder: Path, end: str) -> None:
    process, pid, alone, child = started(folder, end)
    if end == "killed":
        with open_workspace(folder) as opened:
            assert opened.store.job(alone).state is JobState.RUNNING  # it is alive
        os.kill(pid, signal.SIGKILL)
    process.wait(60)
    with open_workspace(folder) as opened:
        lost = opened.store.job(alone)
        assert lost.state is JobState.FAILED
        assert lost.failure is not None
        assert "ended without run.complete() or run.fail()" in lost.failure.message
        assert lost.ended_at is not None
        followed = opened.store.job(child)
        assert (followed.state, followed.reason) == (
            JobState.COMPLETED,
            "its parent run has completed",
        )
        assert opened.store.run_writers() == []
        assert [point.value for point in opened.store.metrics(alone)] == [0.5]


def test_open_handle_sees_the_end(folder: Path) -> None:
    process, pid, alone, _child = started(folder, "killed")
    workspace = Workspace("", "", "team", path=folder)
    handle = Run.get(workspace, alone)
    assert handle.status == "Running"
    os.kill(pid, signal.SIGKILL)
    process.wait(60)
    assert handle.status == "Failed"
    assert handle.wait_for_completion(raise_on_error=False)["status"] == "Failed"
    assert {one.status for one in Experiment(workspace, "notes").get_runs()} == {
        "Failed",
        "Completed",
    }
    workspace.close()


def test_processes_of_other_machines_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine-id"
    machine.write_text("a" * 32 + "\n")
    monkeypatch.setattr(writers, "MACHINE_ID", str(machine))
    own = ProcessWriter.own()
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False),
        ({"start_time": own.start_time - 1}, True),  # another process has its pid
        ({"namespace": "pid:[1]", "pid": 1}, False),  # another container
        ({"boot_id": "other"}, True),  # this machine was restarted
        ({"boot_id": "other", "host": "elsewhere"}, False),  # another machine
        ({"boot_id": "other", "machine": "b" * 32}, False),  # another machine of the same name
        ({"boot_id": "other", "machine": ""}, False),  # written where the machine is not known
    )
    for value, is_gone in cases:
        writer = replace(own, **value)
        assert writer.is_gone == is_gone, value
    assert replace(own, boot_id="other").is_of_earlier_boot
    machine.unlink()
    assert not replace(own, boot_id="other").is_gone
