"""Healthy nodes that Ray considers dead because all are too busy to respond."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rayjobs.core.paths import TargetPaths, home
from rayjobs.jobs.states import JobState
from rayjobs.target import starting, targets
from rayjobs.target.reports import CapacityReport
from rayjobs.workspace.folder import locate, open_workspace
from tests.faults.stages import TELLS, WAITS
from tests.faults.test_nodes_lost import begin, check_curve
from tests.support.jobs import Jobs, until
from tests.support.local_target import LocalTarget
from tests.support.raylets import CPUS, RAYLETS, TARGET, Cluster

pytestmark = [*RAYLETS, pytest.mark.slow]

NODES = 2
# By default Ray considers a node dead after 65 s without a response.
LONGER_THAN_RAY_WAITS_S = 80.0


def given_up(raylets: Cluster) -> bool:
    """Whether the target has no node that accepts jobs."""
    seen = CapacityReport.read(TargetPaths.of(TARGET, under=raylets.home)).nodes
    return bool(seen) and {one.address for one in seen} <= {raylets.nodes[0].address}


def is_running(process: psutil.Process) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_losing_all_nodes_at_once_costs_each_job_one_attempt(
    pool_jobs: Jobs, raylets: Cluster, tmp_path: Path
) -> None:
    raylets.ensure(NODES)
    histories = {}
    for number in range(NODES * CPUS):
        history = tmp_path / f"history{number}"
        histories[begin(pool_jobs, history).id] = history
    busy = raylets.nodes[1:]
    processes = [node.raylet for node in busy]
    for raylet in processes:
        raylet.suspend()
    until(lambda: given_up(raylets), "Ray has given up all nodes")
    for raylet in processes:
        raylet.resume()
    # Ray notifies them, and they end: a dead node never returns.
    until(lambda: not any(is_running(raylet) for raylet in processes), "the raylets have ended")
    hosts = [pool_jobs.store.attempts(job)[0].hosts[0].pid for job in histories]
    pids = [pid for pid in hosts if pid is not None]
    assert len(pids) == len(histories)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "nothing runs on them")
    for node in busy:
        raylets.remove(node)
    raylets.ensure(NODES)
    for job_id, history in histories.items():
        job = pool_jobs.store.job(job_id)
        done = pool_jobs.wait(job, JobState.COMPLETED)
        first, second = pool_jobs.store.attempts(done.id)
        assert first.failure is not None
        assert str(first.failure.failure_class) == "node_lost"
        assert second.outcome == "completed"
        check_curve(pool_jobs, job, history)


@pytest.fixture
def own_target(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTarget]:
    """A local head for this test only."""
    monkeypatch.setenv("RAYJOBS_LOCAL_DASHBOARD", "0")  # half the time of a start
    starting.ensure_target("local", home=home())
    yield LocalTarget(short_path / "h", ())
    targets.stop_target(force=True, home=short_path / "h")


def test_the_only_node_is_not_given_up(own_target: LocalTarget, tmp_path: Path) -> None:
    go = tmp_path / "go"
    before = own_target.head
    identity = before.identity("raylet")
    assert identity is not None
    with open_workspace(locate()) as workspace:
        jobs = Jobs(workspace, tmp_path)
        variables = {"GO": str(go), "HISTORY": str(tmp_path / "history")}
        job = jobs.submit(TELLS + WAITS, environment_variables=variables)
        jobs.wait_for_output(job, b"up")
        jobs.wait(job, JobState.RUNNING)
        raylet = psutil.Process(identity.pid)
        raylet.suspend()
        time.sleep(LONGER_THAN_RAY_WAITS_S)
        raylet.resume()
        after = jobs.wait(jobs.submit("print('next')"), JobState.COMPLETED)
        assert after.attempt == 1
        assert own_target.head.instance == before.instance
        go.write_text("")
        assert jobs.wait(job, JobState.COMPLETED).attempt == 1
