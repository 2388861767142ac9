"""A Ray cluster that starts and ends its nodes by itself, on this machine: Ray's own fake cloud."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_private
from rayjobs.core.paths import TargetPaths
from rayjobs.target import local_head, targets
from rayjobs.target.reports import CapacityReport
from tests.support.jobs import until
from tests.support.raylets import end_all, end_tree, ray_start

TARGET = "cloud"
# The fake cloud counts its nodes up from this id, which is the head's.
HEAD_ID = "f" * 51 + "00000"
HEAD_TYPE = "ray.head.default"


@dataclass(frozen=True)
class FakeCloud:
    """A running head, the file it was started with, and the home of the target on it."""

    home: Path
    file: Path

    def workers(self) -> list[str]:
        """Return the ids of the live workers that the target saw last."""
        nodes = CapacityReport.read(TargetPaths.of(TARGET, under=self.home)).nodes
        return [node.node_id for node in nodes if node.node_id != HEAD_ID]


def cluster_file(address: str, types: dict[str, dict[str, Any]], *, max_workers: int) -> str:
    """Return a cluster file for `ray up`, whose cloud is this machine."""
    config = {
        "cluster_name": "fake",
        "max_workers": max_workers,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.03,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address,
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
        },
        # Ray's monitor requires these of all clouds, and fills them in only for those it knows.
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{
            key: []
            for key in (
                "initialization_commands",
                "setup_commands",
                "head_setup_commands",
                "worker_setup_commands",
                "head_start_ray_commands",
                "worker_start_ray_commands",
            )
        },
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            **types,
        },
    }
    return json.dumps(config)  # which is YAML, too


def node_type(name: str, *, cpus: int, max_workers: int) -> dict[str, Any]:
    """Return a node type whose workers start only when they are needed."""
    return {
        "resources": {"CPU": cpus, "object_store_memory": 80_000_000},
        "labels": {"ray.io/node-group": name},
        "node_config": {},
        "min_workers": 0,
        "max_workers": max_workers,
    }


@contextmanager
def fake_cloud(
    home: Path, types: dict[str, dict[str, Any]], *, workers: int
) -> Iterator[FakeCloud]:
    """Run a head without workers, and a target on it that was created from its file."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rja-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = folder / "token"
        write_private(token, secrets.token_hex(32))
        host = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
        address = f"{host}:{local_head.free_port()}"
        file = folder / "cluster.yaml"
        file.write_text(cluster_file(address, types, max_workers=workers))
        stack.callback(end_all, folder)
        log = folder / "ray.log"
        starter = ray_start(
            "--head",
            f"--node-ip-address={host}",
            f"--port={address.rpartition(':')[2]}",
            # The default would be that of every other head on this machine.
            f"--ray-client-server-port={local_head.free_port()}",
            f"--temp-dir={folder / 'r'}",
            "--num-cpus=0",
            "--include-dashboard=false",
            "--object-store-memory=80000000",
            f"--autoscaling-config={file}",
            log=log,
            environment={
                **local_head.head_environment(home, token),
                "RAYJOBS_SCRATCH": str(folder / "node"),
                "RAYJOBS_AGENT_LINGER_S": "4",
                "RAY_FAKE_CLUSTER": "1",
                "RAY_enable_autoscaler_v2": "1",
                "RAY_NODE_TYPE_NAME": HEAD_TYPE,
                "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            },
        )
        stack.callback(end_tree, starter)
        until(lambda: "runtime started" in log.read_text(), "Ray's head starts")
        targets.create_target(TARGET, address=address, token_file=token, cluster=file, home=home)
        try:
            targets.start_target(TARGET, home=home)
            yield FakeCloud(home, file)
        finally:
            targets.stop_target(TARGET, force=True, home=home)
