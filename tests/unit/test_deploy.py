"""The files of deploy/: checked statically, since neither docker nor Kubernetes runs here."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rayjobs.cli.main import Commands
from rayjobs.server import metrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def kubernetes() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    return {one["kind"]: one for one in found}


def test_compose_names_only_what_it_declares(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"postgres", "s3", "head", "worker"} <= services.keys()
    for name, service in services.items():
        assert service.get("image"), name
        assert set(service.get("depends_on", {})) <= services.keys(), name
        assert set(service.get("secrets", [])) <= compose["secrets"].keys(), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume
            else:
                assert source in compose["volumes"], volume
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other], (name, other)


def test_only_the_server_and_this_machine_are_reached_from_outside(compose: dict[str, Any]) -> None:
    ports = [one for service in compose["services"].values() for one in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:3000:3000", "8400:8400"]


def test_every_ray_process_uses_a_token(compose: dict[str, Any]) -> None:
    for name in ("head", "worker"):
        service = compose["services"][name]
        assert "RAY_AUTH_TOKEN_PATH" in service["command"][-1] and "ray" in service["secrets"]
    image = (DEPLOY / "Dockerfile").read_text()
    assert "RAY_AUTH_MODE=token" in image
    assert compose["services"]["head"]["image"] == f"rayjobs:{VERSION}"


def test_the_image_has_the_ray_of_this_checkout() -> None:
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    version = re.search(r"^ray==(\S+)", pins, re.MULTILINE)
    assert version is not None
    assert f"RAY_VERSION={version.group(1)}" in (DEPLOY / "Dockerfile").read_text()
    assert f'rayVersion: "{version.group(1)}"' in (DEPLOY / "kuberay.yaml").read_text()


def test_single_start_script_calls_existing_commands(
    compose: dict[str, Any], kubernetes: dict[str, dict[str, Any]]
) -> None:
    script = DEPLOY / "start-server.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
    text = script.read_text()
    import click

    group = Commands()
    for line in re.findall(r"^\s*(?:exec |if ! )?rayjobs (.+)$", text, re.MULTILINE):
        words = [word for word in line.split() if re.fullmatch(r"[a-z-]+", word)]
        found: click.Command | None = group.get_command(click.Context(group), words[0])
        assert found is not None, line
        options = found
        if isinstance(found, click.Group):
            for word in words[1:]:
                inner = options.get_command(click.Context(found), word) if isinstance(
                    options, click.Group
                ) else None  # fmt: skip
                options = inner or options
        known = {name for one in options.params for name in one.opts}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line
    needed = set(re.findall(r"\$\{?(RAYJOBS_[A-Z_0-9]+)", text)) - {
        "RAYJOBS_TLS_CERT",
        "RAYJOBS_TLS_KEY",
    }
    assert needed <= set(compose["services"]["head"]["environment"])
    (server,) = [
        one
        for one in kubernetes["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"][
            "containers"
        ]
        if one["name"] == "server"
    ]
    assert needed <= {one["name"] for one in server["env"]}


def test_the_pods_share_a_home_have_a_token_probes_and_limits(
    kubernetes: dict[str, dict[str, Any]],
) -> None:
    spec = kubernetes["RayCluster"]["spec"]
    assert spec["authOptions"]["mode"] == "token"
    assert spec["enableInTreeAutoscaling"] is True
    pod = spec["headGroupSpec"]["template"]["spec"]
    homes = {
        one["name"]: {var["name"]: var.get("value") for var in one["env"]}
        for one in pod["containers"]
    }
    for name in ("RAYJOBS_HOME", "RAYJOBS_RUNTIME_BASE"):
        assert homes["ray-head"][name] == homes["server"][name]
    server = pod["containers"][1]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert server[probe]["httpGet"] == {"path": "/healthz", "port": "http"}
    groups = spec["workerGroupSpecs"]
    assert len({one["groupName"] for one in groups}) == len(groups) >= 2
    for template in (pod, *(one["template"]["spec"] for one in groups)):
        assert template["restartPolicy"] == "Never"  # autoscaler v2
        for container in template["containers"]:
            assert container["resources"]["limits"]["memory"]
    # The target gets no file with node types, so it refuses jobs that no running worker can hold.
    script = (DEPLOY / "start-server.sh").read_text()
    assert not re.search(r"^\s*rayjobs target create .*--cluster", script, re.MULTILINE)
    assert all(one["minReplicas"] >= 1 for one in groups)
    assert all(one["minReplicas"] <= one["replicas"] <= one["maxReplicas"] for one in groups)
    service = kubernetes["Service"]["spec"]
    assert service["selector"]["ray.io/cluster"] == kubernetes["RayCluster"]["metadata"]["name"]


@pytest.mark.skipif(
    not os.environ.get("KUBERAY_CRD"),
    reason="KUBERAY_CRD names no file: KubeRay's ray.io_rayclusters.yaml is not part of this tree",
)
def test_the_cluster_is_one_for_kuberays_own_schema(kubernetes: dict[str, dict[str, Any]]) -> None:
    crd = yaml.safe_load(Path(os.environ["KUBERAY_CRD"]).read_text())
    (version,) = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    cluster = kubernetes["RayCluster"]
    jsonschema.Draft4Validator(schema).validate(cluster)
    assert list(_unknown(schema, cluster, "")) == []


def _unknown(schema: dict[str, Any], value: Any, path: str) -> Any:
    """Yield the fields that a schema does not have; Kubernetes would drop them."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _unknown(schema.get("items", {}), one, f"{path}[{number}]")
    elif isinstance(value, dict) and "properties" in schema:
        for key, one in value.items():
            if key in schema["properties"]:
                yield from _unknown(schema["properties"][key], one, f"{path}.{key}")
            elif path or key != "metadata":
                yield f"{path}.{key}"


def test_the_unit_runs_the_server() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "rayjobs.service")
    assert "rayjobs serve" in unit["Service"]["ExecStart"]
    assert unit["Service"]["KillMode"] == "process"
    assert unit["Service"]["Restart"] == "always"


def test_dashboard_uses_existing_metrics() -> None:
    board = json.loads((DEPLOY / "grafana" / "rayjobs.json").read_text())
    source = Path(metrics.__file__).read_text().replace("{resource}", "gpus cpus")
    shown = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"rayjobs_[a-z_]+", target["expr"])
    }
    assert shown >= {"rayjobs_queue", "rayjobs_wait_seconds", "rayjobs_gpus"}
    known = set(re.findall(r"rayjobs_[a-z_]+", source)) | {"rayjobs_gpus", "rayjobs_cpus"}
    assert {name.removesuffix("_bucket") for name in shown} <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert '"gpus"' in source and '"cpus"' in source
