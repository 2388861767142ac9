"""Outputs missing after a storage outage are stored later, on real Ray and a real S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.datastore import Datastore
from rayjobs.housekeeping import scratch
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Output
from tests.storage.photos import register_photos
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs, until, wake

pytestmark = [pytest.mark.ray, pytest.mark.storage]

SCRIPT = """
import os, time
with open(os.path.join(os.environ["RAYJOBS_OUTPUT_MADE"], "model.bin"), "w") as stream:
    stream.write("six hours")
print("written", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.02)
"""


@pytest.fixture
def proxy(
    jobs: Jobs,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
) -> Iterator[Proxy]:
    """The proxy of the job's datastore `photos`."""
    with Proxy(s3_server.port) as opened:
        register_photos(jobs.workspace, s3_server, aws_profile, endpoint=opened.endpoint)
        yield opened


@pytest.mark.parametrize(
    "ends_by",
    [
        "cancel",
        pytest.param("time", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_outputs_missing_after_an_outage_are_stored_on_request(
    jobs: Jobs,
    proxy: Proxy,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    ends_by: str,
) -> None:
    go = tmp_path / "go"
    job = jobs.submit(
        SCRIPT,
        environment_variables={"GO": str(go)},
        outputs={"made": Output(destination="photos/{run-id}")},
    )
    jobs.wait_for_output(job, b"written")
    proxy.mode = "503"
    go.touch()
    until(
        lambda: jobs.job(job).reason.startswith("waits for a storage: output made: "),
        "the end waits for the storage",
    )
    assert jobs.job(job).state is JobState.FINALIZING
    root = jobs.root(job)
    if ends_by == "cancel":
        jobs.store.request_cancel(job.id)
        wake(jobs.workspace)
        ended = jobs.wait(job, JobState.CANCELED)
        message = ended.reason
    else:
        ended = jobs.wait(job, JobState.FAILED, deadline_s=420.0)
        assert ended.failure is not None
        message = ended.failure.message
    assert f"`rayjobs store {job.id}` stores the outputs once the storage answers" in message
    assert ended.attempt == 1
    assert (root / "written").exists()
    assert scratch.unstored_outputs(root) == ("made",)
    # The storage is still unavailable: an early request loses nothing.
    assert run(["store", job.id]) == 1
    assert "not stored: output made: " in capfd.readouterr().err
    proxy.mode = "pass"
    assert run(["wait", job.id]) != 0
    assert f"rayjobs store {job.id[-8:]}" in capfd.readouterr().err
    assert run(["store", job.id]) == 0
    assert "output made: 1 file in photos/" in capfd.readouterr().out
    store = Datastore.get(jobs.workspace, "photos")
    store.download(tmp_path / "back", prefix=job.id, show_progress=False)
    assert [one.read_text() for one in tmp_path.glob("back/**/model.bin")] == ["six hours"]
    assert scratch.unstored_outputs(root) == ()
    after = jobs.job(job)
    assert (after.state, after.attempt) == (ended.state, 1)
    assert run(["store", job.id]) == 2
    assert "were stored after its end" in capfd.readouterr().err
