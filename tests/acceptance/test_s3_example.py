"""The example with pictures in a bucket, as its README types it, against a real S3 server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import Workspace
from rayjobs.jobdata import inputs_read
from rayjobs.workspace_files import locate, open_workspace
from tests.local_target import LocalTarget
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.server import BUCKET, S3Server, s3_server  # noqa: F401

pytestmark = [pytest.mark.ray, pytest.mark.storage]

DEADLINE_S = 150.0  # of one command, on a machine with other work
PROGRAM = Path(sys.executable).with_name("rayjobs")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "s3"


def rayjobs(*arguments: str, code: int = 0) -> str:
    """Type a command where no terminal is; return its data."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout or done.stderr


def test_a_job_reads_the_same_batches_by_mount_and_by_download(
    local_target: LocalTarget,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = s3_server.record().settings["prefix"]
    where = ("--endpoint", s3_server.endpoint, "--profile", aws_profile)
    said = rayjobs("datastore", "add", "wrong", "s3://no-such-bucket/x", *where, code=3)
    assert "no-such-bucket" in said
    rayjobs("datastore", "add", "photos", f"s3://{BUCKET}/{prefix}", *where)
    subprocess.run(
        [sys.executable, EXAMPLE / "make_images.py", "pictures", "--per-class", "4"], check=True
    )
    put = json.loads(rayjobs("data", "put", "pictures", "photos/pictures", "--json"))
    assert put["files"] == 12
    rayjobs("data", "register", "pictures", "photos/pictures", "-q")
    jobs = [
        rayjobs("submit", "-d", "-q", str(EXAMPLE / "train.py"), "--input", f"pictures={source}")
        for source in (
            "photos/pictures:mount",
            "photos/pictures:download",
            "dataset:pictures",
        )
    ]
    ids = [job.strip() for job in jobs]
    rayjobs("wait", *ids)
    digests = []
    for run in (Workspace().get_run(one) for one in ids):
        (text,) = run.get_details_with_logs()["logFiles"].values()
        digests += re.findall(r"batches ([0-9a-f]{64})", text)
        (used,) = run.get_details()["inputDatasets"]
        assert used["consumptionDetails"]["inputName"] == "pictures"
    assert len(digests) == 3
    assert len(set(digests)) == 1
    assert digests[0] in rayjobs("logs", ids[0])
    with open_workspace(locate()) as workspace:
        read = [inputs_read(workspace.store, workspace.store.job(one))[0] for one in ids]
    assert [one["how"] for one in read] == ["mounted", "downloaded", "mounted"]
    shown = rayjobs("show", ids[2])
    assert "dataset:pictures:1 (mount): mounted, 12 files" in shown
    assert os.environ["AWS_SHARED_CREDENTIALS_FILE"] not in shown
