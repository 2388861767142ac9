"""Which jobs can fit on a target, and in which shape they are placed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.policy.capacity import Capacity, NodeShape, fits_ever, plan_shape
from rayjobs.spec.model import JobSpec

GIB = 1024**3
CLUSTER = Capacity(
    nodes=(NodeShape(8, 0, 16 * GIB, count=4), NodeShape(32, 4, 128 * GIB, count=2)), max_nodes=5
)
LOCAL = Capacity(nodes=(NodeShape(2, 1, 8 * GIB),), max_nodes=1, shares_machine=True)


def spec(nodes: int = 1, processes: int = 1, **resources: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "script": "train.py",
            "distribution": {"nodes": nodes, "processes_per_node": processes, "backend": "gloo"},
            "resources": resources,
        }
    )


@pytest.mark.parametrize(
    "fitting", [spec(), spec(5), spec(2, 4, cpus=8, gpus=1, memory_gib=32), spec(1, 32), spec(4, 8)]
)
def test_job_that_fits_a_cluster_is_accepted(fitting: JobSpec) -> None:
    assert fits_ever(fitting, CLUSTER) == []


@pytest.mark.parametrize(
    ("requested", "path", "numbers"),
    [
        (spec(6), "distribution.nodes", ("6 nodes", "5 at most")),
        (spec(gpus=1000), "resources.gpus", ("1000", "largest node has 4")),
        (spec(1, 5, gpus=1), "resources.gpus", ("5 GPUs per node", "5 processes × 1")),
        (spec(cpus=64), "resources.cpus", ("64", "32")),
        (spec(memory_gib=500), "resources.memory_gib", ("500", "128")),
        (spec(3, gpus=1), "distribution.nodes", ("3 nodes", "can have 2")),
    ],
)
def test_job_that_never_fits_a_cluster_is_refused_with_numbers(
    requested: JobSpec, path: str, numbers: tuple[str, ...]
) -> None:
    (problem,) = fits_ever(requested, CLUSTER)
    assert problem.path == path
    assert problem.remedy
    for number in numbers:
        assert number in problem.message


def test_no_node_may_fit_all_needs_together() -> None:
    capacity = Capacity(nodes=(NodeShape(64, 0, 8 * GIB), NodeShape(4, 8, 8 * GIB)), max_nodes=2)
    (problem,) = fits_ever(spec(cpus=32, gpus=1), capacity)
    assert "can have 0 of these" in problem.message


def test_single_machine_may_lack_cpus_with_a_notice() -> None:
    requested = spec(2, 4)
    assert fits_ever(requested, LOCAL) == []
    placed = plan_shape(requested, LOCAL)
    assert placed.shape == {"nodes": 2, "cpus": 1.0, "gpus": 0, "memory": 0, "spread": 0.0}
    assert placed.strategy == "PACK"
    assert "8 processes share" in " ".join(placed.notes)
    assert "one machine" in " ".join(placed.notes)


def test_single_machine_must_have_enough_gpus_and_memory() -> None:
    assert fits_ever(spec(2, gpus=0.5), LOCAL) == []
    assert fits_ever(spec(2, gpus=1), LOCAL)[0].path == "resources.gpus"
    assert fits_ever(spec(2, memory_gib=5), LOCAL)[0].path == "resources.memory_gib"


def test_a_job_that_fits_has_its_own_shape_and_no_notes() -> None:
    placed = plan_shape(spec(2, 3, gpus=0.1, memory_gib=1), CLUSTER)
    assert placed.strategy == "STRICT_SPREAD"
    assert placed.shape == {"nodes": 2, "cpus": 3, "gpus": 0.3, "memory": 3 * GIB, "spread": 1.0}
    assert placed.notes == ()


def test_job_without_requirements_still_gets_an_allocation() -> None:
    assert plan_shape(spec(cpus=0), LOCAL).shape["cpus"] > 0


def test_a_target_without_nodes_yet_does_not_shrink_a_job() -> None:
    empty = Capacity(nodes=(), max_nodes=0, shares_machine=True)
    assert plan_shape(spec(cpus=4), empty).shape["cpus"] == 4


@given(
    nodes=st.integers(1, 9),
    processes=st.integers(1, 9),
    cpus=st.floats(0, 9),
    machine=st.integers(1, 16),
)
@pytest.mark.long
def test_a_shape_on_one_machine_always_fits_its_cpus(
    nodes: int, processes: int, cpus: float, machine: int
) -> None:
    capacity = Capacity((NodeShape(machine, 0, GIB),), max_nodes=1, shares_machine=True)
    requested = spec(nodes, processes, cpus=cpus)
    assert fits_ever(requested, capacity) == []
    placed = plan_shape(requested, capacity)
    assert placed.shape["cpus"] * nodes <= machine + 1e-6
    assert placed.shape["cpus"] > 0
