"""Downloads from S3 on a real target: transferred to the node once, private to each job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayjobs.datastore import Datastore
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Input
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs, until

pytestmark = [pytest.mark.ray, pytest.mark.storage]

CHANGES = """
import hashlib, os, sys
folder = sys.argv[1]
path = os.path.join(folder, "0.bin")
print(hashlib.sha256(open(path, "rb").read()).hexdigest(), len(os.listdir(folder)), flush=True)
with open(path, "r+b") as file:
    file.write(b"changed in place")
os.unlink(os.path.join(folder, "1.bin"))
open(os.path.join(folder, "new"), "w").close()
print(sorted(os.listdir(folder)))
"""


def test_jobs_share_the_transfer_but_not_their_writes(
    jobs: Jobs,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    size = 2 << 20
    with Proxy(s3_server.port) as proxy:
        given = s3_server.record().settings
        store = Datastore.register_s3(
            jobs.workspace,
            "photos",
            given["bucket"],
            prefix=given["prefix"],
            endpoint=proxy.endpoint,
            profile=aws_profile,
        )
        (tmp_path / "big").mkdir()
        for number in range(2):
            (tmp_path / "big" / f"{number}.bin").write_bytes(os.urandom(size // 2))
        store.upload(tmp_path / "big", "big", show_progress=False)
        proxy.sent = 0
        inputs = {"big": Input(source="photos/big", mode="download")}
        submitted = [
            jobs.submit(CHANGES, arguments=("$AZUREML_DATAREFERENCE_big",), inputs=inputs)
            for _ in range(3)
        ]
        done = [jobs.wait(job, JobState.COMPLETED) for job in submitted]
        assert size <= proxy.sent < size * 1.2
    logs = {jobs.log(job) for job in done}
    (log,) = logs
    assert log.decode().splitlines()[1] == "['0.bin', 'new']"
    for job in done:
        root = jobs.root(job)
        until(lambda root=root: not root.exists(), "the attempt's folder is gone")  # type: ignore[misc]
