"""An image training is killed, preempted, or loses its images, its storage or its disk."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from rayjobs.cli.main import run
from rayjobs.core.failures import FailureClass
from rayjobs.images.component.imagemodels.directory import open_labeled
from rayjobs.images.component.imagemodels.loading import MEASURED
from rayjobs.images.component.imagemodels.schedule import batches_of_epoch
from rayjobs.images.jobs import COMPONENT
from rayjobs.images.sources import source_of
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.metrics import series
from rayjobs.spec.model import Input
from tests.storage.photos import register_photos
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.jobs import Jobs, until
from tests.unit.images.conftest import save_images

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "image_scripts" / "disturbed.py"
KILLED = ("training", "validation", "checkpoint", "evaluation", "registration")
CURVES = ("train_loss", "val_loss", "top1", "learning_rate")


class Trainings:
    """Trainings of one set of images by real jobs."""

    def __init__(self, jobs: Jobs, folder: Path, count: int) -> None:
        self.jobs = jobs
        self.folder = folder
        save_images(folder / "train", count, seed=1)
        save_images(folder / "validation", 6, seed=2)
        self.source = folder / "component"
        shutil.copytree(COMPONENT, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SCRIPT, self.source / "train_disturbed.py")

    def submit(self, stage: str, train: str | None = None, *words: str, **spec: Any) -> Job:
        """Submit a training that is disturbed at a stage; "" for none."""
        parts = ("train", "validation")
        given = {
            part: Input(source=source_of(self.jobs.workspace, str(self.folder / part), print))
            for part in parts
        }
        if train is not None:
            given["train"] = Input(source=train)
        arguments = [
            word for part in parts for word in (f"--{part}", f"$RAYJOBS_INPUT_{part.upper()}")
        ]
        arguments += ["--image-size", "12", "--batch-size", "8", "--epochs", "3", "--threads", "1"]
        arguments += [
            "--learning-rate",
            "0.05",
            "--register",
            f"m-{stage or 'undisturbed'}".replace(" ", "-"),
        ]
        files = {"SMALL_DISK": str(self.folder / "disk")}
        files |= {name: str(self.folder / f"{name}-{stage}") for name in ("REACHED", "WAITS_FOR")}
        return self.jobs.submit_folder(
            self.source,
            script="train_disturbed.py",
            arguments=(*arguments, *words),
            inputs=given,
            environment_variables={"STAGE": stage, **files},
            **({"retries": {"user": 1}} | spec),
        )

    def reached(self, stage: str) -> None:
        """Wait until the training waits at its stage."""
        until((self.folder / f"REACHED-{stage}").exists, f"{stage} is reached")

    def go_on(self, stage: str) -> None:
        """Let the training continue from its stage."""
        (self.folder / f"WAITS_FOR-{stage}").touch()

    def weights(self, job: Job) -> dict[str, torch.Tensor]:
        """Return the weights of the model that a job made."""
        data = self.jobs.file(job, "outputs/model/weights.pt")
        return torch.load(io.BytesIO(data), weights_only=True)  # type: ignore[no-any-return]

    def is_as_undisturbed(self, job: Job, undisturbed: Job) -> None:
        """Check that two trainings have bitwise equal curves and models."""
        mine, other = self.weights(job), self.weights(undisturbed)
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)
        found = series(self.jobs.store.metrics(job.id))
        expected = series(self.jobs.store.metrics(undisturbed.id))
        for name in CURVES:
            assert (found[name].steps, found[name].values) == (
                expected[name].steps,
                expected[name].values,
            ), name
        (model,) = self.jobs.store.models(run=job.id)
        assert model.version == 1


@pytest.fixture
def trainings(jobs: Jobs, tmp_path: Path) -> Trainings:
    return Trainings(jobs, tmp_path / "t", 8)


def test_training_killed_at_any_stage_matches_the_undisturbed_one(
    trainings: Trainings, jobs: Jobs
) -> None:
    undisturbed = trainings.submit("")
    killed = {stage: trainings.submit(stage) for stage in KILLED}
    jobs.wait(undisturbed, JobState.COMPLETED)
    for stage, job in killed.items():
        assert jobs.wait(job, JobState.COMPLETED).attempt == 2, stage
        first = jobs.store.attempts(job.id)[0]
        assert first.failure is not None
        assert "SIGKILL" in first.failure.message, stage
        epochs = 1 if stage in ("training", "validation", "checkpoint") else 3
        expected = b"continues from its checkpoint: epoch %d, batch 0" % (epochs + 1)
        assert expected in jobs.log(job), stage
        trainings.is_as_undisturbed(job, undisturbed)


def test_preempted_training_matches_the_undisturbed_one(
    trainings: Trainings, jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = "waits for SIGTERM"
    undisturbed = trainings.submit("")
    job = trainings.submit(stage, None, "--print-frequency", "1")
    trainings.reached(stage)
    assert run(["simulate-eviction", job.id, "--notice", "60s"]) == 0, capsys.readouterr()
    jobs.wait(job, JobState.COMPLETED)
    first, _ = jobs.store.attempts(job.id)
    assert first.outcome == "preempted"
    assert b"continues from its checkpoint: epoch 2, batch 2" in jobs.log(job)
    jobs.wait(undisturbed, JobState.COMPLETED)
    trainings.is_as_undisturbed(job, undisturbed)


@pytest.mark.storage
def test_training_continues_when_lost_storage_returns(
    jobs: Jobs,
    tmp_path: Path,
    s3_server: S3Server,  # noqa: F811
    aws_profile: str,  # noqa: F811
) -> None:
    trainings = Trainings(jobs, tmp_path / "t", 60)
    stage = "waits at the first batch"
    undisturbed = trainings.submit("")
    with Proxy(s3_server.port) as proxy:
        store = register_photos(
            jobs.workspace,
            s3_server,
            aws_profile,
            endpoint=proxy.endpoint,
            connect_timeout_s=10,
            attempts=1,
        )
        store.upload(trainings.folder / "train", "train", show_progress=False)
        job = trainings.submit(
            stage, "photos/train", "--checkpoint-every", "1", "--cache", "none", retries={"data": 9}
        )
        trainings.reached(stage)
        proxy.lose()
        trainings.go_on(stage)
        until(
            lambda: len(jobs.store.attempts(job.id)) > 1 or jobs.job(job).state is JobState.QUEUED,
            "it failed",
        )
        proxy.come_back()
        jobs.wait(job, JobState.COMPLETED)
    first = jobs.store.attempts(job.id)[0]
    assert first.failure is not None
    assert first.failure.failure_class is FailureClass.DATA, first.failure
    assert "input 'train' could not be read" in first.failure.message
    assert b"continues from its checkpoint: epoch 1, batch " in jobs.log(job)
    jobs.wait(undisturbed, JobState.COMPLETED)
    trainings.is_as_undisturbed(job, undisturbed)


def test_an_image_that_is_removed_during_a_training_is_named(jobs: Jobs, tmp_path: Path) -> None:
    trainings = Trainings(jobs, tmp_path / "t", 60)
    stage = "waits at the first batch"
    images = open_labeled(str(trainings.folder / "train"))
    measured = range(0, len(images), len(images) // MEASURED)
    last = batches_of_epoch(len(images), batch_size=8, world=1, rank=0, seed=1, epoch=0)[-1]
    lost = images.files[next(one for one in last if one not in measured)]
    job = trainings.submit(stage, retries={})
    trainings.reached(stage)
    (stored,) = jobs.workspace.path.rglob(lost)
    stored.unlink()
    trainings.go_on(stage)
    jobs.wait(job, JobState.FAILED)
    assert b"InvalidDatasetError: " in jobs.log(job)
    assert f"{lost} was there when the images were listed".encode() in jobs.log(job)
    assert not jobs.store.models(run=job.id)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_training_continues_when_the_cache_disk_is_full(trainings: Trainings, jobs: Jobs) -> None:
    disk = trainings.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=True)
    try:
        undisturbed = trainings.submit("")
        job = trainings.submit("small disk", None, "--cache", "decoded", retries={})
        jobs.wait(job, JobState.COMPLETED)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    shown = jobs.log(job).decode()
    assert "is full: no more images are cached, and the training goes on" in shown, shown
    jobs.wait(undisturbed, JobState.COMPLETED)
    trainings.is_as_undisturbed(job, undisturbed)
