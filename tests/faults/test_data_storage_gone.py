"""A job loses the storage of its data: it fails with class `data`, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import NodePaths
from rayjobs.datastore.materialise import mounts_root
from rayjobs.datastore.mountfiles import mount_points
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Input
from tests.storage.photos import register_photos
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs, until

pytestmark = [pytest.mark.ray, pytest.mark.storage]

FILES = 12  # more than a mount fetches ahead

READS = """
import os, sys, time
from rayjobs import Run
folder = Run.get_context().input_datasets["big"]
names = sorted(os.listdir(folder))
open(os.path.join(folder, names[0]), "rb").read()
print("first", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
for name in names:
    open(os.path.join(folder, name), "rb").read()
print("everything", flush=True)
"""


def test_storage_server_killed_during_a_read_is_a_data_failure(
    jobs: Jobs,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    with Proxy(s3_server.port) as proxy:
        store = register_photos(
            jobs.workspace,
            s3_server,
            aws_profile,
            endpoint=proxy.endpoint,
            connect_timeout_s=10,
            attempts=1,
        )
        (tmp_path / "big").mkdir()
        for number in range(FILES):
            (tmp_path / "big" / f"{number:02d}.bin").write_bytes(os.urandom(100_000))
        store.upload(tmp_path / "big", "big", show_progress=False)
        reads = {
            "inputs": {"big": Input(source="photos/big")},
            "arguments": (str(tmp_path / "go"),),
            "retries": {"data": 0},
        }
        job = jobs.submit(READS, **reads)
        jobs.wait_for_output(job, b"first")
        root = jobs.root(job)
        # Only of this node: the machine may have other mounts, which stay.
        mounts = mounts_root(NodePaths(root.parents[2]).data_cache)
        mounted = [point for point in mount_points() if point.startswith(f"{mounts}/")]
        assert mounted
        proxy.stop()
        (tmp_path / "go").touch()
        failed = jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.DATA, failed.failure
    assert "input 'big' could not be read" in failed.failure.message
    assert proxy.endpoint in failed.failure.message
    assert failed.failure.rank == 0
    assert b"everything" not in jobs.log(job)
    until(lambda: not root.exists(), "the attempt's folder is gone")
    until(lambda: not set(mounted) & mount_points().keys(), "the mount is gone")

    late = jobs.submit(READS, **reads)
    failed = jobs.wait(late, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.DATA
    assert "input 'big'" in failed.failure.message
