"""Checkpoints that `keep` drops are also removed from storage, but never the last whole one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rayjobs import checkpoint
from rayjobs.core.errors import StoreError
from rayjobs.core.paths import AttemptPaths
from rayjobs.jobs.records import Job
from rayjobs.results import checkpoints
from rayjobs.results.collect import Publisher, superseded
from tests.support.attempts import on_node
from tests.unit.results.conftest import Trainer

AT = "outputs/checkpoints/"


def publisher(trainer: Trainer, job: Job, paths: AttemptPaths, **changes: Any) -> Publisher:
    store, number = trainer.workspace.store, int(paths.root.name[1:])
    given = {
        "blobs": trainer.workspace.blobs,
        "publish": lambda files: store.publish_files(job.id, attempt=number, files=files),
        "drop": lambda names: store.drop_files(job.id, attempt=number, names=names),
        **changes,
    }
    return Publisher(on_node(paths.root, attempt=number), **given)


def save(paths: AttemptPaths, step: int, keep: int = 2) -> None:
    directory = paths.work / "outputs" / "checkpoints"
    checkpoint.save(step, {"m.pt": b"%d" % step}, keep=keep, directory=str(directory))


def steps(trainer: Trainer, job: Job) -> list[int]:
    found = checkpoints.whole(trainer.workspace.store, trainer.workspace.blobs, job.id)
    return [one.step for one in found]


def test_checkpoints_dropped_by_keep_are_removed_from_storage(trainer: Trainer) -> None:
    job = trainer.submit()
    paths = trainer.start(job)
    publishing = publisher(trainer, job, paths)
    (paths.work / "outputs" / "model.pt").write_bytes(b"weights")
    for step in (1, 2, 3, 4, 5):
        save(paths, step)
        assert publishing.finish() == []
    assert steps(trainer, job) == [5, 4]
    names = [one.name for one in trainer.workspace.store.files(job.id)]
    assert "outputs/model.pt" in names
    assert not any("step-000000000003" in name for name in names)


def test_checkpoint_of_a_lower_step_is_kept_when_it_is_saved(tmp_path: Path) -> None:
    """A script that goes back after it has diverged, or starts again in a folder that stays."""
    for step in (800, 900, 1000):
        checkpoint.save(step, {"m.pt": b"x"}, keep=3, directory=str(tmp_path))
    saved = checkpoint.save(10, {"m.pt": b"y"}, keep=3, directory=str(tmp_path))
    assert checkpoint.is_whole(saved.path)
    left = sorted(int(one.name.rpartition("-")[2]) for one in tmp_path.iterdir())
    assert left == [10, 900, 1000]


def test_no_checkpoint_is_removed_before_a_newer_one_is_complete(trainer: Trainer) -> None:
    job = trainer.submit()
    paths = trainer.start(job)
    store = trainer.workspace.store
    refused: list[str] = []

    def publish(files: Any) -> bool:
        if refused:
            raise StoreError(refused[0])
        return store.publish_files(job.id, attempt=1, files=files)

    publishing = publisher(trainer, job, paths, publish=publish)
    for step in (1, 2):
        save(paths, step, keep=5)
    assert publishing.finish() == []
    refused.append("the store is away")
    save(paths, 3, keep=1)
    assert publishing.finish() != []
    assert steps(trainer, job) == [2, 1]
    refused.clear()
    assert publishing.finish() == []
    assert steps(trainer, job) == [3]


def test_emptied_folder_removes_nothing(trainer: Trainer) -> None:
    job = trainer.submit()
    paths = trainer.start(job)
    publishing = publisher(trainer, job, paths)
    for step in (1, 2):
        save(paths, step)
    assert publishing.finish() == []
    shutil.rmtree(paths.work / "outputs" / "checkpoints")
    assert publishing.finish() == []
    assert steps(trainer, job) == [2, 1]
    save(paths, 0)  # restarted: checkpoints older than the stored ones replace none of them
    assert publishing.finish() == []
    assert steps(trainer, job) == [2, 1, 0]


def test_checkpoints_of_an_earlier_attempt_stay(trainer: Trainer) -> None:
    job = trainer.submit()
    first = trainer.start(job)
    before = publisher(trainer, job, first)
    save(first, 1)
    assert before.finish() == []
    trainer.requeue(job)
    paths = trainer.start(job)
    publishing = publisher(trainer, job, paths)
    for step in (2, 3, 4):
        save(paths, step)
        assert publishing.finish() == []
    assert steps(trainer, job) == [4, 3, 1]


@pytest.mark.parametrize(
    ("present", "gone"),
    [
        ({"step-000000000002/manifest.json": True, "step-000000000002/m": True}, True),
        ({"step-000000000002/manifest.json": True, "step-000000000002/m": False}, False),
        ({"step-000000000002/m": True}, False),
        ({}, False),
    ],
)
def test_only_a_complete_newer_checkpoint_supersedes(present: dict[str, bool], gone: bool) -> None:
    stored = [f"{AT}step-000000000001/m", "outputs/m", "outputs/step-000000000001/m"]
    found = superseded(stored, {AT + name: is_stored for name, is_stored in present.items()})
    assert found == stored[:1] * gone
