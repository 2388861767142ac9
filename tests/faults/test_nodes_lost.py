"""Nodes of a cluster die or freeze under their jobs: one live attempt, and a complete curve."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import psutil

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints
from rayjobs.spec.model import Distribution
from tests.support.jobs import Jobs, until
from tests.support.raylets import RAYLETS, TARGET, Cluster

pytestmark = RAYLETS

# Each rank records its steps in a file, independently of rayjobs.
TRAIN = """
import json, os, time
from rayjobs import Run, checkpoint

run = Run.get_context()
found = checkpoint.latest()
first = 0 if found is None else found.step + 1
attempt, rank = int(os.environ["RAYJOBS_ATTEMPT"]), int(os.environ.get("RANK", 0))
group = int(os.environ.get("WORLD_SIZE", 1)) > 1
if group:
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
step = first
while first == 0 or step < first + 10:
    if group:
        dist.all_reduce(torch.ones(1))
    if rank == 0:
        run.log("loss", 1 / (step + 1), step=step)
        if step % 20 == 0:
            checkpoint.save(step, {"model.bin": b"weights %d" % step}, keep=4)
    with open(os.environ["HISTORY"], "a") as file:
        print(json.dumps([attempt, rank, step, time.time()]), file=file)
    print("step", step, os.getcwd(), flush=True)
    step += 1
    time.sleep(0.05)
with open("outputs/rank-%d.txt" % rank, "w") as file:
    file.write(os.getcwd())
if group:
    dist.barrier()
    dist.destroy_process_group()
"""


def history(path: Path) -> list[tuple[int, int, int, float]]:
    """Return (attempt, rank, step, epoch seconds) as the ranks wrote them, without torn lines."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def begin(jobs: Jobs, history: Path, **spec: object) -> Job:
    job = jobs.submit(TRAIN, target=TARGET, environment_variables={"HISTORY": str(history)}, **spec)
    until(
        lambda: checkpoints.newest(jobs.store, jobs.workspace.blobs, job.id),
        "a checkpoint is in the store",
    )
    return job


def check_curve(jobs: Jobs, job: Job, history_file: Path) -> None:
    """Check that every step was measured once, and that no two attempts ran at once."""
    points = [p for p in jobs.store.metrics(job.id) if p.name == "loss"]
    steps = [point.step for point in points]
    assert steps == list(range(len(steps))), steps
    ran = history(history_file)
    spans = [
        (
            min(at for a, _, _, at in ran if a == attempt),
            max(at for a, _, _, at in ran if a == attempt),
        )
        for attempt in sorted({attempt for attempt, *_ in ran})
    ]
    assert all(before[1] < after[0] for before, after in pairwise(spans)), spans


def test_a_killed_raylet_costs_a_group_one_attempt(
    pool_jobs: Jobs, raylets: Cluster, tmp_path: Path
) -> None:
    history = tmp_path / "history"
    two = Distribution(nodes=2, processes_per_node=1, backend="gloo")
    raylets.ensure(2)
    job = begin(pool_jobs, history, distribution=two)
    hosts = pool_jobs.attempt(job).hosts
    lost = raylets.node_at(hosts[1].address)
    lost.raylet.kill()
    raylets.begin()  # the one that replaces it
    done = pool_jobs.wait(job, JobState.COMPLETED)
    first, second = pool_jobs.store.attempts(done.id)
    assert first.failure is not None
    assert (first.outcome, str(first.failure.failure_class)) == ("node_lost", "node_lost")
    assert lost.address not in {host.address for host in second.hosts}
    losses = [one.message for one in pool_jobs.store.events(job.id) if one.kind == "node_lost"]
    assert len(losses) == 1 and lost.address in losses[0], losses
    check_curve(pool_jobs, job, history)
    # Each node has its own scratch folder, and the files of each node are stored.
    for host, name in zip(
        second.hosts, ("outputs/rank-0.txt", "node-1/outputs/rank-1.txt"), strict=True
    ):
        scratch = raylets.node_at(host.address).scratch
        assert pool_jobs.file(job, name).decode().startswith(f"{scratch}/"), name
    raylets.remove(lost)


def test_the_ranks_of_a_frozen_node_end_before_the_retry_begins(
    pool_jobs: Jobs, raylets: Cluster, tmp_path: Path
) -> None:
    history = tmp_path / "history"
    raylets.ensure(2)
    job = begin(pool_jobs, history)
    (host,) = pool_jobs.attempt(job).hosts
    frozen = raylets.node_at(host.address)
    frozen.raylet.suspend()
    done = pool_jobs.wait(job, JobState.COMPLETED)
    first, second = pool_jobs.store.attempts(done.id)
    assert first.failure is not None
    assert (first.outcome, str(first.failure.failure_class)) == ("node_lost", "node_lost")
    assert host.address not in {one.address for one in second.hosts}
    check_curve(pool_jobs, job, history)
    assert host.pid is not None and not psutil.pid_exists(host.pid)
    raylets.remove(frozen)
