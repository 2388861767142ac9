"""No process of a container outlives its host; a node without containers reports a remedy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.identity import is_alive
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.jobs.rootcause import diagnose
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.node.containers import Capability, NodeContainers
from rayjobs.node.probe import ProbeResult
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import ContainerRequest
from rayjobs.snapshots import NodeSnapshots
from rayjobs.workspace.folder import OpenWorkspace
from tests.conformance.hosts import Attempt, until
from tests.support.attempts import request_of
from tests.support.containers import image, in_image, mounts_below, needs_containers, run_once

__all__ = ["image"]

pytestmark = [needs_containers, pytest.mark.timeout(300)]

# Two grandchildren in their own sessions that ignore signals, one with its environment wiped.
DAEMONS = """
import os, signal, subprocess, sys, time
deaf = ("import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('daemon', os.getpid(), flush=True); time.sleep(600)")
leave = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
for env in (None, {}):
    words = [sys.executable, "-c", leave, sys.executable, "-c", deaf]
    subprocess.Popen(words, start_new_session=True, env=env).wait()
print("ready", flush=True)
time.sleep(600)
"""


def with_daemons(short_path: Path, image: Path) -> Attempt:
    attempt = in_image(Attempt.make(short_path, DAEMONS, grace_s=0.5), image).start_cold()
    until(lambda: attempt.log().count(b"daemon") == 2 and b"ready" in attempt.log(), "daemons")
    return attempt


def test_killed_host_ends_setsid_grandchildren_and_mounts(short_path: Path, image: Path) -> None:
    """Off switch: an init that does not end with its host, in `Namespace.make`."""
    attempt = with_daemons(short_path, image)
    pids = [int(line.split()[1]) for line in attempt.log().splitlines() if line[:1] == b"d"]
    left = [found for pid in pids if (found := attempt.outside(pid)) is not None]
    assert len(left) == 2
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGKILL)
    until(lambda: not [one for one in left if is_alive(one)], "the end of the grandchildren")
    until(lambda: not find_leftovers(attempt.marker), "the end of all processes")
    assert mounts_below(short_path) == []


def test_cancel_ends_container_daemons_that_ignore_signals(short_path: Path, image: Path) -> None:
    attempt = with_daemons(short_path, image)
    attempt.cancel()
    record = attempt.wait()
    assert record["outcome"] == "canceled"
    assert record["leftovers"]["proven_dead"]
    assert not find_leftovers(attempt.marker)


def test_container_check_reports_kernel_restrictions(tmp_path: Path) -> None:
    """In a separate user namespace that allows no PID namespaces."""
    script = f"""
import os
from pathlib import Path
from rayjobs.injob import namespace, kernel
from rayjobs.node.containers import capability_of
user, group = os.geteuid(), os.getegid()
kernel.unshare(kernel.CLONE_NEWUSER)
for name, text in (("setgroups", "deny"), ("uid_map", f"{{user}} {{user}} 1"),
                   ("gid_map", f"{{group}} {{group}} 1")):
    Path("/proc/self", name).write_text(text)
for kind in ("pid", "user"):
    Path(f"/proc/sys/user/max_{{kind}}_namespaces").write_text("0")
print(capability_of(Path({str(tmp_path)!r})).why)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "PID namespaces: unshare: No space left on device" in done.stdout, done


def _no_workspace(path: str) -> OpenWorkspace:
    raise AssertionError(f"the workspace {path} must not be opened")


def bring(
    folder: Path,
    plan: LaunchPlan,
    request: ContainerRequest,
    able: Capability | None,
    whose: str = "environment",
) -> str:
    """Return why an image cannot be fetched for a plan."""
    node = NodeContainers(
        folder / "images",
        Workspaces(_no_workspace, shares_disk=True),
        NodeSnapshots(folder / "snapshots"),
    )
    node._report = lambda *_: None  # type: ignore[method-assign]
    if able is not None:
        node._capability = ProbeResult(lambda: able, failed=lambda _: able)
    with pytest.raises(PrepareError) as caught:
        asyncio.run(node.bring(request_of(plan, folder, container=request)))
    assert caught.value.failure_class == whose
    assert caught.value.is_permanent
    return str(caught.value)


def test_node_without_container_support_names_both_remedies(short_path: Path) -> None:
    plan = LaunchPlan.from_json(Attempt.make(short_path, "pass").plan)
    problem = bring(
        short_path, plan, ContainerRequest(image="python:3.13"), Capability("user namespaces: no")
    )
    assert "container images cannot be run on this node: user namespaces: no. You can" in problem
    assert "start the node itself from the image" in problem
    assert "packages in the job's `environment`" in problem


def test_an_image_that_lacks_python_or_mpirun_is_refused_before_its_ranks_start(
    short_path: Path, image: Path
) -> None:
    attempt = Attempt.make(short_path, "pass")
    plan = LaunchPlan.from_json(attempt.plan)
    empty = short_path / "empty"
    empty.mkdir()
    problem = bring(short_path, plan, ContainerRequest(image=str(empty)), None)
    assert "the image has no Python that can run the script" in problem
    attempt.plan["extras"] = {"kind": "mpi", "socket": "x", "nodes": []}
    plan = LaunchPlan.from_json(attempt.plan)
    problem = bring(short_path, plan, ContainerRequest(image=str(image)), None)
    assert "its PATH lacks mpirun or orted, or `mpirun --version` prints nothing" in problem


def test_an_image_without_a_shell_is_refused_before_a_command_starts(
    short_path: Path, image: Path
) -> None:
    plan = LaunchPlan.from_json(Attempt.make(short_path, "", kind="command", command="ls /").plan)
    empty = short_path / "empty"
    empty.mkdir()
    problem = bring(short_path, plan, ContainerRequest(image=str(empty)), None)
    assert problem.startswith(
        "the image has no /bin/sh, which runs the job's command. Use an image"
    )


def test_limit_above_the_node_limit_is_reported(short_path: Path, image: Path) -> None:
    attempt = in_image(
        Attempt.make(short_path, "pass"),
        image,
        limits=[{"name": "nofile", "soft": -1, "hard": -1}],
    )
    record = attempt.start_cold().wait()
    assert record["outcome"] == "not_startable"
    assert "--ulimit nofile=-1:-1 is above the node's own limit" in record["reason"]


def test_a_volume_whose_source_the_node_lacks_is_refused_before_the_image_is_fetched(
    short_path: Path,
) -> None:
    plan = LaunchPlan.from_json(Attempt.make(short_path, "pass").plan)
    missing = short_path / "data"
    request = ContainerRequest(image="python:3.13", arguments=("-v", f"{missing}:/data:ro"))
    problem = bring(short_path, plan, request, None, "user")
    assert problem.startswith(
        f"the node {os.uname().nodename} has no {missing}, the source of the volume /data: No such"
    )
    assert "create it on each node of the target, or correct the path" in problem


@pytest.mark.parametrize("how", ["gone", "file", "ours"])
def test_unmountable_volume_is_a_user_failure(short_path: Path, image: Path, how: str) -> None:
    """The source was removed after the node's check, or the mount point is a file."""
    folder = short_path / "data"
    if how == "file":
        folder.mkdir()
    target = "/etc/passwd/data" if how == "file" else "/data"
    volume = {"source": str(folder), "target": target, "of_job": how != "ours"}
    attempt = in_image(Attempt.make(short_path, "pass"), image, more_binds=[volume])
    record = ExitRecord.from_json(attempt.start_cold().wait())
    outcome, failure = diagnose([record], {}, brings_programs=True)
    assert failure is not None
    if how == "ours":  # created only by rayjobs
        assert (outcome, failure.failure_class) == (Outcome.HOST_ERROR, FailureClass.SYSTEM)
        return
    problem = {
        "gone": f"the node {os.uname().nodename} has no {folder}, the source of the volume /data",
        "file": "the image has a file where the folder /etc/passwd/data belongs",
    }[how]
    assert f"the container cannot be set up for the ranks: {problem}" in failure.message
    assert (outcome, failure.failure_class) == (Outcome.NOT_STARTABLE, FailureClass.USER)
    assert failure.is_permanent


def test_image_query_program_returns_the_exit_code_of_its_command(
    short_path: Path, image: Path
) -> None:
    done = run_once(image, short_path / "run", "/bin/sh", "-c", "echo hello; exit 7")
    assert (done.returncode, done.stdout) == (7, "hello\n")
    done = run_once(image, short_path / "missing", "/no/such/program")
    assert done.returncode == 127
    assert "cannot be run in the image" in done.stderr
