"""A job's stored checkpoints are found whole, or not found."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.injob import checkpoint
from rayjobs.injob.checkpoint import is_whole
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints
from rayjobs.results.metrics import series
from tests.unit.results.conftest import Trainer


def newest(trainer: Trainer, job: Job) -> checkpoints.StoredCheckpoint | None:
    return checkpoints.newest(trainer.workspace.store, trainer.workspace.blobs, job.id)


def test_the_newest_of_any_attempt_is_found(trainer: Trainer) -> None:
    job = trainer.submit()
    assert newest(trainer, job) is None
    first = trainer.start(job)
    trainer.save(first, 1)
    trainer.save(first, 9)
    trainer.publish(job, first)
    found = newest(trainer, job)
    assert found is not None
    assert (found.step, found.attempt, found.run) == (9, 1, job.id)
    assert found.folder == "outputs/checkpoints/step-000000000009"
    assert sorted(found.files) == ["manifest.json", "model.pt", "opt/state.bin"]
    assert found.size > 9
    trainer.requeue(job)
    second = trainer.start(job)
    trainer.save(second, 10)
    trainer.publish(job, second)
    found = newest(trainer, job)
    assert found is not None
    assert (found.step, found.attempt) == (10, 2)


def test_partially_published_checkpoint_is_skipped(trainer: Trainer) -> None:
    job = trainer.submit()
    paths = trainer.start(job)
    trainer.save(paths, 1)
    whole = trainer.publish(job, paths)
    trainer.save(paths, 2)
    for count in range(whole + 3):  # the files of step 1 come first
        trainer.publish(job, paths, only=count)
        found = newest(trainer, job)
        assert found is not None
        assert found.step == 1, count
    trainer.publish(job, paths)
    found = newest(trainer, job)
    assert found is not None
    assert found.step == 2


def test_a_step_saved_again_is_torn_until_all_of_it_is_there(trainer: Trainer) -> None:
    job = trainer.submit()
    first = trainer.start(job)
    trainer.save(first, 1)
    trainer.save(first, 2, a=b"one", b=b"two")
    trainer.publish(job, first)
    trainer.requeue(job)
    second = trainer.start(job)
    trainer.save(second, 2, a=b"ONE", b=b"TWO")
    trainer.publish(job, second, only=1)
    found = newest(trainer, job)
    assert found is not None
    assert found.step == 1
    trainer.publish(job, second)
    found = newest(trainer, job)
    assert found is not None
    assert (found.step, found.attempt) == (2, 2)


def test_lost_blob_or_damaged_manifest_is_skipped(trainer: Trainer) -> None:
    job = trainer.trained(1, 2, 3)
    files = {one.name: one for one in trainer.workspace.store.files(job.id)}
    trainer.workspace.blobs.delete(files["outputs/checkpoints/step-000000000003/model.pt"].blob)
    found = newest(trainer, job)
    assert found is not None
    assert found.step == 2
    manifest = files["outputs/checkpoints/step-000000000002/manifest.json"].blob
    trainer.workspace.blobs.put_bytes(b"{}", manifest)
    found = newest(trainer, job)
    assert found is not None
    assert found.step == 1


def test_checkpoint_is_written_verified_and_a_damaged_one_skipped(
    trainer: Trainer, tmp_path: Path
) -> None:
    job = trainer.trained(1, 2)
    workspace = trainer.workspace
    files = {one.name: one for one in workspace.store.files(job.id)}
    damaged = files["outputs/checkpoints/step-000000000002/model.pt"]
    workspace.blobs.put_bytes(b"X" * damaged.size, damaged.blob)  # same size, other bytes
    target = tmp_path / "resume"
    found = checkpoints.bring_newest(workspace.store, workspace.blobs, job.id, target)
    assert found is not None
    assert found.step == 1
    assert is_whole(str(target))
    assert (target / "model.pt").read_bytes() == b"weights 1"
    assert [path.name for path in tmp_path.iterdir() if "resume" in path.name] == ["resume"]


def test_names_that_lead_outside_are_never_written(trainer: Trainer, tmp_path: Path) -> None:
    blob = trainer.workspace.blobs.put_bytes(b"x", "files/x")
    with pytest.raises(StoreError, match="cannot be the name"):
        checkpoints.write_to(
            trainer.workspace.blobs, {"../x": (blob.key, blob.digest)}, tmp_path / "resume"
        )
    assert not (tmp_path / "resume").exists()


def test_unknown_job_has_no_checkpoints(trainer: Trainer) -> None:
    with pytest.raises(NotFoundError):
        checkpoints.newest(trainer.workspace.store, trainer.workspace.blobs, "no_1_such")


@pytest.mark.long
def test_retry_resumes_without_gaps_or_duplicates_in_the_curve(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = trainer.workspace.store

    def log(job: Job, attempt: int, steps: range) -> None:
        at = SystemClock().now()
        points = [
            MetricPoint(
                attempt=attempt,
                rank=0,
                sequence=position,
                name="loss",
                value=1.0 / (step + 1) + attempt,
                step=step,
                at=at,
            )
            for position, step in enumerate(steps)
        ]
        store.add_metrics(job.id, points)

    job = trainer.submit()
    first = trainer.start(job)
    log(job, 1, range(8))  # killed after step 7; its newest checkpoint is of step 4
    trainer.save(first, 4)
    trainer.publish(job, first)
    trainer.requeue(job)
    trainer.start(job)
    _, environment = trainer.prepared(store.job(job.id), attempt=2)
    monkeypatch.setenv("RAYJOBS_OUTPUTS", environment["RAYJOBS_OUTPUTS"])
    monkeypatch.setenv("RAYJOBS_RESUME_FROM", environment["RAYJOBS_RESUME_FROM"])
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 4
    assert Path(found.file("model.pt")).read_bytes() == b"weights 4"
    log(job, 2, range(found.step + 1, 10))
    curve = series(store.metrics(job.id))["loss"]
    assert curve.steps == tuple(range(10))
    assert [value > 2 for value in curve.values] == [step > 4 for step in range(10)]
    assert store.job(job.id).state is JobState.RUNNING
    assert "step 4 (attempt 1)" in store.events(job.id)[-1].message
