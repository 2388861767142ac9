"""No process outlives its attempt: daemons, processes that ignore signals, dead hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.injob import cgroups, processes
from rayjobs.injob.identity import Identity, identity_of, is_alive, send_signal, stat_of
from rayjobs.injob.processes import marked
from rayjobs.injob.tree import make_cgroup
from rayjobs.launch.hostclient import HostGone, WarmError
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from tests.conformance.hosts import Attempt, namespaces_work, until, warm

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(600)  # some wait for several ends, each with a long deadline

# Leaves daemons that ignore signals in their own sessions, by exec and by fork, with environments
# wiped, and one such child; then does what its argument says.
LEAVE_DAEMONS = """
import os, signal, subprocess, sys, time

def daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("daemon", os.getpid(), flush=True)
            while True:
                time.sleep(60)
        os._exit(0)
    os.wait()

signal.signal(signal.SIGTERM, signal.SIG_IGN)
daemon("forked")
deaf = "import time; print('daemon', __import__('os').getpid(), flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, env={})
print("ready", os.getpid(), flush=True)
if sys.argv[1] == "stay":
    while True:
        time.sleep(60)
"""


def daemons(attempt: Attempt) -> list[Identity]:
    """The three daemons, after all have reported their pids."""

    def found() -> list[Identity] | None:
        lines = attempt.log().decode().split("\n")[:-1]
        pids = [int(line.split()[1]) for line in lines if line.startswith("daemon")]
        found = [attempt.outside(pid) for pid in pids]
        known = [identity for identity in found if identity is not None]
        return known if len(known) == 3 else None

    return until(found, "three daemons")


def wait_for_death(identity: Identity) -> None:
    until(lambda: not is_alive(identity), f"the death of {identity}")


IN_NAMESPACE = pytest.param(
    "namespace",
    marks=pytest.mark.skipif(not namespaces_work(), reason="no PID namespaces on this machine"),
)


def start(attempt: Attempt, way: str, socket: str) -> Attempt:
    """Start warm, cold, held by a namespace (warm), or held by its host alone (cold)."""
    if way == "namespace":
        attempt.plan["containment"] = ["namespace"]
    if way in ("warm", "namespace"):
        return attempt.start(socket)
    return attempt.start_cold(RAYJOBS_CGROUPS="1" if way == "cold" else "0")


@pytest.mark.parametrize("way", ["warm", "cold", IN_NAMESPACE, "subreaper"])
def test_cancel_ends_daemons_and_ranks_that_ignore_signals(
    short_path: Path, warm: str, way: str
) -> None:
    """Off switch: let `Tree.kill` do nothing (the record then says so), or `Tree.held` be empty."""
    attempt = start(Attempt.make(short_path, LEAVE_DAEMONS, "stay", grace_s=0.5), way, warm)
    left = daemons(attempt)
    attempt.printed("ready")
    # An empty scan proves something only if the scan finds live processes.
    pid = attempt.status()["ranks"][0]["pid"]
    assert pid in {stat.pid for stat in marked(attempt.marker)}
    assert all(is_alive(identity) for identity in left)
    attempt.cancel()
    record = attempt.wait()
    assert record["outcome"] == "canceled"
    assert record["leftovers"]["proven_dead"] and record["leftovers"]["killed"] >= 3
    assert not [identity for identity in left if is_alive(identity)]
    assert not find_leftovers(attempt.marker)
    if way in ("namespace", "subreaper"):
        assert record["tree"] == way


@pytest.mark.parametrize("way", ["warm", IN_NAMESPACE, "subreaper"])
def test_daemons_of_a_finished_script_are_ended_and_it_stays_completed(
    short_path: Path, warm: str, way: str
) -> None:
    """Off switch: let `Ending.advance` be over as soon as all ranks have ended."""
    attempt = start(Attempt.make(short_path, LEAVE_DAEMONS, "leave", grace_s=1.0), way, warm)
    record = attempt.wait()
    pids = [int(line.split()[1]) for line in attempt.log().splitlines() if line[:1] == b"d"]
    assert record["outcome"] == "completed"
    assert record["leftovers"]["proven_dead"] and record["leftovers"]["killed"] >= 1
    assert not find_leftovers(attempt.marker)
    assert not [pid for pid in pids if (stat := stat_of(pid)) and stat.session in pids]


def test_cgroups_are_removed_at_the_end(short_path: Path, warm: str) -> None:
    """Off switch: no `remove_cgroups_of` in `Ending.make_record`."""
    attempt = Attempt.make(short_path, "pass", memory_bytes=2**30, pids_max=100)
    attempt.start(warm).wait()
    for mount in cgroups.mounts():
        assert not [name for name in os.listdir(mount.own) if attempt.marker in name]


def test_ranks_die_with_their_host_and_a_sweep_ends_the_rest(short_path: Path, warm: str) -> None:
    """Off switch: no `kernel.die_with_parent` in `fork_rank`; a sweep that does not kill."""
    for way in ("warm", "subreaper"):
        attempt = start(Attempt.make(short_path, LEAVE_DAEMONS, "stay"), way, warm)
        attempt.printed("ready")
        left = daemons(attempt)
        rank = identity_of(attempt.status()["ranks"][0]["pid"])
        assert rank is not None
        host = json.loads((attempt.root / "host.json").read_text())
        assert attempt.identity is not None
        os.kill(attempt.identity.pid, signal.SIGKILL)
        wait_for_death(rank)
        with pytest.raises(HostGone):
            attempt.wait()
        assert any(is_alive(identity) for identity in left)
        proof = end_leftovers(attempt.marker, host["cgroup"], grace_s=0.1)
        assert proof.proven_dead, proof
        carriers = [identity for identity in left if is_alive(identity)]
        if host["cgroup"] is None:
            # The one with a wiped environment cannot be found without a cgroup or a host.
            assert len(carriers) <= 1
            for identity in carriers:
                send_signal(identity, signal.SIGKILL)
        else:
            assert not carriers
        assert end_leftovers(attempt.marker, host["cgroup"], grace_s=0.1).killed == 0


@pytest.mark.skipif(not namespaces_work(), reason="no PID namespaces on this machine")
def test_a_namespace_ends_everything_when_the_host_is_killed(short_path: Path, warm: str) -> None:
    """No sweep is needed, and a wiped environment hides nothing.

    Off switch: the init inherits the other end of its pipe, and so never reads to its end.
    """
    attempt = start(Attempt.make(short_path, LEAVE_DAEMONS, "stay"), "namespace", warm)
    attempt.printed("ready")
    left = daemons(attempt)
    assert attempt.identity is not None and all(is_alive(identity) for identity in left)
    os.kill(attempt.identity.pid, signal.SIGKILL)
    try:
        for identity in left:
            wait_for_death(identity)
    finally:
        proof = end_leftovers(attempt.marker, None, grace_s=0.1)
    assert proof.proven_dead, proof


def test_refused_required_containment_is_an_error(short_path: Path) -> None:
    attempt = Attempt.make(short_path, "pass", containment=["cgroup"])
    with pytest.raises(
        WarmError, match="are to be contained by cgroup, which this machine does not"
    ):
        attempt.start_cold(RAYJOBS_CGROUPS="0")


def test_reused_pid_is_never_signalled(short_path: Path) -> None:
    """Off switch: no `is_alive` in `send_signal`."""
    with subprocess.Popen(["/bin/sleep", "600"]) as bystander:
        try:
            real = identity_of(bystander.pid)
            assert real is not None and is_alive(real)
            for stale in (
                Identity(real.pid, real.start_time - 1, real.boot_id),
                Identity(real.pid, real.start_time, "another boot"),
            ):
                assert not is_alive(stale)
                assert not send_signal(stale, signal.SIGKILL)
            assert bystander.poll() is None
            # Never a real cgroup here: a failing test would end the processes in it.
            strange = short_path / "cgroup-of-others"
            strange.mkdir()
            (strange / "cgroup.procs").write_text(f"{bystander.pid}\n")
            assert end_leftovers("no-such-marker", str(strange), grace_s=0).proven_dead
            assert bystander.poll() is None
            assert send_signal(real, signal.SIGKILL)
            bystander.wait(150)
            until(lambda: not send_signal(real, signal.SIGKILL), "the end of the process")
        finally:
            bystander.kill()


def test_sweep_of_another_boot_touches_nothing(short_path: Path) -> None:
    """Off switch: ignore `boot` in `end_leftovers`."""
    env = {**os.environ, "RAYJOBS_MARKER": "of-another-boot"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env) as other:
        try:
            until(lambda: marked("of-another-boot"), "the marked process")
            assert end_leftovers("of-another-boot", boot="another boot").killed == 0
            assert other.poll() is None
            assert end_leftovers("of-another-boot", grace_s=0.1).killed == 1
        finally:
            other.kill()


def test_a_process_in_the_middle_of_an_exec_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off switch: let `environment_of` believe the first reading.

    The kernel then shows an empty environment block: in some 4 of 1,000 readings of this process.
    """
    again = (
        "import os, sys; me = sys.executable; os.execv(me, [me, '-ISc', sys.argv[1], sys.argv[1]])"
    )
    env = {**os.environ, "RAYJOBS_MARKER": "in-an-exec"}
    with subprocess.Popen([sys.executable, "-ISc", again, again], env=env) as process:
        monkeypatch.setattr(processes, "all_pids", lambda: [process.pid])
        try:
            assert all(marked("in-an-exec") for _ in range(5000))
        finally:
            process.kill()


@pytest.mark.parametrize("way", ["warm", IN_NAMESPACE])
def test_fork_bomb_stays_within_its_limit_and_ends(short_path: Path, warm: str, way: str) -> None:
    """Off switch: no `ProcessLimit.add`, which must never be done without another limit."""
    probe = make_cgroup("probe-for-pids")
    has_version_2 = probe is not None and os.path.exists(os.path.join(probe, "pids.max"))
    if probe is not None:
        cgroups.remove(probe)
    if not has_version_2 and not any(
        "pids" in mount.controllers and os.access(mount.own, os.W_OK) for mount in cgroups.mounts()
    ):
        pytest.skip("no writable pids controller on this machine")
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "for _ in range(500):\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid(); time.sleep(600)\n"
        "        made += 1\n"
        "    except BlockingIOError:\n"
        "        break\n"
        "print('stopped', made, flush=True)\n"
        "time.sleep(600)\n"
    )
    attempt = start(Attempt.make(short_path, bomb, pids_max=40, grace_s=0.2), way, warm)
    attempt.printed("stopped")
    assert 1 <= int(attempt.log().split()[1]) <= 40
    attempt.cancel()
    record = attempt.wait()
    assert record["leftovers"]["proven_dead"] and record["pids"]["how"] != "none"
