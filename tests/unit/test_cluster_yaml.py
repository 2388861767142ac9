"""Ray's cluster launcher accepts `cluster.yaml`, and its defaults are safe."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rayjobs.policy.node_types import read_cluster_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def ray_schema() -> dict[str, Any]:
    spec = importlib.util.find_spec("ray")  # finds the folder, does not import Ray
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "autoscaler" / "ray-schema.json"
    loaded = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_is_valid_by_rays_own_schema(cluster: dict[str, Any], ray_schema: dict[str, Any]) -> None:
    jsonschema.validate(cluster, ray_schema)


def test_rays_schema_refuses_a_misspelt_key(
    cluster: dict[str, Any], ray_schema: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        jsonschema.validate({**cluster, "max_worker": 3}, ray_schema)


def test_jobs_stay_off_the_head(cluster: dict[str, Any]) -> None:
    head = cluster["available_node_types"][cluster["head_node_type"]]
    assert head["resources"]["CPU"] == 0
    assert head["max_workers"] == 0


def test_node_types_fit_into_the_cluster(cluster: dict[str, Any]) -> None:
    for name, node_type in cluster["available_node_types"].items():
        assert node_type["min_workers"] <= node_type["max_workers"], name
        assert node_type["max_workers"] <= cluster["max_workers"], name


def test_a_target_made_of_it_knows_its_node_types() -> None:
    types = read_cluster_file(ROOT / "cluster.yaml")
    assert types.max_nodes == 8
    assert [(one.name, one.gpus, one.is_spot) for one in types.types] == [
        ("cpu", 0.0, True),
        ("gpu", 1.0, False),
        ("gpu-spot", 1.0, True),
    ]
    assert all(one.memory_bytes > 0 and one.min_nodes == 0 for one in types.types)
    a100 = ["standard_nc24ads_a100_v4"]
    assert [one.name for one in types.matching(a100, None)] == ["gpu", "gpu-spot"]
    assert [one.name for one in types.matching(a100, True)] == ["gpu-spot"]
    assert [one.name for one in types.matching([], False)] == ["gpu"]


def test_idle_nodes_are_removed(cluster: dict[str, Any]) -> None:
    assert 0 < cluster["idle_timeout_minutes"] <= 30
    workers = set(cluster["available_node_types"]) - {cluster["head_node_type"]}
    assert all(cluster["available_node_types"][name]["min_workers"] == 0 for name in workers)


def test_every_start_requires_the_token_and_hides_the_dashboard(cluster: dict[str, Any]) -> None:
    starts = [
        command
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for command in cluster[key]
        if "ray start" in command
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert any("auth_token" in target for target in cluster["file_mounts"])


def test_holds_no_keys(cluster: dict[str, Any]) -> None:
    text = json.dumps(cluster)
    assert not re.search(r"AKIA[0-9A-Z]{16}|aws_secret|password", text, re.IGNORECASE)


def test_names_the_versions_of_this_checkout(cluster: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    ray_version = re.search(r"^ray==(\S+)", pins, re.MULTILINE)
    assert ray_version is not None
    assert f":{ray_version.group(1)}-" in cluster["docker"]["image"]
    wheel = f"~/rayjobs-dist/rayjobs-{project['version']}-*.whl"
    assert any(wheel in command for command in cluster["setup_commands"])
    assert cluster["file_mounts"]["~/rayjobs-dist"] == "dist"  # where `uv build` puts the wheel


def test_every_node_gets_open_mpi(cluster: dict[str, Any]) -> None:
    (command,) = [one for one in cluster["setup_commands"] if "openmpi-bin" in one]
    update, install = command.split(" && ")
    assert update.startswith("sudo apt-get") and update.endswith("update")
    assert install.startswith("sudo ") and " install -y " in install  # no user can answer a prompt
