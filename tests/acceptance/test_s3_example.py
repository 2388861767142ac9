"""The example with pictures in a bucket, as its README shows it, against a real S3 server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import Workspace
from rayjobs.data.pins import inputs_read
from rayjobs.workspace.folder import locate, open_workspace
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.server import (  # noqa: F401
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    S3Server,
    s3_server,
)
from tests.support.local_target import LocalTarget

pytestmark = [pytest.mark.ray, pytest.mark.storage]

DEADLINE_S = 150.0  # of one command, on a busy machine
PROGRAM = Path(sys.executable).with_name("rayjobs")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "s3"


def rayjobs(*arguments: str, code: int = 0) -> str:
    """Run a command without a terminal; return its data."""
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
    output = rayjobs("datastore", "add", "wrong", "s3://no-such-bucket/x", *where, code=3)
    assert "no-such-bucket" in output
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
    ways = [one.provided and one.provided.how for one in read]
    assert ways == ["mounted", "downloaded", "mounted"]
    shown = rayjobs("show", ids[2])
    assert "dataset:pictures:1 (mount): mounted, 12 files" in shown
    assert os.environ["AWS_SHARED_CREDENTIALS_FILE"] not in shown


def test_exported_credentials_reach_a_running_target(
    local_target: LocalTarget,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off switch: leave out `hand_on_credentials` in `submit`, or `NodeSecrets.bring`."""
    monkeypatch.chdir(tmp_path)
    prefix = s3_server.record().settings["prefix"]
    keys = {"LATE_KEY": ACCESS_KEY, "LATE_SECRET": SECRET_KEY}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    where = ("--endpoint", s3_server.endpoint)
    named = ("--access-key-env", "LATE_KEY", "--secret-key-env", "LATE_SECRET")
    rayjobs("datastore", "add", "late", f"s3://{BUCKET}/{prefix}", *where, *named)
    Path("data").mkdir()
    Path("data", "a.txt").write_text("digits")
    rayjobs("data", "put", "data", "late/data")
    Path("read.py").write_text("import os\nprint(open(os.environ['x'] + '/a.txt').read())\n")
    try:
        for mode in ("mount", "download"):
            arguments = ("read.py", "--input", f"x=late/data:{mode}")
            job = rayjobs("submit", "-d", "-q", *arguments).strip()
            rayjobs("wait", job)
            assert "digits" in rayjobs("logs", job)
        for root in (local_target.home, locate()):
            holds = [
                file.name
                for file in root.rglob("*")
                if file.is_file() and SECRET_KEY.encode() in file.read_bytes()
            ]
            assert set(holds) <= {"secrets.json"}
        # Refused credentials spend one attempt.
        rayjobs("target", "secret", "set", "LATE_KEY")
        monkeypatch.setenv("LATE_SECRET", "wrong")
        wrong = rayjobs("submit", "-d", "-q", *arguments).strip()
        rayjobs("wait", wrong, code=1)
        shown = json.loads(rayjobs("show", wrong, "--json"))
        assert (shown["state"], shown["attempt"]) == ("Failed", 1)
    finally:
        for name in keys:
            monkeypatch.delenv(name)
            rayjobs("target", "secret", "rm", name)
    refused = rayjobs("submit", "-d", "-q", *arguments, code=2)
    assert "rayjobs target secret set LATE_KEY" in refused
