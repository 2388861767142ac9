"""Nodes frozen or disconnected beyond a lease: none of their ranks run alongside a retry."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.injob import lease
from rayjobs.injob.lease import HOST_SHARE, LOST_GRACE_S, Lease, boot_clock_s
from rayjobs.node.leases import StartingLeases, require
from tests.conformance.hosts import Attempt, warm
from tests.support.attempts import data_request

__all__ = ["warm"]

PLAN = replace(data_request("/nowhere").plan, lease_s=90.0, lease_since_s=100.0)
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("signalled").touch())
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A node's boot clock, which a test sets."""
    at = [100.0]
    monkeypatch.setattr(lease, "boot_clock_s", lambda: at[0])
    return at


def test_ranks_resumed_after_the_lease_get_no_grace(now: list[float]) -> None:
    granted = Lease(90.0)
    now[0] += 90.0 * HOST_SHARE
    assert granted.why_over() is not None
    assert granted.end_grace_s(600.0) == LOST_GRACE_S  # the host checked in time
    assert granted.end_grace_s(0.5) == 0.5
    now[0] += 1000.0  # it was frozen
    assert granted.end_grace_s(600.0) == 0.0


def test_ranks_without_grace_are_killed_at_once(short_path: Path, warm: str) -> None:
    deaf = Attempt.make(short_path, DEAF, lease_s=2.0, grace_s=600.0).start(warm)
    record = deaf.wait()
    assert record["outcome"] == "lease_lost"
    assert record["ranks"][0]["signal"] == signal.SIGKILL
    assert not (deaf.root / "work" / "signalled").exists()


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_host_with_an_expired_lease_starts_no_rank(short_path: Path, warm: str, kind: str) -> None:
    late = Attempt.make(short_path, DEAF, lease_s=90.0, lease_since_s=boot_clock_s() - 1000.0)
    record = (late.start(warm) if kind == "warm" else late.start_cold()).wait()
    assert record["outcome"] == "lease_lost" and record["ranks"] == []


def test_launch_request_after_its_lease_starts_nothing(now: list[float]) -> None:
    launching = StartingLeases()
    now[0] += 90.0 * HOST_SHARE + 1.0
    with launching.starting(PLAN) as late, pytest.raises(PrepareError, match="was not started"):
        require(late)


def test_lease_is_renewed_during_a_slow_start(now: list[float]) -> None:
    launching = StartingLeases()
    with launching.starting(PLAN) as granted:
        now[0] += 50.0
        stamp = launching.renew(PLAN.marker, None)
        assert granted.left_s == pytest.approx(10.0)  # the first answer only carries a stamp
        now[0] += 5.0
        launching.renew(PLAN.marker, stamp)
        require(granted)
        # The host continues from there, with the same clock and stamps.
        assert granted.since_s == stamp
    assert launching.renew(PLAN.marker, stamp) is None
    assert launching.renew("another", None) is None
