"""Horovod over MPI and over Gloo on two raylets, which share nothing but Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.logs import Logs
from rayjobs.spec import Distribution
from rayjobs.states import JobState
from rayjobs.workspace_files import locate, open_workspace
from tests.integration.test_mpi import HOROVOD
from tests.jobs import Jobs
from tests.local_target import remove_runtime_folder
from tests.mpi_hosts import needs_horovod, needs_mpi
from tests.raylets import TARGET, Cluster, ray_cluster

# Starting and ending a cluster takes longer than all other tests of MPI together.
pytestmark = [pytest.mark.ray, pytest.mark.slow, needs_mpi, needs_horovod]

LEASE_S = 90.0


@pytest.fixture(scope="module")
def cluster(session_root: Path) -> Iterator[Cluster]:
    """Two nodes, each with its own scratch, and a head without jobs."""
    with ray_cluster(session_root / "m", lease_s=LEASE_S) as made:
        made.add()
        made.add()
        made.wait_for_nodes(3)
        yield made
    remove_runtime_folder(session_root / "m")


@pytest.mark.parametrize("backend", ["mpi", "horovod-gloo"])
def test_two_ranks_on_each_of_two_raylets_reduce(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(cluster.home))
    with open_workspace(locate()) as workspace:
        jobs = Jobs(workspace, tmp_path)
        shape = Distribution.model_validate(
            {"nodes": 2, "processes_per_node": 2, "backend": backend}
        )
        job = jobs.submit(HOROVOD, target=TARGET, distribution=shape, resources={"cpus": 0.5})
        jobs.wait(job, JobState.COMPLETED)
        for rank in range(4):
            text = Logs(workspace, job.id).read(f"azureml-logs/70_driver_log_{rank}.txt")
            assert json.loads(text) == [rank, 4, rank % 2, 2, rank // 2, 10.0, backend == "mpi"]
        roots = {Path(host["root"]).parents[2] for host in jobs.attempt(job).hosts}
        assert len(roots) == 2, "the nodes have scratch folders of their own"
        jobs.nothing_left(job)
