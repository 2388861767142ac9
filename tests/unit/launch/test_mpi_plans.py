"""The plans of jobs with MPI and with Horovod's Gloo controller."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch.horovod_gloo import HorovodGlooLauncher
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.mpi import MpiLauncher, node_names
from tests.unit.launch.test_torch_env import context


@pytest.mark.parametrize(
    ("backend", "kind"), [("mpi", MpiLauncher), ("horovod-gloo", HorovodGlooLauncher)]
)
def test_the_backend_chooses_the_launcher(backend: str, kind: type) -> None:
    spec = context(1, 1).job.spec
    shape = spec.distribution.model_copy(update={"backend": backend})
    assert isinstance(launcher_for(spec.model_copy(update={"distribution": shape})), kind)


def written(plans: list[LaunchPlan]) -> list[dict[str, Any]]:
    """Return the plans in their JSON form."""
    return [plan.to_json() for plan in plans]


def test_mpirun_runs_on_the_first_node_and_gets_all_nodes() -> None:
    first, second = written(MpiLauncher().plans(context(2, 3)))
    command = first["extras"]["command"]
    assert command[:5] == ["mpirun", "-np", "6", "-H", "localhost:3,127.1.0.1:3"]
    assert second["extras"]["command"] is None
    assert [peer["node_id"] for peer in first["extras"]["peers"]] == ["id1"]
    assert first["extras"]["peers"][0]["socket"] == second["extras"]["socket"]
    assert [plan["master_port"] for plan in (first, second)] == [29_511, None]


def test_mpirun_alone_sets_the_variables_of_open_mpi() -> None:
    for plan in written(MpiLauncher().plans(context(2, 2))):
        for rank in plan["ranks"]:
            assert rank["env"]["RANK"] == str(rank["rank"])
            assert not [name for name in rank["env"] if name.startswith("OMPI_")]


def test_nodes_that_share_a_machine_are_reported() -> None:
    apart = written(MpiLauncher().plans(context(2, 1)))
    assert [plan["extras"]["shares_machine"] for plan in apart] == [False, False]
    together = written(MpiLauncher().plans(context(3, 1, address="127.0.0.1")))
    assert [plan["extras"]["shares_machine"] for plan in together] == [False, True, True]
    raylets = written(MpiLauncher().plans(context(2, 1, address="127.9.9.{}")))
    assert [plan["extras"]["shares_machine"] for plan in raylets] == [False, True]


def test_node_names_are_addresses_without_lookup() -> None:
    names = node_names(2000)
    assert len(set(names)) == 2000
    assert all(re.fullmatch(r"127(\.\d{1,3}){3}", name) for name in names[1:])
    numbers = {int(part) for name in names[1:] for part in name.split(".")[3:]}
    assert min(numbers) == 1 and max(numbers) == 254


def test_horovod_gloo_ranks_get_their_numbers_and_rendezvous_address() -> None:
    plans = written(HorovodGlooLauncher().plans(context(2, 2)))
    assert [plan["extras"].get("port") for plan in plans] == [29_511, None]
    for plan in plans:
        assert plan["env"]["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.0"
        assert plan["env"]["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "29511"
    numbers = [
        tuple(
            int(rank["env"][f"HOROVOD_{name}"])
            for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        )
        for plan in plans
        for rank in plan["ranks"]
    ]
    assert numbers == [
        (0, 4, 0, 2, 0, 2),
        (1, 4, 1, 2, 0, 2),
        (2, 4, 0, 2, 1, 2),
        (3, 4, 1, 2, 1, 2),
    ]
