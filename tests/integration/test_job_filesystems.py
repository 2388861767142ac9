"""A job's script uses datastores of its workspace as file systems, like its driver."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rayjobs.datastore import Datastore
from rayjobs.jobs.states import JobState
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs

pytestmark = [pytest.mark.ray, pytest.mark.storage]

SCRIPT = """
import json
import pandas
from azureml.core import Datastore, Run

workspace = Run.get_context().experiment.workspace
found = {}
for name in ("photos", "files"):
    system = Datastore.get(workspace, name).filesystem()
    with system.open("tables/x.csv") as file:
        found[name] = pandas.read_csv(file)["x"].tolist()
    found[name] += sorted(system.glob("**/*.csv")) + system.ls("tables", detail=False)
    with system.open("results/out.txt", "w") as file:
        file.write("of the job")
print(json.dumps(found))
"""


def test_script_and_driver_read_and_write_the_same_files(
    jobs: Jobs,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    given = s3_server.record().settings
    photos = Datastore.register_s3(
        jobs.workspace,
        "photos",
        given["bucket"],
        prefix=given["prefix"],
        endpoint=given["endpoint"],
        profile=aws_profile,
    )
    (tmp_path / "store" / "results").mkdir(parents=True)
    files = Datastore.register_fsspec(jobs.workspace, "files", f"file://{tmp_path}/store")
    for store in (photos, files):
        system = store.filesystem()
        system.makedirs("tables", exist_ok=True)
        system.pipe_file("tables/x.csv", b"x,y\n1,2\n")
    # A job's script sees no variable of the node that the job does not name.
    unnamed = jobs.wait(jobs.submit(SCRIPT), JobState.FAILED)
    assert f"({aws_profile}) could not be found" in jobs.log(unnamed).decode()
    assert "Set the variables or the profile that the datastore names" in unnamed.reason
    file = {"AWS_SHARED_CREDENTIALS_FILE": os.environ["AWS_SHARED_CREDENTIALS_FILE"]}
    job = jobs.submit(SCRIPT, environment_variables=file)
    jobs.wait(job, JobState.COMPLETED)
    found = json.loads(jobs.log(job).decode().splitlines()[-1])
    assert found == {key: [1, "tables/x.csv", "tables/x.csv"] for key in ("photos", "files")}
    for store in (photos, files):
        assert store.filesystem().cat_file("results/out.txt") == b"of the job"
