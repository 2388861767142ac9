"""The warm interpreter ends while its job runs: the next one starts, and jobs stay warm."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.injob.identity import Identity, identity_of, own_identity, send_signal
from rayjobs.injob.warm_messages import WarmRequest
from rayjobs.launch import hostclient, hoststart
from rayjobs.node.warm import NodeWarm
from tests.conformance.hosts import Attempt, base_env, namespaces_work, until
from tests.support.attempts import data_request

pytestmark = pytest.mark.timeout(600)

# It forks, so that the files that a rank's own children inherit are checked as well.
WAITS = """
import os, sys, time
child = os.fork()
if child:
    print("up", sorted(os.listdir("/proc/self/fd"), key=int), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
CONTAINMENTS = (["cgroup", "scan"], *([["namespace"]] if namespaces_work() else []))


class Node:
    """Starts the warm interpreter of one test, as often as requested."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "w.sock")
        self.log = folder / "warm.log"

    def warm(self, *, idle_s: float = 600.0) -> Identity:
        """Return the responding interpreter, started if there is none."""
        found = asyncio.run(
            hostclient.ensure_warm(
                self.socket,
                python=sys.executable,
                env=base_env(),
                log_file=str(self.log),
                preload=(),
                idle_s=idle_s,
            )
        )
        return found.identity

    def start(self, folder: Path, go: Path, containment: list[str]) -> Attempt:
        """Start an attempt that runs until the file `go` is there."""
        attempt = Attempt.make(folder, WAITS, str(go), containment=containment).start(self.socket)
        assert attempt.cold is None, attempt.cold
        attempt.printed("up")
        return attempt

    def begin(
        self, folder: Path, go: Path, containment: list[str], *, idle_s: float
    ) -> tuple[Identity, Attempt] | None:
        """Return the interpreter and its attempt; None when it was idle before."""
        warm = self.warm(idle_s=idle_s)
        try:
            return warm, self.start(folder, go, containment)
        except hostclient.WarmError:
            return None


@pytest.fixture
def node(short_path: Path) -> Iterator[Node]:
    node = Node(short_path)
    yield node
    asyncio.run(hostclient.stop_warm(node.socket))


@pytest.mark.parametrize("containment", CONTAINMENTS, ids=lambda containment: containment[0])
@pytest.mark.parametrize("way", ["killed", "idle"])
def test_the_next_warm_interpreter_starts_while_a_job_of_the_last_one_runs(
    short_path: Path, node: Node, way: str, containment: list[str]
) -> None:
    go = short_path / "go"
    first, running = until(
        lambda: node.begin(short_path, go, containment, idle_s=600.0 if way == "killed" else 1.0),
        "an attempt that was forked before the interpreter was idle for a second",
    )
    if way == "killed":
        send_signal(first, signal.SIGKILL)
    until(lambda: not hostclient.is_alive(first), "the end of the warm interpreter")
    second = node.warm()
    assert second != first and hostclient.is_alive(second)
    third = node.start(short_path, go, containment)
    assert {rank["alive"] for rank in running.status()["ranks"]} == {True}
    go.write_text("")
    for attempt in (running, third):
        assert attempt.wait()["outcome"] == "completed"


def test_interpreter_of_a_dead_cluster_ends_soon(short_path: Path, node: Node) -> None:
    """Off switch: keep it for its idle time, half an hour, even if no agent returns."""
    with subprocess.Popen(["sleep", "600"]) as raylet, subprocess.Popen(["sleep", "600"]) as other:
        warm = node.warm()
        for one in (raylet, other):
            identity = identity_of(one.pid)
            assert identity is not None
            ping = WarmRequest("ping", is_user=True, raylet=identity)
            assert asyncio.run(hostclient.ping_warm(node.socket, ping)) is not None
        raylet.kill()
        raylet.wait()
        assert asyncio.run(hostclient.ping_warm(node.socket)) is not None  # the other one lives
        other.kill()
    until(lambda: not hostclient.is_alive(warm), "the end of the warm interpreter")
    assert not Path(node.socket).exists()


def test_no_job_process_holds_resources_of_the_warm_interpreter(
    short_path: Path, node: Node
) -> None:
    node.warm()
    go = short_path / "go"
    attempt = node.start(short_path, go, list(CONTAINMENTS[-1]))
    assert attempt.identity is not None
    files = {
        os.readlink(f"/proc/{pid}/fd/{number}")
        for pid in (attempt.identity.pid, *(stat.pid for stat in attempt.members()))
        for number in os.listdir(f"/proc/{pid}/fd")
    }
    assert not [name for name in files if node.socket in name], files
    go.write_text("")
    assert attempt.wait()["outcome"] == "completed"


def test_name_held_by_another_user_is_reported_without_waiting(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: wait until the time for a start is over."""
    monkeypatch.setattr(hoststart, "HELD_S", 0.0)
    monkeypatch.setenv("RAYJOBS_HOME", str(short_path / "h"))
    root = short_path / "n"
    root.mkdir()
    warm = NodeWarm(root, short_path / "warm.log")
    socket = warm.socket_of()
    starts = []
    real = hostclient.ensure_warm

    async def ensure_warm(*arguments: object, **options: object) -> object:
        starts.append(arguments)
        return await real(*arguments, **options, timeout_s=60.0)  # type: ignore[arg-type]

    monkeypatch.setattr(hostclient, "ensure_warm", ensure_warm)
    with open(f"{socket}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plan = replace(data_request(root / "a1").plan, python=sys.executable)

        async def twice() -> list[tuple[Path | None, str]]:
            return [await warm.ready(plan), await warm.ready(plan)]

        answers = asyncio.run(twice())
    assert len(starts) == 1, "the second job waited for another start"
    for found, reason in answers:
        assert found is None and f"{socket}.lock" in reason and "no process answers" in reason, (
            reason
        )


def test_importing_interpreter_is_waited_for(short_path: Path, node: Node) -> None:
    """Off switch: treat a holder of the lock that does not listen yet as stuck."""
    lock = Path(node.socket + ".lock")
    lock.write_text(json.dumps(own_identity().to_json()))
    assert hoststart._is_importing(node.socket)
    Path(node.socket).write_text("")
    assert not hoststart._is_importing(node.socket)
    Path(node.socket).unlink()
    gone = node.warm()
    assert Identity.from_json(json.loads(lock.read_bytes())) == gone
    send_signal(gone, signal.SIGKILL)
    until(lambda: not hostclient.is_alive(gone), "the end of the warm interpreter")
    assert not hoststart._is_importing(node.socket)
