"""Commands that follow a job say where the workspace is once it is moved under them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import __version__
from rayjobs.workspace.folder import open_workspace
from tests.jobs import until
from tests.unit.cli.conftest import Queue
from tests.unit.cli.fake_target import target

RAYJOBS = str(Path(sys.executable).with_name("rayjobs"))
FOLLOWERS = {
    "wait": (["wait", "followed"], "Running"),
    "logs": (["logs", "-f", "followed"], "Running"),
    "merged logs": (["logs", "-f", "-t", "followed"], "Running"),
    "submit": (["submit", "--attach", "--name", "new", "--command", "true"], "Queued"),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_command_that_follows_a_job_names_the_new_path_of_its_workspace(
    tmp_path: Path, name: str
) -> None:
    old, new = tmp_path / "old" / ".rayjobs", tmp_path / "a new" / ".rayjobs"
    with open_workspace(old) as workspace:
        queue = Queue(workspace)
        queue.start(queue.submit("followed"))
    command, follows = FOLLOWERS[name]
    said = tmp_path / "said"
    with target({"ok": True, "version": __version__, "workspaces": [str(old)]}):
        with said.open("wb") as file:
            follower = subprocess.Popen(
                [RAYJOBS, *command, "--workspace", str(old)],
                env=os.environ,
                cwd=tmp_path,
                stdout=file,
                stderr=file,
            )
        try:
            until(lambda: follows in said.read_text(), f"{name} follows")
            new.parent.mkdir()
            old.rename(new)
            assert follower.wait(120) == 5
        finally:
            follower.kill()
            follower.wait()
    assert f"the workspace {old} was moved to {new} in the meantime" in said.read_text()
    assert f"--workspace '{new}'" in said.read_text()
    assert not old.exists(), "it does not create the old folder again"
