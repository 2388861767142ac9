"""A host is stopped, or killed at its end: its attempt still ends with the correct outcome."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob import exit_record
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.identity import is_alive
from rayjobs.injob.outcomes import CANCELED, EndReason, Outcome
from rayjobs.jobs import rootcause
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from rayjobs.node import node as node_module
from rayjobs.node import stopped_hosts
from rayjobs.node.node import Node
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.settled import Found, Settled
from rayjobs.workspace.folder import open_workspace
from tests.conformance.hosts import Attempt, until, warm
from tests.faults.test_host_leftovers import IN_NAMESPACE, LEAVE_DAEMONS, daemons, start
from tests.support.attempts import on_node_of

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(300)

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
SAVES = """
import signal, sys, time

def save(*_):
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "ANSWER_S", 0.3)
    monkeypatch.setattr(stopped_hosts, "ANSWER_S", 0.3)
    monkeypatch.setattr(stopped_hosts, "LOOK_S", 0.1)


def followed(
    attempt: Attempt, folder: Path, meanwhile: Callable[[Node, AttemptOnNode], Awaitable[None]]
) -> dict[str, Any]:
    """Return the exit record that a node gets from following an attempt."""
    with open_workspace(folder / "w"):
        pass
    on = on_node_of(attempt.plan, folder / "w")

    async def scene() -> dict[str, Any]:
        node = Node("local", folder / "home")
        following = asyncio.ensure_future(node.follow(on))
        await meanwhile(node, on)
        return (await asyncio.wait_for(following, 30.0)).to_json()

    try:
        return asyncio.run(scene())
    finally:
        end_leftovers(attempt.marker, None, 0.0)  # a failed test must not leave a stopped host


def stop(attempt: Attempt) -> int:
    """Stop an attempt's host; return its pid."""
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGSTOP)
    return attempt.identity.pid


@pytest.mark.parametrize("way", ["warm", "cold", IN_NAMESPACE, "by its host"])
def test_a_cancel_ends_the_attempt_of_a_stopped_host(short_path: Path, warm: str, way: str) -> None:
    """With daemons that wiped their environment, for each kind of containment."""
    attempt = start(Attempt.make(short_path, LEAVE_DAEMONS, "stay"), way, warm)
    left = daemons(attempt)
    stop(attempt)

    async def cancel(node: Node, on: AttemptOnNode) -> None:
        await node.stop(on, CANCELED, grace_s=0.2)

    record = followed(attempt, short_path, cancel)
    assert rootcause.diagnose([ExitRecord.from_json(record)], {}) == ("canceled", None)
    assert record["leftovers"]["proven_dead"]
    assert not find_leftovers(attempt.marker)
    assert not any(is_alive(one) for one in left)
    assert exit_record.read(str(attempt.root)) == ExitRecord.from_json(record)


def test_the_ranks_of_a_stopped_host_have_their_grace(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, SAVES).start(warm)
    attempt.printed("up")
    stop(attempt)

    async def cancel(node: Node, on: AttemptOnNode) -> None:
        await node.stop(on, CANCELED, grace_s=2.0)

    assert followed(attempt, short_path, cancel)["outcome"] == "canceled"
    assert attempt.log().endswith(b"saved\n")


@pytest.mark.parametrize("later_s", [0.0, 0.4])  # the ranks still exist; their node ended them
def test_host_resumed_within_the_grace_ends_its_attempt(
    short_path: Path, warm: str, later_s: float
) -> None:
    attempt = Attempt.make(short_path, SLEEPS).start(warm)
    attempt.printed("up")
    pid = stop(attempt)

    async def cancel(node: Node, on: AttemptOnNode) -> None:
        await node.stop(on, CANCELED, grace_s=1.0)
        await asyncio.sleep(later_s)
        os.kill(pid, signal.SIGCONT)

    record = followed(attempt, short_path, cancel)
    assert record["outcome"] == "canceled"
    assert record["ranks"][0]["signal"] == signal.SIGTERM
    assert not (attempt.root / exit_record.OUTCOME).exists()


def test_responsive_host_is_not_overridden(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, SLEEPS).start(warm)
    attempt.printed("up")

    async def scene() -> None:
        stopped = stopped_hosts.StoppedHosts(lambda *_: None)
        on = on_node_of(attempt.plan)
        stopped.end(on, attempt.host, Outcome.CANCELED, "canceled", grace_s=0.0)
        while stopped._ending:
            await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert attempt.status()["state"] == "running"
    attempt.cancel(grace_s=0.0)
    assert attempt.wait()["outcome"] == "canceled"


async def nothing(_node: Node, _on: AttemptOnNode) -> None:
    return


def test_the_time_limit_of_a_stopped_host_is_kept(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, SLEEPS, max_duration_s=2.0, grace_s=0.0).start(warm)
    attempt.printed("up")
    stop(attempt)
    record = followed(attempt, short_path, nothing)
    outcome, failure = rootcause.diagnose([ExitRecord.from_json(record)], {})
    assert outcome == "time_limit"
    assert failure is not None
    assert "time limit of 2s" in failure.message
    assert not find_leftovers(attempt.marker)


def test_the_stall_timeout_of_a_stopped_host_is_kept(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, SLEEPS, stall_timeout_s=1.5, grace_s=0.0).start(warm)
    attempt.printed("up")
    stop(attempt)
    record = followed(attempt, short_path, nothing)
    outcome, failure = rootcause.diagnose([ExitRecord.from_json(record)], {})
    assert outcome == "stalled"
    assert failure is not None
    assert "the attempt host did not answer" in failure.message


LEAVES = """
import os, signal, time

if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("left", flush=True)
    time.sleep(600)
    os._exit(0)
time.sleep(0.1)
"""


@pytest.mark.parametrize(("code", "outcome"), [(0, "completed"), (9, "failed")])
def test_outcome_is_final_if_the_host_is_killed_while_ending_daemons(
    short_path: Path, warm: str, code: int, outcome: str
) -> None:
    attempt = Attempt.make(short_path, f"{LEAVES}\nos._exit({code})\n").start(warm)
    until((attempt.root / exit_record.OUTCOME).exists, "the outcome is kept", 30.0)
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGKILL)
    record = followed(attempt, short_path, nothing)
    assert record["outcome"] == outcome
    assert record["ranks"][0]["exit_code"] == code
    assert record["leftovers"]["proven_dead"]
    assert not find_leftovers(attempt.marker)


def test_restarted_target_reads_the_kept_outcome(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, LEAVES).start(warm)
    until((attempt.root / exit_record.OUTCOME).exists, "the outcome is kept", 30.0)
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGKILL)

    async def settled() -> Settled:
        node = Node("local", short_path / "home")
        return await node.ends.settle(on_node_of(attempt.plan), end=True)

    found = asyncio.run(settled())
    assert (found.state, found.proven, found.ended_now) == (Found.ENDED, True, False)
    assert found.exit is not None and found.exit.outcome is Outcome.COMPLETED


def test_outcome_of_another_attempt_is_ignored(tmp_path: Path) -> None:
    known = ExitRecord(job="j", attempt=1, node=0, marker="a", outcome=Outcome.COMPLETED)
    exit_record.write_outcome(str(tmp_path), known)
    assert exit_record.has_outcome(str(tmp_path), "a")
    assert not exit_record.has_outcome(str(tmp_path), "b")
    exit_record.write_outcome(str(tmp_path), replace(known, outcome=Outcome.CANCELED))
    found = exit_record.with_outcome(str(tmp_path), replace(known, outcome=Outcome.HOST_ERROR))
    assert found is not None and found.outcome is Outcome.COMPLETED


def test_an_outcome_that_an_earlier_version_kept_is_read(tmp_path: Path) -> None:
    kept = {"marker": "a", "outcome": "canceled", "reason": "preempted: for job b"}
    (tmp_path / exit_record.OUTCOME).write_text(json.dumps(kept))
    lost = ExitRecord(
        job="j", attempt=1, node=0, marker="a", outcome=Outcome.HOST_ERROR, reason="killed"
    )
    found = exit_record.with_outcome(str(tmp_path), lost)
    assert found is not None
    assert (found.outcome, found.end_reason) == (Outcome.CANCELED, EndReason.PREEMPTED)
    assert (found.job, found.reason) == ("j", "preempted: for job b")
