"""Sources that a job may resume from, and the files on its node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rayjobs import ScriptRunConfig, checkpoint
from rayjobs.core.errors import PrepareError, SpecError, StoreUnreachableError, UsageError
from rayjobs.core.failures import FailureClass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results import resuming
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import JobFilter
from rayjobs.submit import submitting
from rayjobs.submit.submitting import submit
from tests.unit.results.conftest import Trainer


def submitted(trainer: Trainer, resume_from: str, **spec: object) -> Job:
    values = {"script": "train.py", "resume_from": resume_from, **spec}
    return submit(trainer.workspace, JobSpec.model_validate(values), experiment="t", wake=False).job


def refused(trainer: Trainer, resume_from: str) -> str:
    with pytest.raises(SpecError) as caught:
        submitted(trainer, resume_from)
    assert [problem.path for problem in caught.value.problems] == ["resume_from"]
    return str(caught.value)


@pytest.mark.long
def test_a_run_gives_its_newest_checkpoint_when_the_job_starts(trainer: Trainer) -> None:
    old = trainer.trained(3, 7)
    job = submitted(trainer, old.id.rpartition("_")[2])
    assert job.spec.resume_from == old.id
    paths, environment = trainer.prepared(job, attempt=1)
    assert environment["RAYJOBS_RESUME_FROM"] == str(paths.resume)
    assert environment["AZUREML_DATAREFERENCE_MODEL_LOCATION"] == str(paths.resume)
    found = checkpoint.latest(str(paths.resume))
    assert found is not None
    assert found.step == 7
    assert (paths.resume / "model.pt").read_bytes() == b"weights 7"


@pytest.mark.long
def test_first_attempt_without_resume_has_no_checkpoint(trainer: Trainer) -> None:
    job = trainer.submit()
    for attempt in (1, 2):  # nor has the second, as long as no checkpoint was saved
        paths, environment = trainer.prepared(job, attempt=attempt)
        assert not paths.resume.exists()
        assert "RAYJOBS_RESUME_FROM" not in environment
        assert "AZUREML_DATAREFERENCE_MODEL_LOCATION" not in environment


def test_job_does_not_start_from_the_beginning_while_storage_does_not_answer(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trainer.trained(3)
    store, blobs = trainer.workspace.store, trainer.workspace.blobs

    def away(*_: object, **__: object) -> None:
        raise StoreUnreachableError("S3 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(blobs), "get_to", away)
        with pytest.raises(PrepareError) as caught:
            resuming.bring(store, blobs, tmp_path / "resume", own=job.id, path=None)
    assert caught.value.failure_class is FailureClass.STORAGE
    brought = resuming.bring(store, blobs, tmp_path / "resume", own=job.id, path=None)
    assert brought is not None and brought.checkpoint is not None
    assert brought.checkpoint.step == 3


@pytest.mark.long
def test_a_retry_prefers_its_own_checkpoint(trainer: Trainer) -> None:
    old = trainer.trained(7)
    job = submitted(trainer, old.id)
    first = trainer.start(job)
    paths, _ = trainer.prepared(job, attempt=2)
    assert checkpoint.Checkpoint(str(paths.resume), _manifest(paths.resume)).step == 7
    trainer.save(first, 2)
    trainer.publish(job, first)
    paths, _ = trainer.prepared(job, attempt=2)
    assert checkpoint.Checkpoint(str(paths.resume), _manifest(paths.resume)).step == 2


def _manifest(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "manifest.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "kind", ["checkpoint", "folder of checkpoints", "outputs", "plain", "file"]
)
@pytest.mark.long
def test_local_files_travel_with_the_job(trainer: Trainer, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "mine"
    expected = {"model.pt": b"w"}
    given = source
    if kind == "plain":
        (source / "sub").mkdir(parents=True)
        (source / "sub" / "model.pt").write_bytes(b"w")
        expected = {"sub/model.pt": b"w"}
    elif kind == "file":
        source.mkdir()
        given = source / "model.pt"
        given.write_bytes(b"w")
    else:
        below = source / "checkpoints" if kind == "outputs" else source
        checkpoint.save(1, {"model.pt": b"old"}, directory=str(below))
        newest = checkpoint.save(2, {"model.pt": b"w"}, directory=str(below))
        given = Path(newest.path) if kind == "checkpoint" else source
    job = submitted(trainer, str(given))
    again = submitted(trainer, str(given))
    assert job.spec.resume_from is not None
    assert job.spec.resume_from.startswith("packed:sha256:")
    assert again.spec.resume_from == job.spec.resume_from
    for path in sorted(source.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    paths, _ = trainer.prepared(job, attempt=1)
    found = {
        path.relative_to(paths.resume).as_posix(): path.read_bytes()
        for path in paths.resume.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert found == expected
    assert submitted(trainer, job.spec.resume_from).spec.resume_from == job.spec.resume_from


def test_relative_path_starts_at_the_current_folder(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.pt").write_bytes(b"w")
    for text in ("w.pt", "./w.pt"):
        assert (submitted(trainer, text).spec.resume_from or "").startswith("packed:")


@pytest.mark.long
def test_a_checkpoint_cut_short_is_refused_at_submit(trainer: Trainer, tmp_path: Path) -> None:
    saved = Path(checkpoint.save(5, {"model.pt": b"weights"}, directory=str(tmp_path / "c")).path)
    os.truncate(saved / "model.pt", 3)
    assert "is incomplete" in refused(trainer, str(saved))
    assert "no checkpoint in" in refused(trainer, str(saved.parent))
    (saved / "manifest.json").write_bytes(b'{"version": 1, "st')
    assert "is incomplete" in refused(trainer, str(saved))
    checkpoint.save(4, {"model.pt": b"earlier"}, directory=str(tmp_path / "c"))
    job = submitted(trainer, str(saved.parent))
    paths, _ = trainer.prepared(job, attempt=1)
    assert (paths.resume / "model.pt").read_bytes() == b"earlier"


def test_invalid_resume_source_is_refused_at_submit(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    none = trainer.trained()
    assert "neither a run nor a path" in refused(trainer, "nothing")
    assert "does not exist" in refused(trainer, str(tmp_path / "gone"))
    assert "holds no files" in refused(trainer, str(tmp_path / "empty"))
    assert "has no checkpoint" in refused(trainer, none.id)
    assert "datastore" in refused(trainer, "blobstore/a/b")
    assert "not in this workspace" in refused(trainer, "packed:sha256:" + "0" * 64)
    assert "not a digest" in refused(trainer, "packed:x")


@pytest.mark.long
def test_a_path_in_a_datastore_is_copied_at_submit(trainer: Trainer, tmp_path: Path) -> None:
    checkpoint.save(2, {"model.pt": b"w"}, directory=str(tmp_path / "mine" / "ck"))
    from rayjobs.datastore import DataPath, Datastore

    store = Datastore(trainer.workspace)
    store.upload(str(tmp_path / "mine"), "run7", show_progress=False)
    path = DataPath(store, "run7/ck")
    (tmp_path / "train.py").write_text("")
    spec = ScriptRunConfig(str(tmp_path), "train.py", resume_from=path).to_spec()
    job = submitted(trainer, spec.resume_from or "")
    assert (job.spec.resume_from or "").startswith("packed:")
    paths, _ = trainer.prepared(job, attempt=1)
    assert (paths.resume / "model.pt").read_bytes() == b"w"
    assert "nothing at" in refused(trainer, f"{store.name}/gone")


def test_name_of_both_a_run_and_a_path_is_ambiguous(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = trainer.trained(1)
    (tmp_path / old.id).mkdir()
    assert f"Write ./{old.id} for the path" in refused(trainer, old.id)


def test_missing_checkpoint_fails_the_attempt_as_data(trainer: Trainer) -> None:
    running = trainer.submit()
    trainer.start(running)
    job = submitted(trainer, running.id)  # it may save one until the job starts
    with pytest.raises(PrepareError, match="no checkpoint") as caught:
        trainer.prepared(job, attempt=1)
    assert caught.value.failure_class == "data"


def test_script_gets_the_resume_path_for_resume_from(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    tail = ("--resume-from", "$AZUREML_DATAREFERENCE_MODEL_LOCATION")
    spec = ScriptRunConfig(str(tmp_path), "train.py", ["--lr", 1], resume_from="run_1").to_spec()
    assert spec.arguments == ("--lr", "1", *tail)
    given = ["--resume-from", "x"]
    spec = ScriptRunConfig(str(tmp_path), "train.py", given, resume_from="run_1").to_spec()
    assert spec.arguments == ("--resume-from", "x")
    assert ScriptRunConfig(str(tmp_path), "train.py").to_spec().arguments == ()

    class DataPath:
        datastore_name = "store"
        path_on_datastore = "runs/7"

    spec = ScriptRunConfig(str(tmp_path), "train.py", resume_from=DataPath()).to_spec()
    assert spec.resume_from == "store/runs/7"
    with pytest.raises(UsageError, match="resume_from is a int"):
        ScriptRunConfig(str(tmp_path), "train.py", resume_from=7).to_spec()


def test_resume_submits_the_same_code_again(trainer: Trainer) -> None:
    old = trainer.trained(3, state=JobState.FAILED)
    done = submitting.resume(
        trainer.workspace,
        old.id,
        changes={"max_duration": "2h", "priority": "5"},
        wake=False,
    ).job
    assert (done.spec.resume_from, done.snapshot) == (old.id, old.snapshot)
    assert (done.spec.max_duration_s, done.spec.priority) == (7200.0, 5)
    assert done.spec.arguments == old.spec.arguments
    assert (done.experiment, done.state) == (old.experiment, JobState.QUEUED)


@pytest.mark.long
def test_a_member_that_is_resumed_keeps_its_index_and_count(trainer: Trainer) -> None:
    spec = JobSpec(script="train.py", array=Array(indices="0-3", limit=2))
    array = submit(trainer.workspace, spec, experiment="t", wake=False).job
    member = trainer.workspace.store.find(f"{array.id}[2]")
    paths = trainer.start(member)
    trainer.save(paths, 5)
    trainer.publish(member, paths)
    trainer.end(member, JobState.FAILED)
    done = submitting.resume(trainer.workspace, f"{array.id}[2]", wake=False).job
    assert (done.kind, done.spec.resume_from) == ("array", member.id)
    (again,) = trainer.workspace.store.jobs(JobFilter(parent=done.id))
    _, environment = trainer.prepared(again, attempt=1)
    assert environment["RAYJOBS_ARRAY_INDEX"] == "2"
    assert environment["RAYJOBS_ARRAY_COUNT"] == "4"
    assert environment["RAYJOBS_ARRAY_ID"] == done.id
    with pytest.raises(UsageError, match="is an array"):
        submitting.resume(trainer.workspace, array.id, wake=False)


def test_resume_refuses_unsuitable_jobs(trainer: Trainer) -> None:
    with pytest.raises(UsageError, match="has no checkpoint"):
        submitting.resume(trainer.workspace, trainer.trained().id, wake=False)
    with pytest.raises(UsageError, match="resumes by itself"):
        submitting.resume(trainer.workspace, trainer.submit().id, wake=False)
    job = trainer.submit()
    paths = trainer.start(job)
    trainer.save(paths, 1)
    trainer.publish(job, paths, only=2)
    trainer.end(job, JobState.FAILED)
    with pytest.raises(UsageError, match="cut short"):
        submitting.resume(trainer.workspace, job.id, wake=False)


def test_arguments_are_added_once() -> None:
    assert resuming.with_arguments(["--resume-from=x"]) == ("--resume-from=x",)
    assert resuming.with_arguments(resuming.ARGUMENTS) == resuming.ARGUMENTS
