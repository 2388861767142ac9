"""A killed job resumes from its checkpoint on real Ray; its output becomes a model."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints
from rayjobs.results.metrics import series
from rayjobs.spec.model import Retries
from rayjobs.submit import submitting
from tests.support import registering as models
from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray

TRAIN = """
import os, signal, sys
from rayjobs import Run, checkpoint

run = Run.get_context()
found = checkpoint.latest()
first = 0 if found is None else found.step + 1
last = 10 if "RAYJOBS_RESUME_FROM" in os.environ else 99
print("from", first, "resume", bool(checkpoint.resume_dir()), sys.argv[1:], flush=True)

def die(path):
    with open(path, "wb") as file:
        file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

for step in range(first, last):
    run.log("loss", 1 / (step + 1), step=step)
    if step == 7 and found is None:
        checkpoint.save(step, {"model.bin": die})
    if step % 2 == 0:
        checkpoint.save(step, {"model.bin": b"weights %d" % step}, keep=2)
with open("outputs/model.bin", "wb") as file:
    file.write(b"trained to %d" % last)
"""


def test_a_job_killed_in_a_save_resumes_and_its_model_is_registered(
    jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.submit(TRAIN, retries=Retries(user=1))
    done = jobs.wait(job, JobState.COMPLETED)
    assert done.attempt == 2
    assert jobs.log(job) == b"from 7 resume True []\n"
    curve = series(jobs.store.metrics(job.id))["loss"]
    assert curve.steps == tuple(range(10))
    assert curve.values == tuple(1 / (step + 1) for step in range(10))
    found = checkpoints.newest(jobs.store, jobs.workspace.blobs, job.id)
    assert found is not None
    assert (found.step, found.attempt) == (8, 2)

    # Manually, in a new job: the same code, from the last checkpoint.
    again = submitting.resume(jobs.workspace, job.id).job
    jobs.wait(again, JobState.COMPLETED)
    assert jobs.log(again) == b"from 9 resume True []\n"
    # With --resume-from the script also gets the path as an argument.
    with_option = jobs.submit(
        TRAIN,
        resume_from=job.id,
        arguments=("--resume-from", "$AZUREML_DATAREFERENCE_MODEL_LOCATION"),
    )
    jobs.wait(with_option, JobState.COMPLETED)
    assert jobs.log(with_option).endswith(b"/resume']\n")

    model = models.register(
        jobs.workspace,
        name="net",
        run=again.id,
        path="outputs/model.bin",
        primary_metric="loss",
    )
    assert model.lineage["resume_from"] == job.id
    assert model.lineage["primary_metric"] == {"name": "loss", "value": 1 / 10}
    assert Path(model.download(tmp_path / "here")).read_bytes() == b"trained to 10"


REGISTER = """
import io, os, pickle, signal
from rayjobs import Run

run = Run.get_context()
first = run.attempt == 1
with open("outputs/model.pkl", "wb") as file:
    pickle.dump({"attempt": run.attempt}, file)
if first:
    with open("outputs/lost.pkl", "wb") as file:
        file.write(b"half")
    run.register_model("lost", "outputs/lost.pkl")
run.upload_file("notes/words.txt", io.BytesIO(b"words"))
run.log("accuracy", 0.75)
model = run.register_model("digits", "outputs/model.pkl", tags={"attempt": run.attempt})
run.register_model("words", "notes/words.txt", description="what it read")
run.register_model("folder", "outputs")
print(model.name, model.version, flush=True)
if first:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_script_registers_its_models_and_only_a_completed_attempts_count(
    jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.submit(REGISTER, retries=Retries(user=1))
    done = jobs.wait(job, JobState.COMPLETED)
    assert (done.attempt, done.reason) == (2, "")
    assert jobs.log(job) == b"digits None\n"
    kept = {one.name: one for one in jobs.store.models()}
    assert set(kept) == {"digits", "words", "folder"}
    assert {(one.version, one.run, one.attempt) for one in kept.values()} == {(1, job.id, 2)}
    assert (kept["digits"].tags, kept["words"].description) == ({"attempt": "2"}, "what it read")
    assert [file.name for file in kept["folder"].files] == ["model.pkl"]  # lost.pkl is attempt 1's
    model = models.find(jobs.workspace, "digits")
    assert model.lineage["metrics"] == {"accuracy": 0.75}
    assert model.lineage["snapshot"] == done.snapshot
    assert pickle.loads(Path(model.download(tmp_path / "here")).read_bytes()) == {"attempt": 2}
    jobs.nothing_left(job)
