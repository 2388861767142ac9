"""Jobs whose ranks Open MPI starts, and Horovod's own controller, on real Ray."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs
from rayjobs.spec.model import Distribution, Resources
from tests.support.jobs import Jobs
from tests.support.mpi_hosts import needs_horovod, needs_mpi

pytestmark = [pytest.mark.ray, needs_mpi]

PATH = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
HOROVOD = """
import json, os
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="total")
print(json.dumps([hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(),
                  total.item(), hvd.mpi_enabled()]), flush=True)
assert os.environ["AZ_BATCHAI_TASK_INDEX"] == str(hvd.rank())
hvd.shutdown()
"""


def shape(nodes: int, processes: int, backend: str = "mpi") -> Distribution:
    return Distribution(nodes=nodes, processes_per_node=processes, backend=backend)


def printed(jobs: Jobs, job_id: str, rank: int) -> list[object]:
    """Return what a rank of HOROVOD printed about itself."""
    text = Logs(jobs.workspace, job_id).read(f"azureml-logs/70_driver_log_{rank}.txt")
    return list(json.loads(text))


def submit_command(jobs: Jobs, script: str, **spec: Any) -> Job:
    """Submit a shell command with a train.py next to it."""
    source = jobs.folder / "with-command"
    source.mkdir()
    (source / "train.py").write_text(textwrap.dedent(script))
    return jobs.submit_folder(source, script=None, **spec)


@needs_horovod
@pytest.mark.parametrize("backend", ["mpi", "horovod-gloo"])
def test_horovod_reduces_over_two_nodes_of_two_ranks(jobs: Jobs, backend: str) -> None:
    job = jobs.submit(HOROVOD, distribution=shape(2, 2, backend))
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.attempt(job).cold_reason is None
    is_mpi = backend == "mpi"
    for rank in range(4):
        expected = [rank, 4, rank % 2, 2, rank // 2, 10.0, is_mpi]
        assert printed(jobs, job.id, rank) == expected
    names = {file.name for file in jobs.store.files(job.id)}
    assert ("azureml-logs/70_mpi_log.txt" in names) == is_mpi
    if is_mpi:
        assert jobs.file(job, "azureml-logs/70_mpi_log.txt").startswith(b"$ mpirun -np 4 ")
    jobs.nothing_left(job)


def test_cold_ranks_of_one_node_are_started_by_mpi(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        import os
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK")
        print(*(os.environ[name] for name in names), "PMIX_RANK" in os.environ)
        """,
        distribution=shape(1, 2),
        cold=True,
    )
    jobs.wait(job, JobState.COMPLETED)
    for rank in range(2):
        log = Logs(jobs.workspace, job.id).read(f"azureml-logs/70_driver_log_{rank}.txt")
        assert log.decode().split() == [str(rank), "2", str(rank), "2", str(rank), "True"]
    jobs.nothing_left(job)


@needs_horovod
def test_rank_failing_under_mpirun_is_named(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        print("met", flush=True)
        if hvd.rank() == 1:
            raise ValueError("bad batch of rank 1")
        hvd.allreduce(torch.ones(1), name="never")
        """,
        distribution=shape(2, 1),
    )
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.rank == 1, done.failure
    assert "ValueError: bad batch of rank 1" in done.failure.message
    assert str(done.failure.failure_class) == "user"
    jobs.nothing_left(job)


def test_a_command_is_run_once_per_node(jobs: Jobs) -> None:
    job = submit_command(
        jobs,
        "",
        command='echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"',
        distribution=shape(2, 1),
    )
    jobs.wait(job, JobState.COMPLETED)
    for rank in range(2):
        log = Logs(jobs.workspace, job.id).read(f"azureml-logs/70_driver_log_{rank}.txt")
        assert log == b"%d of 2\n" % rank


def test_mpi4py_works_inside_a_job(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        print(world.allreduce(world.Get_rank() + 1), MPI.Get_library_version().split(",")[0])
        """,
        distribution=shape(1, 2),
    )
    jobs.wait(job, JobState.COMPLETED)
    for rank in range(2):
        log = Logs(jobs.workspace, job.id).read(f"azureml-logs/70_driver_log_{rank}.txt")
        assert log.startswith(b"3 Open MPI v"), log


def test_torchrun_works_inside_a_job(jobs: Jobs) -> None:
    job = submit_command(
        jobs,
        """
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print("reduced", total.item(), flush=True)
        dist.barrier()
        dist.destroy_process_group()
        """,
        command="torchrun --standalone --nproc-per-node 2 train.py",
        environment_variables={"PATH": PATH, "GLOO_SOCKET_IFNAME": "lo"},
    )
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job).count(b"2.0") == 2


@needs_horovod
def test_horovod_on_gpus_without_gpu_operations_is_refused_with_two_remedies(jobs: Jobs) -> None:
    from rayjobs.core.errors import SpecError

    with pytest.raises(SpecError) as caught:
        jobs.submit(HOROVOD, distribution=shape(1, 2), resources=Resources(gpus=1))
    text = str(caught.value)
    assert "without GPU operations" in text
    assert "--gpu" in text and "--backend nccl" in text
    plain = jobs.submit(
        "print('no horovod')", distribution=shape(1, 2), resources=Resources(gpus=1)
    )
    jobs.wait(plain, JobState.COMPLETED)


@needs_horovod
def test_the_example_reaches_the_accuracy_of_one_process(jobs: Jobs) -> None:
    example = Path(__file__).parents[2] / "examples" / "horovod"
    job = jobs.submit_folder(example, distribution=shape(2, 1), arguments=("--epochs", "2"))
    jobs.wait(job, JobState.COMPLETED)
    points = [point for point in jobs.store.metrics(job.id) if point.name == "accuracy"]
    assert {point.rank for point in points} == {0}
    assert [point.step for point in points] == [1, 2]
    assert points[-1].value is not None and points[-1].value > 0.9, points
    assert "outputs/model.pt" in {file.name for file in jobs.store.files(job.id)}
