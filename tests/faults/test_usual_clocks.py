"""A lost and a frozen node of a 64-rank job, with the default timeouts of Ray and rayjobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rayjobs.core.paths import home
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Resources
from rayjobs.target.record import LEASE_S
from rayjobs.workspace.folder import locate, open_workspace
from tests.faults.test_nodes_lost import begin, check_curve
from tests.support.jobs import Jobs
from tests.support.local_target import remove_runtime_folder
from tests.support.raylets import CPUS, RAYLETS, USUAL_CHECKS, Cluster, Node, ray_cluster

pytestmark = [*RAYLETS, pytest.mark.slow, pytest.mark.timeout(1200)]

RANKS = 64
SHAPE = Distribution(nodes=2, processes_per_node=RANKS // 2, backend="gloo")
# Ray takes a minute to give up a silent node; then the lease expires, counted from the
# last renewal; a job of 64 ranks needs time to start on two cores.
PATIENCE_S = 500.0


@pytest.fixture
def cluster(short_path: Path) -> Iterator[Cluster]:
    """A cluster for this test only, started as users start one."""
    with ray_cluster(home(), checks=USUAL_CHECKS, lease_s=LEASE_S) as made:
        yield made
    remove_runtime_folder(home())


def retried(jobs: Jobs, job: Job, lost: Node, history: Path) -> float:
    """Wait for the job's successful end; return the seconds between its two attempts."""
    done = jobs.wait(job, JobState.COMPLETED, deadline_s=PATIENCE_S)
    first, second = jobs.store.attempts(done.id)
    assert first.failure is not None
    assert (first.outcome, str(first.failure.failure_class)) == ("node_lost", "node_lost")
    assert lost.address not in {host.address for host in second.hosts}
    check_curve(jobs, job, history)
    return second.created_at.timestamp()


def test_64_ranks_lose_a_node_and_continue_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ensure(3)
    resources = Resources(cpus=CPUS / (RANKS // 2 + 1))
    with open_workspace(locate()) as workspace:
        jobs = Jobs(workspace, tmp_path)
        for fault in ("killed", "frozen"):
            history = tmp_path / fault
            job = begin(jobs, history, distribution=SHAPE, resources=resources)
            (_, host) = jobs.attempt(job).hosts
            lost = cluster.node_at(host.address)
            raylet = lost.raylet
            at = time.time()
            raylet.kill() if fault == "killed" else raylet.suspend()
            if fault == "killed":
                cluster.begin()  # for the next one
            again_s = retried(jobs, job, lost, history) - at
            print(f"\n{RANKS} ranks, a raylet {fault}: tried again after {again_s:.0f} s")
            assert host.pid is not None and not psutil.pid_exists(host.pid)
            cluster.remove(lost)
