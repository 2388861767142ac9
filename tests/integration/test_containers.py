"""Jobs in container images, on real Ray: from the submit to the record of the image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.core.errors import SpecError
from rayjobs.core.paths import BUILD_LOG
from rayjobs.datastore import Datastore
from rayjobs.jobs.states import JobState
from rayjobs.node.containers import EVENT
from rayjobs.spec.model import Container, Input, Output
from tests.support.containers import image, needs_containers
from tests.support.images import file, layer, oci_folder, tar_of
from tests.support.jobs import Jobs

__all__ = ["image"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), needs_containers]

SCRIPT = """
import json, os, sys
from multiprocessing.connection import Listener
from rayjobs import Run
run = Run.get_context()
run.log("loss", 0.5)
with Listener(family="AF_UNIX") as listener:
    folder = os.path.dirname(os.path.dirname(listener.address))
    in_tmp = os.path.samefile(folder, os.environ["RAYJOBS_ATTEMPT_DIR"] + "/tmp")
shm = os.statvfs("/dev/shm")
try:
    open(os.environ["RAYJOBS_INPUT_DIGITS"] + "/one.txt", "w")
    refused = False
except OSError:
    refused = True
with open(os.environ["RAYJOBS_OUTPUT_RESULT"] + "/out.txt", "w") as stream:
    stream.write("stored")
with open(os.environ["RAYJOBS_OUTPUT_MOUNTED"] + "/out.txt", "w") as stream:
    stream.write("in place")
with open("outputs/model.txt", "w") as stream:
    stream.write("weights")
print(json.dumps({
    "release": open("/etc/os-release").read(), "image": os.environ["FROM_THE_IMAGE"],
    "argument": os.environ["OF_DOCKER"], "python": sys.executable,
    "shm": shm.f_blocks * shm.f_frsize, "refused": refused, "run": run.id,
    "input": open(os.environ["RAYJOBS_INPUT_DIGITS"] + "/one.txt").read(),
    "node": "RAY_AUTH_TOKEN" in os.environ, "volume": os.listdir("/volume"), "in_tmp": in_tmp,
}))
"""
STEPS = """
import os, signal
from rayjobs.injob import checkpoint
found = checkpoint.latest()
start = found.step if found else 0
for step in range(start + 1, 5):
    checkpoint.save(step, {"step": str(step).encode()})
    if step == 2 and not start:
        os.kill(os.getpid(), signal.SIGKILL)
print("from", start, flush=True)
"""


@pytest.fixture
def oci(image: Path, tmp_path: Path) -> Path:
    upper = layer([file("etc/os-release", b"of the second layer"), file("etc/.wh.passwd")])
    return oci_folder(tmp_path / "oci", [tar_of(image), upper], tag="1")


def test_job_runs_in_an_image_and_records_it(jobs: Jobs, oci: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "one.txt").write_text("1")
    store = Datastore.get_default(jobs.workspace)
    store.upload(volume, "digits", show_progress=False)
    container = Container(
        image=f"oci:{oci}:1",
        shm_mib=64,
        arguments=("--env", "OF_DOCKER=yes", "--volume", f"{volume}:/volume:ro", "--rm"),
    )
    job = jobs.submit(
        SCRIPT,
        experiment="an-experiment-as-long-as-a-sentence-since-paths-of-sockets-have-107-bytes",
        container=container,
        inputs={"digits": Input(source="workspaceblobstore/digits")},
        outputs={
            "result": Output(destination="workspaceblobstore/result"),
            "mounted": Output(destination="workspaceblobstore/mounted", mode="mount"),
        },
    )
    done = jobs.wait(job, JobState.COMPLETED)
    seen = json.loads(jobs.log(done))
    assert seen == {
        "release": "of the second layer", "image": "yes", "argument": "yes",
        "python": "/usr/local/bin/python", "shm": 64 * 2**20, "refused": True, "run": job.id,
        "input": "1", "node": False, "volume": ["one.txt"], "in_tmp": True,
    }  # fmt: skip
    store.download(tmp_path / "back", prefix="result", show_progress=False)
    assert [path.read_text() for path in tmp_path.glob("back/**/out.txt")] == ["stored"]
    store.download(tmp_path / "there", prefix="mounted", show_progress=False)
    assert [path.read_text() for path in tmp_path.glob("there/**/out.txt")] == ["in place"]
    assert jobs.file(done, "outputs/model.txt") == b"weights"
    assert [point.value for point in jobs.store.metrics(job.id)] == [0.5]
    attempt = jobs.attempt(done)
    assert attempt.cold_reason == "the job runs in a container image"
    facts = attempt.hosts[0].facts
    assert facts is not None
    assert facts.image == container.image
    assert facts.image_digest is not None and facts.image_digest.startswith("sha256:")
    assert facts.interpreter == "/usr/local/bin/python"
    steps = [one.data["step"] for one in jobs.store.events(job.id) if one.kind == EVENT]
    assert steps == ["unpack", "image"]
    assert b"layer 2 of 2" in jobs.file(done, BUILD_LOG)
    jobs.nothing_left(done)
    # A killed rank resumes from its checkpoint, in the same image.
    killed = jobs.submit(STEPS, container=Container(image=str(oci)), retries={"user": 1})
    again = jobs.wait(killed, JobState.COMPLETED)
    assert again.attempt == 2
    assert b"from 2" in jobs.log(again)
    steps = [one.data["step"] for one in jobs.store.events(killed.id) if one.kind == EVENT]
    assert steps == ["image", "image"], "it was unpacked before"
    jobs.nothing_left(again)


def test_missing_image_is_refused_with_a_suggestion(jobs: Jobs) -> None:
    with pytest.raises(SpecError, match=r"there is no /not/there\.tar on this node"):
        jobs.submit("print(1)", container=Container(image="/not/there.tar"))
