"""Commands that follow a job continue at the new path when its workspace is moved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayjobs import __version__
from rayjobs.jobs.hosts import HostRecord
from rayjobs.workspace.folder import open_workspace
from tests.support.jobs import until
from tests.unit.cli.conftest import Queue
from tests.unit.cli.fake_target import target

RAYJOBS = str(Path(sys.executable).with_name("rayjobs"))
FOLLOWERS = {
    "wait": (["wait", "followed"], "Running"),
    "logs": (["logs", "-f", "followed"], "first line"),
    "submit": (["submit", "--attach", "--name", "new", "--command", "true"], "Queued"),
}


@contextmanager
def following(folder: Path, old: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (
        target({"ok": True, "version": __version__, "workspaces": [str(old)]}),
        (folder / "output").open("wb") as file,
        subprocess.Popen(
            [RAYJOBS, *command, "--workspace", str(old)],
            env=os.environ,
            cwd=folder,
            stdout=file,
            stderr=file,
        ) as follower,
    ):
        try:
            yield follower
        finally:
            follower.kill()


def running(queue: Queue, folder: Path) -> None:
    """Run a job that prints into an attempt's folder on this machine."""
    job = queue.start(queue.submit("followed"))
    root = folder / "attempt"
    (root / "log").mkdir(parents=True)
    (root / "log" / "driver_0.log").write_bytes(b"first line\n")
    hosts = [HostRecord(root=str(root), marker="m")]
    queue.workspace.store.set_hosts(job.id, attempt=1, hosts=hosts)


@pytest.mark.parametrize("name", FOLLOWERS)
def test_following_command_continues_at_the_moved_workspace(tmp_path: Path, name: str) -> None:
    old, new = tmp_path / "old" / ".rayjobs", tmp_path / "a new" / ".rayjobs"
    with open_workspace(old) as workspace:
        running(Queue(workspace), tmp_path)
    command, follows = FOLLOWERS[name]
    output = tmp_path / "output"
    with following(tmp_path, old, command) as follower:
        until(lambda: follows in output.read_text(), f"{name} follows")
        new.parent.mkdir()
        old.rename(new)
        moved = f"was moved to {new}; following it there"
        until(lambda: moved in output.read_text(), "it continues at the new path")
        with open_workspace(new) as workspace:
            queue = Queue(workspace)
            job = workspace.store.find("new" if name == "submit" else "followed")
            if name == "submit":
                job = queue.start(job)
            with (tmp_path / "attempt" / "log" / "driver_0.log").open("ab") as log:
                log.write(b"last line\n")
            queue.finish(job)
        assert follower.wait(120) == 0, output.read_text()
    if name == "logs":
        assert output.read_text().count("first line\n") == 1
        assert "last line\n" in output.read_text()
    assert not old.exists(), "it does not create the old folder again"


def test_merged_logs_command_names_the_new_path(tmp_path: Path) -> None:
    old, new = tmp_path / "old" / ".rayjobs", tmp_path / "a new" / ".rayjobs"
    with open_workspace(old) as workspace:
        queue = Queue(workspace)
        queue.start(queue.submit("followed"))
    output = tmp_path / "output"
    with following(tmp_path, old, ["logs", "-f", "-t", "followed"]) as follower:
        until(lambda: "Running" in output.read_text(), "it follows")
        new.parent.mkdir()
        old.rename(new)
        assert follower.wait(120) == 5
    assert f"the workspace {old} was moved to {new} in the meantime" in output.read_text()
    assert f"--workspace '{new}'" in output.read_text()
    assert not old.exists(), "it does not create the old folder again"
