"""Inputs on nodes without a shared disk: each node fetches its own, or the job is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.datastore import Datastore
from rayjobs.jobs.states import JobState
from rayjobs.results.logs import Logs
from rayjobs.spec.model import Distribution, Input
from tests.storage.server import SECRET_KEY, S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs
from tests.support.raylets import RAYLETS, TARGET, Cluster

pytestmark = RAYLETS

READS = """
import json, os
from rayjobs import Run
path = os.path.realpath(Run.get_context().input_datasets["x"])
print(json.dumps([path, open(os.path.join(path, "a.txt")).read()]), flush=True)
"""
TWO = Distribution(nodes=2, processes_per_node=1, backend="gloo")


# Its fast version: unit/node/test_remote_workspace.py, with a network but no nodes.
@pytest.mark.slow
def test_each_node_fetches_inputs_from_object_storage_to_its_own_disk(
    pool_jobs: Jobs,
    raylets: Cluster,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    given = s3_server.record().settings
    store = Datastore.register_s3(
        pool_jobs.workspace,
        "photos",
        given["bucket"],
        prefix=given["prefix"],
        endpoint=given["endpoint"],
        # No node's environment has them: the target passes them on in memory.
        access_key_env="TEST_ACCESS_KEY",
        secret_key_env="TEST_SECRET_KEY",
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("digits")
    store.upload(tmp_path / "data", "data", show_progress=False)
    raylets.ensure(2)
    source = Input(source="photos/data", mode="download")
    job = pool_jobs.submit(READS, target=TARGET, distribution=TWO, inputs={"x": source})
    pool_jobs.wait(job, JobState.COMPLETED)
    hosts = pool_jobs.attempt(job).hosts
    scratches = [raylets.node_at(host.address).scratch for host in hosts]
    assert len(set(scratches)) == 2
    for rank, scratch in enumerate(scratches):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        path, text = json.loads(Logs(pool_jobs.workspace, job.id).read(name))
        assert text == "digits"
        assert Path(path).is_relative_to(scratch)
    secret = SECRET_KEY.encode()
    for folder in (raylets.folder, raylets.home, pool_jobs.workspace.path):
        holds = {
            file.name
            for file in folder.rglob("*")
            if file.is_file() and not file.is_symlink() and secret in file.read_bytes()
        }
        assert holds <= {"secrets.json"}, folder


def test_local_folder_is_refused_with_a_remedy(
    pool_jobs: Jobs, raylets: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("digits")
    Datastore.register_folder(pool_jobs.workspace, "here", str(tmp_path / "data"))
    raylets.ensure(1)
    job = pool_jobs.submit(
        READS, target=TARGET, inputs={"x": Input(source="here/")}, retries={"data": 0}
    )
    failed = pool_jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.DATA
    for words in ("input 'x'", "datastore 'here'", "does not share it", "object storage"):
        assert words in failed.failure.message
