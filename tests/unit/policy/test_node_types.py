"""Node types in a cluster's file, and jobs that request them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayjobs.api.estimators import PyTorch
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.policy.capacity import Capacity, NodeShape, fits_ever, pin_types, plan_shape
from rayjobs.policy.node_types import NodeType, NodeTypes, read_cluster_file
from rayjobs.spec.model import Distribution, JobSpec, Resources

TYPES = NodeTypes(
    (
        NodeType("cpu", 8.0, memory_bytes=2**34, max_nodes=4, vm_size="Standard_D8s_v5"),
        NodeType("gpu", 24.0, 1.0, 2**35, max_nodes=2, vm_size="Standard_NC24"),
        NodeType("gpu-spot", 24.0, 1.0, 2**35, max_nodes=3, vm_size="Standard_NC24", is_spot=True),
    ),
    max_nodes=5,
)
CAPACITY = Capacity(
    nodes=tuple(
        NodeShape(one.cpus, one.gpus, one.memory_bytes, one.max_nodes, one.name)
        for one in TYPES.types
    ),
    max_nodes=TYPES.max_nodes,
    types=TYPES,
)


def spec(nodes: int = 1, **resources: Any) -> JobSpec:
    backend = "gloo" if nodes > 1 else "none"
    return JobSpec(
        script="train.py",
        resources=Resources.model_validate(resources),
        distribution=Distribution(nodes=nodes, backend=backend),
    )


@pytest.mark.parametrize(
    ("resources", "names"),
    [
        ({"node_types": ("gpu",)}, ["gpu"]),
        ({"node_types": ("standard_nc24",)}, ["gpu", "gpu-spot"]),
        ({"node_types": ("Standard_NC24",), "spot": True}, ["gpu-spot"]),
        ({"spot": False}, ["cpu", "gpu"]),
    ],
)
def test_names_sizes_and_spot_become_names(resources: dict[str, Any], names: list[str]) -> None:
    wanted = spec(**resources)
    assert fits_ever(wanted, CAPACITY) == []
    assert plan_shape(pin_types(wanted, CAPACITY), CAPACITY).shape["node_types"] == names


def test_any_node_is_used_without_a_node_type() -> None:
    assert "node_types" not in plan_shape(pin_types(spec(), CAPACITY), CAPACITY).shape


@pytest.mark.parametrize(
    ("resources", "path", "words"),
    [
        ({"node_types": ("Standard_NC6",)}, "resources.node_types", "'Standard_NC6'"),
        ({"node_types": ("cpu",), "spot": True}, "resources.spot", "no spot nodes of cpu"),
        ({"node_types": ("cpu",), "gpus": 1}, "resources.gpus", "largest node has 0"),
        ({"nodes": 3, "node_types": ("gpu",)}, "distribution.nodes", "2 at most"),
    ],
)
def test_resources_of_no_node_type_are_refused(
    resources: dict[str, Any], path: str, words: str
) -> None:
    problems = fits_ever(spec(**resources), CAPACITY)
    assert [problem.path for problem in problems] == [path]
    assert words in problems[0].message


def test_unknown_node_type_error_lists_the_known_ones() -> None:
    (problem,) = fits_ever(spec(node_types=("big",)), CAPACITY)
    assert "gpu-spot (Standard_NC24, 24 CPUs, 1 GPU, spot, at most 3)" in str(problem)


def test_target_without_node_types_explains_how_to_define_them() -> None:
    (problem,) = fits_ever(spec(spot=True), Capacity((NodeShape(2),), 1))
    assert "--cluster" in str(problem)


def test_estimators_ask_by_size_and_priority() -> None:
    made = PyTorch(
        ".",
        compute_target="lab",
        entry_script="t.py",
        vm_size="Standard_NC24",
        vm_priority="lowpriority",
    )
    assert (made.run_config.node_types, made.run_config.spot) == (("Standard_NC24",), True)
    with pytest.raises(SpecError, match="vm_priority"):
        PyTorch(".", compute_target="lab", entry_script="t.py", vm_priority="cheap")


def written(folder: Path, **node_type: object) -> Path:
    whole = {
        "resources": {"CPU": 4},
        "labels": {"ray.io/node-group": "w"},
        "node_config": {"InstanceType": "m6i.xlarge"},
    } | node_type
    path = folder / "cluster.yaml"
    types = {"head": {"resources": {"CPU": 0}, "node_config": {}}, "w": whole}
    content = {"head_node_type": "head", "max_workers": 3, "available_node_types": types}
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_file_is_read_and_written_to_the_targets_record(tmp_path: Path) -> None:
    types = read_cluster_file(written(tmp_path))
    assert types == NodeTypes((NodeType("w", 4.0, max_nodes=3, vm_size="m6i.xlarge"),), 3)
    assert NodeTypes.from_dict(types.to_dict()) == types


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"resources": {}}, "has no CPU entry"),
        ({"resources": {"CPU": "many"}}, "'many'; it must be a number"),
        ({"labels": {}}, "ray.io/node-group: w"),
        ({"max_workers": -1}, "max_workers is -1"),
    ],
)
def test_incomplete_node_type_file_is_refused(
    tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_cluster_file(written(tmp_path, **wrong))


def test_invalid_node_type_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("- x: [")
    with pytest.raises(UsageError, match="cannot be read"):
        read_cluster_file(tmp_path / "a")
    (tmp_path / "a").write_text("- 1")
    with pytest.raises(UsageError, match="available_node_types"):
        read_cluster_file(tmp_path / "a")
