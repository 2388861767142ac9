"""The reports of a target's actor: which files it writes, and when."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from rayjobs.core.paths import TargetPaths
from rayjobs.engine.reporting import Reporting
from rayjobs.protocol.agent import NodeInfo
from rayjobs.target.answers import NodeStatus
from rayjobs.target.reports import Activity, CapacityReport

NODE = NodeInfo("n1", "10.0.0.1", 4.0, 1.0, 8.0, 3.0, 0.0, 7.0, "small")


@pytest.fixture
def paths(tmp_path: Path) -> TargetPaths:
    found = TargetPaths.of("lab", under=tmp_path)
    found.root.mkdir(parents=True)
    return found


def test_the_activity_and_the_nodes_are_reported(paths: TargetPaths) -> None:
    reporting = Reporting(paths)
    reporting.report(is_busy=True, nodes=[NODE])
    activity = Activity.read(paths)
    assert activity is not None and activity.busy
    assert 0 < activity.at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert activity.pid == os.getpid()
    assert CapacityReport.read(paths).nodes == (NodeStatus(**vars(NODE)),)
    reporting.report(is_busy=False, nodes=[])
    activity = Activity.read(paths)
    assert activity is not None and not activity.busy
    assert CapacityReport.read(paths).nodes  # without living nodes, the last report stays


def test_an_unchanged_report_is_not_written_again(
    paths: TargetPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: now_s)
    reporting = Reporting(paths)
    reporting.report(is_busy=True, nodes=[NODE])
    paths.activity.unlink()
    paths.capacity.unlink()
    reporting.report(is_busy=True, nodes=[NODE])
    assert not paths.activity.exists() and not paths.capacity.exists()
    now_s += 6.0  # a regular report of the activity is due
    reporting.report(is_busy=True, nodes=[NODE])
    assert Activity.read(paths) == Activity(busy=True, at=106.0, pid=os.getpid())
    assert not paths.capacity.exists()


def test_a_report_that_cannot_be_written_is_logged(
    paths: TargetPaths, caplog: pytest.LogCaptureFixture
) -> None:
    paths.root.rmdir()
    with caplog.at_level(logging.WARNING):
        Reporting(paths).report(is_busy=True, nodes=[NODE])
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"]
    assert "activity.json" in caplog.text and "capacity.json" in caplog.text
    assert not paths.root.exists()  # a removed target stays removed
