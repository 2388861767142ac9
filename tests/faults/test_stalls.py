"""Hanging attempts end with the stacks of all ranks, and the hanging rank is named."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.injob import lease, stacks, stall
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.host_messages import HostRequest, HostStacks
from rayjobs.injob.identity import identity_of, own_identity
from rayjobs.injob.lease import Lease
from rayjobs.injob.rank_stack import RankStack
from rayjobs.jobs.rootcause import diagnose
from tests.conformance.hosts import Attempt, until, warm

__all__ = ["warm"]

HANGS = """
import os, time

def wait_in_a_collective():
    time.sleep(600)

def compute_for_ever():
    time.sleep(600)

print("up", flush=True)
if os.environ["RANK"] == "1":
    compute_for_ever()
wait_in_a_collective()
"""
TALKS = """
import os, time
print("up", flush=True)
while os.environ["RANK"] == "0":
    print("step", flush=True)
    time.sleep(0.05)
time.sleep(600)
"""
# Ends by itself, so that a host that waits forever is detected in time.
CONTINUES = """
import time
print("up", flush=True)
time.sleep(20)
"""


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_silence_ends_an_attempt_and_the_deviating_rank_is_named(
    short_path: Path, warm: str, kind: str
) -> None:
    hangs = Attempt.make(short_path, HANGS, ranks=3, stall_timeout_s=5.0, grace_s=0.5)
    record = (hangs.start(warm) if kind == "warm" else hangs.start_cold()).wait()
    assert record["outcome"] == "stalled", record["reason"]
    where = {one["rank"]: one["where"] for one in record["stacks"]}
    assert "wait_in_a_collective" in where[0] and "compute_for_ever" in where[1], where
    kept = sorted((hangs.root / "work" / "logs" / "stacks").iterdir())
    assert [path.name.rpartition("-")[0] for path in kept] == ["rank-0", "rank-1", "rank-2"]
    assert "compute_for_ever" in kept[1].read_text()
    outcome, failure = diagnose([ExitRecord.from_json(record)], {})
    assert failure is not None
    assert (outcome, failure.failure_class, failure.rank) == ("stalled", FailureClass.STALLED, 1)
    assert "rank 1 is at train.py:8 in compute_for_ever" in failure.message


def test_stopped_rank_is_a_stall_although_another_rank_prints(short_path: Path, warm: str) -> None:
    talks = Attempt.make(short_path, TALKS, ranks=2, stall_timeout_s=3.0, grace_s=0.5).start(warm)
    talks.printed("up", rank=1)
    os.kill(talks.status()["ranks"][1]["pid"], signal.SIGSTOP)
    record = talks.wait()
    assert record["outcome"] == "stalled"
    _, failure = diagnose([ExitRecord.from_json(record)], {})
    assert failure is not None
    assert failure.rank == 1 and "rank 1 is stopped by a signal (SIGSTOP)" in failure.message


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_rank_dumps_its_own_stacks_without_ptrace(
    short_path: Path, warm: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Attempt.make(short_path, HANGS, ranks=2, stall_timeout_s=600.0)
    _ = hangs.start(warm) if kind == "warm" else hangs.start_cold()
    hangs.printed("up", rank=1)
    monkeypatch.setattr(stacks, "_by_py_spy", lambda _pid: None)
    identity = identity_of(hangs.status()["ranks"][1]["pid"])
    assert identity is not None
    file = str(hangs.root / "stacks-1.txt")

    def dumped() -> stacks.Dump | None:
        found = stacks.dump(1, identity, file)
        return found if found is not None and "compute_for_ever" in found.where else None

    dump = until(dumped, "the rank hangs in its function")
    assert dump.how == "signal"
    # Without both methods, /proc provides the state, and the rank always continues.
    last = stacks.dump(1, identity, None)
    assert last is not None
    assert last.how == "proc" and "state S" in last.text
    assert hangs.status()["state"] == "running"
    hangs.cancel(0.1)
    hangs.wait()


def test_stacks_of_a_living_attempt_on_demand(short_path: Path, warm: str) -> None:
    hangs = Attempt.make(short_path, HANGS, ranks=2).start(warm)
    hangs.printed("up", rank=1)
    answer = asyncio.run(hangs.host.ask(HostRequest("stacks"), HostStacks))
    assert [one.rank for one in answer.ranks] == [0, 1]
    assert all(one.text for one in answer.ranks)
    assert hangs.status()["state"] == "running"
    hangs.cancel(0.1)
    hangs.wait()


def entry(rank: int, **more: Any) -> RankStack:
    record = {"rank": rank, "state": "S", "how": "py-spy", "where": "", "waits": False, **more}
    return RankStack.from_json(record)


@pytest.mark.parametrize(
    ("ranks", "odd"),
    [
        ([entry(0, waits=True), entry(1, waits=True), entry(2, where="a.py:1 in f")], [2]),
        ([entry(0, state="T"), entry(1, where="x")], [0]),
        ([entry(0, where="x"), entry(1, where="x"), entry(2, where="y")], [2]),
        ([entry(0, where="x"), entry(1, where="y")], []),
        ([entry(0, where="x"), entry(1, where="x")], []),
        ([], []),
    ],
)
def test_rank_with_a_different_stack_is_identified(ranks: list[RankStack], odd: list[int]) -> None:
    assert stacks.odd_ones(ranks)[0] == odd


# -- leases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_host_whose_lease_is_not_renewed_ends_its_ranks(
    short_path: Path, warm: str, kind: str
) -> None:
    alone = Attempt.make(short_path, CONTINUES, lease_s=1.5)
    record = (alone.start(warm) if kind == "warm" else alone.start_cold()).wait()
    assert record["outcome"] == "lease_lost" and record["leftovers"]["proven_dead"]
    assert all(rank["exit_code"] != 0 for rank in record["ranks"])
    outcome, failure = diagnose([ExitRecord.from_json(record)], {})
    assert failure is not None
    assert (outcome, failure.failure_class) == ("node_lost", FailureClass.NODE_LOST)


def test_a_host_whose_raylet_has_ended_does_not_wait_for_its_lease(
    short_path: Path, warm: str
) -> None:
    gone = {**own_identity().to_json(), "start_time": 1}  # the pid now belongs to another process
    record = Attempt.make(short_path, CONTINUES, lease_s=600.0, raylet=gone).start(warm).wait()
    assert record["outcome"] == "lease_lost" and "raylet" in record["reason"]


def test_late_renewal_does_not_extend_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(lease, "boot_clock_s", lambda: now[0])
    held = Lease(90.0)
    stamp = held.renew(None)
    now[0] += 50.0
    assert held.renew(stamp) == 150.0 and held.left_s == pytest.approx(10.0)
    now[0] += 5.0
    held.renew(1e9)  # a stamp that was never given
    assert held.left_s == pytest.approx(5.0)
    held.renew(150.0)
    assert held.left_s == pytest.approx(55.0)
    held.renew(stamp)  # an older one, delayed in transit
    assert held.left_s == pytest.approx(55.0)
    now[0] += 55.0
    assert held.why_over() is not None
    assert Lease(None).why_over() is None


def test_silent_node_does_not_stall_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stall, "boot_clock_s", lambda: now[0])
    watch = stall.StallWatch(5.0, is_alone=False)
    watch.add(0, own_identity(), "/nowhere")
    watch.look()
    now[0] += 60.0
    watch.look()
    assert watch.silent_s == pytest.approx(60.0)
    assert watch.why_stalled() is None  # its target compares the nodes


def test_a_line_a_metric_or_a_touch_by_one_rank_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(stall, "boot_clock_s", lambda: now[0])
    watch = stall.StallWatch(5.0, is_alone=True)
    files = [tmp_path / "log", tmp_path / "metrics"]
    for rank, file in enumerate(files):
        watch.add(rank, own_identity(), str(file))
    watch.look()
    for step in range(1, 4):
        now[0] += 4.0
        file = files[step % 2]
        file.write_text("x" * step)
        os.utime(file, (step, step))
        watch.look()
        assert watch.why_stalled() is None, step
    now[0] += 5.0
    watch.look()
    assert "no rank has logged" in str(watch.why_stalled())
