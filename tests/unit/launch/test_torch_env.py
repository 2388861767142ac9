"""The plans of jobs of several processes: rank numbers, and the rendezvous address."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.launchers import SingleLauncher, launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.launch.torch_env import TorchLauncher
from rayjobs.spec.model import JobSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def context(
    nodes: int,
    processes: int,
    *,
    address: str = "10.0.0.{}",
    port: int | None = 29_511,
    **more: Any,
) -> AttemptContext:
    shape = {"nodes": nodes, "processes_per_node": processes, "backend": "gloo"}
    spec = JobSpec.model_validate({"script": "train.py", "distribution": shape, **more})
    job = Job(
        id="t_1",
        serial=1,
        experiment="t",
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=NOW,
        changed_at=NOW,
    )
    return AttemptContext(
        job=job,
        attempt=2,
        nodes=tuple(
            PlannedNode(node, f"id{node}", address.format(node), Path("/scratch"))
            for node in range(nodes)
        ),
        markers=tuple(f"rj-{node}" for node in range(nodes)),
        workspace_name="ws",
        workspace_path="/ws",
        master_port=port,
        injob_path="/injob",
        python="/bin/python",
    )


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("none", SingleLauncher), ("gloo", TorchLauncher), ("nccl", TorchLauncher)],
)
def test_the_backend_chooses_the_launcher(backend: str, kind: type) -> None:
    shape = {"backend": backend}
    spec = JobSpec.model_validate({"script": "a.py", "distribution": shape})
    assert isinstance(launcher_for(spec), kind)


def test_ranks_are_numbered_node_by_node() -> None:
    plans = TorchLauncher().plans(context(2, 3))
    ranks = [rank for plan in plans for rank in plan.ranks]
    assert [rank.rank for rank in ranks] == list(range(6))
    for rank in ranks:
        numbers = {name: int(value) for name, value in rank.env.items()}
        node, local = divmod(rank.rank, 3)
        assert numbers == {
            "RANK": rank.rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": 6,
            "LOCAL_WORLD_SIZE": 3,
            "NODE_RANK": node,
            "GROUP_RANK": node,
            "OMPI_COMM_WORLD_RANK": rank.rank,
            "OMPI_COMM_WORLD_SIZE": 6,
            "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": 3,
            "AZ_BATCHAI_TASK_INDEX": rank.rank,
        }


def test_all_ranks_meet_at_the_first_node_whose_host_holds_the_port() -> None:
    plans = TorchLauncher().plans(context(2, 1))
    for plan in plans:
        assert plan.env["MASTER_ADDR"] == "10.0.0.0"
        assert plan.env["MASTER_PORT"] == "29511"
        assert plan.env["AZ_BATCHAI_PYTORCH_INIT_METHOD"] == "tcp://10.0.0.0:29511"
        assert plan.env["AZ_BATCH_MASTER_NODE"] == "10.0.0.0:29511"
    assert [plan.address for plan in plans] == ["10.0.0.0", "10.0.0.1"]
    assert [plan.master_port for plan in plans] == [29_511, None]


def test_nodes_that_share_a_machine_have_folders_of_their_own() -> None:
    plans = TorchLauncher().plans(context(2, 1, address="127.0.0.1"))
    assert [Path(plan.root).name for plan in plans] == ["a2", "a2-n1"]
    assert len({plan.socket for plan in plans}) == 2


def test_memory_is_that_of_all_ranks_of_a_node() -> None:
    plans = TorchLauncher().plans(context(2, 2, resources={"memory_gib": 1.5}))
    assert [plan.memory_bytes for plan in plans] == [3 * 2**30] * 2


def test_a_plan_without_a_port_sets_no_master_port() -> None:
    (plan,) = TorchLauncher().plans(context(1, 2, port=None))
    assert "MASTER_PORT" not in plan.env
    assert plan.master_port is None


def test_gpus_are_numbered_as_the_driver_numbers_them() -> None:
    """In CUDA's default order, the index that Ray gives may mean another GPU than in nvidia-smi."""
    plain = context(1, 1)
    given = replace(plain, nodes=(replace(plain.nodes[0], gpus=("3",)),))
    env = SingleLauncher().plans(given)[0].env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("3", "PCI_BUS_ID")
    assert "CUDA_DEVICE_ORDER" not in SingleLauncher().plans(plain)[0].env
    own = context(1, 1, environment_variables={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    given = replace(own, nodes=given.nodes)
    assert SingleLauncher().plans(given)[0].env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
