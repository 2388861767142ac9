"""Ranks of machines with several networks, and with host names that lead to the wrong address."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.spec.model import JobSpec
from tests.conformance.hosts import Attempt
from tests.support.machines import APART, Machine, two_machines, why_not
from tests.support.mpi_hosts import MpiAttempt, needs_horovod, needs_mpi

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no machine can be made: {why_not()}")

DEBIANS = "127.0.1.1"
PORT = 29_577  # free: no other program runs on these machines
LIMIT_S = 90.0  # ranks that do not connect may wait forever
# The launcher's part of a plan for one node; the rest comes from the attempt's folder.
TAKEN = ("address", "ranks", "master_port", "extras")
MEETING = ("MASTER_", "HOROVOD_", "WORLD_SIZE")

TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("reduced", total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
MPI = """
import os
from mpi4py import MPI
assert os.environ["OMPI_MCA_btl_vader_backing_directory"] == os.environ["TMPDIR"]
print("reduced", float(MPI.COMM_WORLD.allreduce(1)), flush=True)
"""
HOROVOD = """
import torch
import horovod.torch as hvd
hvd.init()
print("reduced", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
"""


def attempts(
    folder: Path, machines: tuple[Machine, Machine], backend: str, script: str
) -> MpiAttempt:
    """Return one attempt on both machines, as the launcher of a backend plans it."""
    shape = {"nodes": 2, "processes_per_node": 1, "backend": backend}
    now = datetime.now(UTC)
    job = Job(
        id="j",
        serial=1,
        experiment="test",
        spec=JobSpec.model_validate({"script": "train.py", "distribution": shape}),
        state=JobState.PREPARING,
        submitted_at=now,
        changed_at=now,
    )
    made = [
        Attempt.make(folder, script, node=node, node_count=2, grace_s=2.0, max_duration_s=LIMIT_S)
        for node in range(2)
    ]
    context = AttemptContext(
        job=job,
        attempt=1,
        nodes=tuple(
            PlannedNode(node, f"n{node}", machine.address, folder)
            for node, machine in enumerate(machines)
        ),
        markers=tuple(one.marker for one in made),
        workspace_name="ws",
        workspace_path=str(folder),
        master_port=PORT,
    )
    plans = [one.to_json() for one in launcher_for(job.spec).plans(context)]
    for attempt, plan in zip(made, plans, strict=True):
        attempt.plan |= {name: plan[name] for name in TAKEN if name in plan}
        attempt.plan["env"] |= {
            name: value for name, value in plan["env"].items() if name.startswith(MEETING)
        }
    return MpiAttempt(made)


@pytest.mark.parametrize(
    ("backend", "script", "leads_to"),
    [
        pytest.param("gloo", TORCH, DEBIANS, id="gloo-debian"),
        pytest.param("gloo", TORCH, APART, id="gloo-other-network"),
        pytest.param("mpi", MPI, APART, id="mpi", marks=needs_mpi),
        pytest.param("horovod-gloo", HOROVOD, DEBIANS, id="horovod", marks=needs_horovod),
    ],
)
def test_ranks_use_the_network_between_their_nodes(
    short_path: Path, backend: str, script: str, leads_to: str
) -> None:
    with two_machines(short_path, own_name_leads_to=leads_to) as machines:
        group = attempts(short_path, machines, backend, script)
        for machine, attempt in zip(machines, group.nodes, strict=True):
            machine.start(attempt)
        with group.relayed():
            records = group.wait_as_group()
        logs = [attempt.log(node) for node, attempt in enumerate(group.nodes)]
        assert [record["outcome"] for record in records] == ["completed"] * 2, (records, logs)
        assert all(b"reduced 2.0\n" in one for one in logs), logs
