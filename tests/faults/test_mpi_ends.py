"""How attempts with MPI ranks end: the named rank and the leftovers, on real mpirun and orted.

Two nodes are two attempt hosts of this machine, each with its own folder and orted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.injob import namespace
from tests.conformance.hosts import warm
from tests.support.mpi_hosts import MpiAttempt, needs_mpi

__all__ = ["warm"]

pytestmark = [pytest.mark.timeout(600), needs_mpi]

MEET = """
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank = world.Get_rank()
world.Barrier()
print("met", flush=True)
"""
WAIT = MEET + "world.recv(source=(rank + 1) % world.Get_size())\n"


def start(folder: Path, script: str, warm: str, **shape: int) -> MpiAttempt:
    """Start an attempt and wait until all its ranks have connected."""
    attempt = MpiAttempt.make(folder, script, **shape).start(warm)
    with attempt.relayed():
        for node in attempt.nodes:
            for rank in node.plan["ranks"]:
                node.printed("met", rank["rank"])
    return attempt


def has_namespaces() -> bool:
    """Whether this machine allows what `containment` = namespace needs."""
    done = subprocess.run(
        [sys.executable, str(namespace.__file__)], capture_output=True, text=True, check=False
    )
    return bool(json.loads(done.stdout or "{}").get("works"))


def test_ranks_in_separate_pid_namespaces_connect(short_path: Path, warm: str) -> None:
    if not has_namespaces():
        pytest.skip("this machine allows no PID namespaces")
    attempt = MpiAttempt.make(short_path, MEET, nodes=2, processes=2, containment=["namespace"])
    with attempt.start(warm).relayed():
        records = attempt.wait()
    assert [(record["outcome"], record["tree"]) for record in records] == [
        ("completed", "namespace")
    ] * 2
    attempt.nothing_left()


@pytest.mark.parametrize("node", [0, 1])
def test_rank_dying_under_mpirun_is_named(short_path: Path, warm: str, node: int) -> None:
    """Off switch: Read MPI's own report instead of the ranks."""
    attempt = start(short_path, WAIT, warm, nodes=2, processes=2)
    victim = 2 * node + 1
    ranks = attempt.nodes[node].status()["ranks"]
    os.kill(next(one["pid"] for one in ranks if one["rank"] == victim), signal.SIGKILL)
    records = attempt.wait_as_group()
    failure = attempt.cause(records)
    assert failure.rank == victim and failure.signal == signal.SIGKILL, failure
    assert failure.failure_class is FailureClass.USER
    attempt.nothing_left()


def test_an_abort_of_one_rank_ends_all_and_its_code_is_reported(
    short_path: Path, warm: str
) -> None:
    """Off switch: as above."""
    abort = MEET + "world.Abort(3) if rank == 1 else world.recv(source=1)\n"
    attempt = start(short_path, abort, warm, processes=2)
    failure = attempt.cause(attempt.wait())
    assert failure.rank == 1 and failure.exit_code == 3, failure
    attempt.nothing_left()


@pytest.mark.parametrize("node", [0, 1], ids=["mpirun", "orted"])
def test_a_killed_mpirun_or_orted_is_named_and_ends_all(
    short_path: Path, warm: str, node: int
) -> None:
    """Off switch: Ignore the end of the launcher of the ranks."""
    attempt = start(short_path, WAIT, warm, nodes=2, processes=1)
    os.kill(attempt.launcher(node).pid, signal.SIGKILL)
    failure = attempt.cause(attempt.wait_as_group())
    name = "orted" if node else "mpirun"
    assert f"{name}, which starts the ranks of node {node}, was ended by SIGKILL" in failure.message
    assert failure.failure_class is FailureClass.SYSTEM
    attempt.nothing_left()


def test_cancel_leaves_nothing_on_either_node(short_path: Path, warm: str) -> None:
    """Off switch: Neither ask mpirun to leave nor kill it."""
    children = "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + WAIT
    attempt = start(short_path, children, warm, nodes=2, processes=1)
    attempt.cancel()
    records = attempt.wait()
    assert [record["outcome"] for record in records] == ["canceled"] * 2
    # Of the script's own processes only: mpirun, orted and the stubs are not its leftovers.
    assert [record["leftovers"]["killed"] for record in records] == [1, 1]
    attempt.nothing_left()


def test_saving_ranks_get_their_grace_period_after_another_ended(
    short_path: Path, warm: str
) -> None:
    """Off switch: Report each rank's end to mpirun immediately."""
    saves = MEET + (
        "def save(*_):\n"
        "    if rank == 0:\n"
        "        while not os.path.exists('gone'):\n"
        "            time.sleep(0.01)\n"
        "        time.sleep(4.0)\n"  # longer than mpirun takes to end after the report
        "        open('saved', 'w').close()\n"
        "    else:\n"
        "        open('gone', 'w').close()\n"
        "    os._exit(1)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    time.sleep(0.05)\n"
    )
    attempt = MpiAttempt.make(short_path, saves, processes=2, grace_s=60.0).start(warm)
    for rank in (0, 1):
        attempt.nodes[0].printed("ready", rank)
    attempt.cancel()
    (record,) = attempt.wait()
    assert record["outcome"] == "canceled"
    assert (attempt.nodes[0].root / "work" / "saved").exists(), attempt.mpi_log()
    attempt.nothing_left()


def test_mpirun_start_failure_is_reported_with_its_message(short_path: Path, warm: str) -> None:
    attempt = MpiAttempt.make(short_path, MEET, processes=1)
    attempt.nodes[0].plan["extras"]["command"] = ["mpirun", "--no-such-option"]
    failure = attempt.cause(attempt.start(warm).wait())
    assert "mpirun ended with code" in failure.message and "no-such-option" in failure.message
    assert failure.failure_class is FailureClass.SYSTEM
