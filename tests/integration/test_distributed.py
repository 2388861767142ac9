"""Jobs of several processes on real Ray: they connect, compute, and a failing rank is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs
from rayjobs.spec.model import Distribution
from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray

MEET = """
import os, json
import torch
import torch.distributed as dist
from rayjobs import Run

dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
Run.get_context().log("total", total.item())
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
         "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "AZ_BATCHAI_TASK_INDEX")
print(json.dumps([int(os.environ[name]) for name in names]))
assert os.environ["AZ_BATCHAI_PYTORCH_INIT_METHOD"] == (
    "tcp://" + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
with open("outputs/%s" % os.environ["NODE_RANK"], "w") as file:
    file.write(str(total.item()))
dist.barrier()
dist.destroy_process_group()
"""


def distributed(nodes: int, processes: int) -> Distribution:
    return Distribution(nodes=nodes, processes_per_node=processes, backend="gloo")


def printed(jobs: Jobs, job_id: str, rank: int) -> list[int]:
    """Return what a rank of MEET printed about itself."""
    text = Logs(jobs.workspace, job_id).read(f"azureml-logs/70_driver_log_{rank}.txt")
    return list(json.loads(text))


def test_two_ranks_of_one_node_reduce_and_log(jobs: Jobs) -> None:
    job = jobs.submit(MEET, distribution=distributed(1, 2))
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.attempt(job).cold_reason is None
    assert printed(jobs, job.id, 0) == [0, 0, 2, 2, 0, 0, 0, 2, 0]
    assert printed(jobs, job.id, 1) == [1, 1, 2, 2, 0, 0, 1, 2, 1]
    points = jobs.store.metrics(job.id)
    assert sorted((point.rank, point.value) for point in points) == [(0, 3.0), (1, 3.0)]
    jobs.nothing_left(job)


def test_two_nodes_connect_and_files_of_each_are_kept(jobs: Jobs) -> None:
    job = jobs.submit(MEET, distribution=distributed(2, 1))
    jobs.wait(job, JobState.COMPLETED)
    assert printed(jobs, job.id, 0) == [0, 0, 2, 1, 0, 0, 0, 1, 0]
    assert printed(jobs, job.id, 1) == [1, 0, 2, 1, 1, 1, 1, 1, 1]
    assert jobs.file(job, "outputs/0") == b"3.0"
    assert jobs.file(job, "node-1/outputs/1") == b"3.0"
    attempt = jobs.attempt(job)
    assert [host.node for host in attempt.hosts] == [0, 1]
    assert len({host.root for host in attempt.hosts}) == 2
    assert [record.outcome for record in attempt.exits] == ["completed"] * 2
    jobs.nothing_left(job)


def test_the_rank_that_raised_is_named_and_its_group_ends(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        print("met", flush=True)
        if dist.get_rank() == 1:
            raise ValueError("bad batch of rank 1")
        dist.barrier()
        """,
        distribution=distributed(2, 1),
    )
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.rank == 1, done.failure
    assert "ValueError: bad batch of rank 1" in done.failure.message
    assert str(done.failure.failure_class) == "user"
    assert done.attempt == 1
    jobs.nothing_left(job)


def test_stall_timeout_ends_a_sleeping_rank_after_the_other_is_done(
    jobs: Jobs, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(
        "import os, time\n\n"
        "def sleep_for_ever():\n    time.sleep(3600)\n\n"
        "if os.environ['RANK'] == '1':\n    sleep_for_ever()\n"
    )
    monkeypatch.chdir(tmp_path)
    distribution = ["--nodes", "2", "--backend", "gloo"]
    code = run(["submit", *distribution, "--stall-timeout", "2s", "--grace", "1s", "hangs.py"])
    assert code == 0, capfd.readouterr().err
    (job,) = jobs.store.jobs()
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "stalled", done.failure
    kept = [one.name for one in jobs.store.files(job.id) if "stacks/rank-1-" in one.name]
    assert kept and b"sleep_for_ever" in jobs.file(job, kept[0])
    jobs.nothing_left(job)
