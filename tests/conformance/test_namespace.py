"""An attempt in a PID namespace: its real pids are known, its mounts visible, for any user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.injob.identity import Identity, identity_of, is_alive
from rayjobs.injob.processes import marked
from tests.conformance.hosts import (
    DEADLINE_S,
    NOBODY,
    Attempt,
    namespaces_work,
    run_as_nobody,
    until,
    warm,
)

__all__ = ["warm"]

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not namespaces_work(), reason="no PID namespaces on this machine"),
]
WAIT = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"


def test_recorded_pid_is_the_machines_pid_of_the_rank(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, WAIT, ranks=2, containment=["namespace"], grace_s=0.2).start(
        warm
    )
    for rank, known in enumerate(attempt.status()["ranks"]):
        attempt.printed("pid", rank)
        inner = int(attempt.log(rank).split()[1])
        outer = identity_of(known["pid"])
        assert inner not in (1, known["pid"])
        assert outer is not None and outer.start_time == known["start_time"]
        assert attempt.outside(inner) == outer
        assert known["pid"] in {stat.pid for stat in marked(attempt.marker)}
    attempt.cancel()
    assert [rank["signal"] for rank in attempt.wait()["ranks"]] == [15, 15]


def test_rank_sees_only_processes_of_its_own_attempt(short_path: Path, warm: str) -> None:
    source = (
        "import os, psutil\n"
        "names = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())\n"
        "print(names == psutil.pids(), os.getpid() in names, len(names), psutil.Process().parent())"
    )
    attempt = Attempt.make(short_path, source, containment=["namespace"]).start(warm)
    assert attempt.wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == b"True True 2 None\n"


def test_rank_can_be_inspected_from_outside(short_path: Path, warm: str) -> None:
    """With py-spy, as a node agent or a user does, by the recorded pid."""
    source = (
        "import time\n"
        "def in_the_loop():\n    print('in', flush=True)\n    time.sleep(600)\n"
        "in_the_loop()\n"
    )
    attempt = Attempt.make(short_path, source, containment=["namespace"], grace_s=0.2).start(warm)
    attempt.printed("in")
    pid = attempt.status()["ranks"][0]["pid"]
    spy = Path(sys.executable).with_name("py-spy")
    seen = subprocess.run(
        [spy, "dump", "--nonblocking", "--pid", str(pid)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "in_the_loop" in seen.stdout, seen
    attempt.cancel()
    attempt.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_node_mounts_are_visible_and_proc_is_private(short_path: Path, warm: str) -> None:
    point = short_path / "data"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
    try:
        (point / "shard").write_text("of the node")
        before = Path("/proc/self/mountinfo").read_text().count(" - proc ")
        source = f"print(open('{point}/shard').read(), open('/proc/self/stat').read().split()[0])"
        attempt = Attempt.make(short_path, source, containment=["namespace"]).start(warm)
        assert attempt.wait()["outcome"] == "completed", attempt.log()
        assert attempt.log().startswith(b"of the node ")
        assert Path("/proc/self/mountinfo").read_text().count(" - proc ") == before
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="becoming another user needs root"
)
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_plain_user_gets_a_namespace_without_extra_rights(short_path: Path, way: str) -> None:
    """Through a user namespace, in which a process initially has every right on its own files.

    Off switch: no `drop_capabilities` in `Namespace.enter`.
    """
    source = (
        "import os, signal, subprocess, sys\n"
        "print(os.getuid(), os.getgid(), os.stat(__file__).st_uid)\n"
        "os.mkdir('closed', 0)\n"
        "try:\n    os.listdir('closed')\n"
        "except PermissionError:\n    print('closed to its owner')\n"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line[:6] == 'CapEff'])\n"
        "print(subprocess.run(['id', '-u'], capture_output=True, text=True).stdout, end='')\n"
    )
    attempt = Attempt.make(short_path, source, containment=["namespace"])
    record = run_as_nobody(attempt, short_path, way)
    assert record["tree"] == "namespace" and record["outcome"] == "completed", attempt.log()
    assert attempt.log().decode().splitlines() == [
        f"{NOBODY} {NOBODY} {NOBODY}",
        "closed to its owner",
        "0000000000000000",
        str(NOBODY),
    ]


def test_successful_script_leaves_nothing(short_path: Path, warm: str) -> None:
    """Off switch: the init counts among the members of the tree."""
    record = Attempt.make(short_path, "pass", containment=["namespace"]).start(warm).wait()
    assert record["outcome"] == "completed"
    assert record["leftovers"] == {"killed": 0, "proven_dead": True, "remaining": []}


def test_init_is_gone_after_the_end(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, WAIT, containment=["namespace"], grace_s=0.2).start(warm)
    attempt.printed("pid")
    (init,) = (stat for stat in attempt.members() if stat.comm == "cat")
    attempt.cancel()
    assert attempt.wait()["leftovers"]["proven_dead"] and attempt.identity is not None
    identity = Identity(init.pid, init.start_time, attempt.identity.boot_id)
    until(lambda: not is_alive(identity), "the end of the init")
