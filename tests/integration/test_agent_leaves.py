"""A node without attempts has no agent after a while; the next job has one, and starts warm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rayjobs.core.paths import NodePaths, TargetPaths
from rayjobs.jobs.states import JobState
from rayjobs.launch import hostclient
from rayjobs.node.warm import NodeWarm
from rayjobs.target import targets
from rayjobs.workspace.folder import locate, open_workspace
from tests.conformance.hosts import namespaces_work
from tests.support.jobs import Jobs, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture
def home(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running head for this test only, whose agent leaves soon, with namespaces if allowed."""
    settings = {
        "RAYJOBS_HOME": str(short_path / "h"),
        "RAYJOBS_LOCAL_CPUS": "2",
        "RAYJOBS_LOCAL_DASHBOARD": "0",
        "RAYJOBS_PRELOAD": "json",
        "RAYJOBS_AGENT_LINGER_S": "0.2",
        "RAYJOBS_HOLD": "namespace" if namespaces_work() else "auto",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    place = short_path / "h"
    targets.start_target(home=place)
    yield place
    targets.stop_target(force=True, home=place)


def agents(home: Path) -> list[int]:
    """The pids of the agents, found by their log, since Ray renames its workers."""
    logs = str(TargetPaths.of("local", under=home).log / "agent-")
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"].startswith("ray::") and any(
                file.path.startswith(logs) for file in process.open_files()
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def warm_pid(home: Path) -> int | None:
    """The pid of the node's warm interpreter, if it responds."""
    warm = NodeWarm(NodePaths(home / "node").root, home / "unused")
    found = asyncio.run(hostclient.ping_warm(str(warm.socket_of())))
    return None if found is None else found.identity.pid


def test_job_starts_warm_after_its_agent_left(home: Path, tmp_path: Path) -> None:
    """Off switch: `Linger.due_in_s` is never 0; or `RayAgent` takes no successor."""
    workspace = open_workspace(locate())
    jobs = Jobs(workspace, tmp_path)
    try:
        seen = []
        for _ in range(2):
            job = jobs.wait(jobs.submit("import os; print(os.getppid() == 0)"), JobState.COMPLETED)
            assert jobs.attempt(job).number == 1, [e.message for e in jobs.store.events(job.id)]
            assert jobs.attempt(job).cold_reason is None
            assert jobs.log(job) == b"%r\n" % namespaces_work()
            assert not [event for event in jobs.store.events(job.id) if "agent" in event.kind]
            seen.append(warm_pid(home))
            until(lambda: not agents(home), "the agent has left")
        assert seen[0] is not None and seen[0] == seen[1]
        jobs.nothing_left(job)
    finally:
        workspace.close()
