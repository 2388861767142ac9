"""What the processes of a target inherit from the shell that started them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from rayjobs.jobs.states import JobState
from rayjobs.target import keeper_state, local_head
from tests.support.jobs import Jobs
from tests.support.local_target import SETTINGS, LocalTarget

pytestmark = pytest.mark.ray


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""  # it has ended


def test_no_process_of_a_target_holds_a_secret_of_the_shell_that_started_it(
    jobs: Jobs, local_target: LocalTarget
) -> None:
    """Off switch: return True in `target.local_head.is_kept`."""
    jobs.wait(jobs.submit("print()"), JobState.COMPLETED)  # so that there is an agent
    pids = {one.pid for one in local_head.processes_of(local_head.ray_folder(local_target.home))}
    owner = keeper_state.keeper_of(local_target.paths)
    assert owner is not None
    pids.add(owner.pid)
    names = {psutil.Process(pid).name() for pid in pids if psutil.pid_exists(pid)}
    assert {"gcs_server", "raylet"} <= names
    assert any(name.startswith("ray::NodeAgent") for name in names)
    secret = SETTINGS["AWS_SECRET_ACCESS_KEY"].encode()
    seen = [environment_of(pid) for pid in pids]
    assert sum(b"RAYJOBS_HOME" in one for one in seen) >= 4  # their environments are readable
    assert not [one for one in seen if secret in one]
