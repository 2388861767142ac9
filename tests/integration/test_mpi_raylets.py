"""Horovod over MPI and over Gloo on two raylets, which share nothing but Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs
from rayjobs.spec.model import Distribution
from tests.integration.test_mpi import HOROVOD
from tests.support.jobs import Jobs
from tests.support.mpi_hosts import needs_horovod, needs_mpi
from tests.support.raylets import RAYLETS, TARGET, Cluster

# Starting and ending a cluster takes longer than all other MPI tests together.
pytestmark = [*RAYLETS, pytest.mark.slow, needs_mpi, needs_horovod]


@pytest.mark.parametrize("backend", ["mpi", "horovod-gloo"])
def test_two_ranks_on_each_of_two_raylets_reduce(
    pool_jobs: Jobs, raylets: Cluster, backend: str
) -> None:
    raylets.ensure(2)
    shape = Distribution.model_validate({"nodes": 2, "processes_per_node": 2, "backend": backend})
    job = pool_jobs.submit(HOROVOD, target=TARGET, distribution=shape, resources={"cpus": 0.5})
    pool_jobs.wait(job, JobState.COMPLETED)
    for rank in range(4):
        text = Logs(pool_jobs.workspace, job.id).read(f"azureml-logs/70_driver_log_{rank}.txt")
        assert json.loads(text) == [rank, 4, rank % 2, 2, rank // 2, 10.0, backend == "mpi"]
    roots = {Path(host.root).parents[2] for host in pool_jobs.attempt(job).hosts}
    assert len(roots) == 2, "the nodes have scratch folders of their own"
    pool_jobs.nothing_left(job)
