"""Prune: what is removed, what stays, and what comes into use meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.safe_delete import ASIDE, OwnFolder, UnsafeDeletionError
from rayjobs.housekeeping import prune
from rayjobs.housekeeping.prune import PrunePlan, Rules
from rayjobs.jobs.records import Job, ModelDraft, ModelFile
from rayjobs.jobs.states import JobState
from rayjobs.models import uploaded
from rayjobs.results import resuming
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewSweep
from rayjobs.submit.submitting import check_snapshot
from tests.unit.cli.conftest import Terminal
from tests.unit.housekeeping.conftest import Runs

ALL = Rules(older_than_s=0.0)


def prune_all(runs: Runs, rules: Rules = ALL) -> PrunePlan:
    runs.age()
    made = prune.plan(runs.workspace, rules)
    prune.apply(runs.workspace, made)
    return made


def register(runs: Runs, job: Job, name: str = "digits") -> None:
    """Make a model of a job's first file."""
    [stored] = runs.store.files(job.id)
    file = ModelFile(name="0.bin", size=stored.size, digest=stored.digest, blob=stored.blob)
    draft = ModelDraft(
        name=name,
        path=stored.name,
        digest=stored.digest,
        files=(file,),
        sources=(stored,),
        lineage={},
    )
    runs.store.put_model(job.id, draft)


def test_the_files_of_a_model_that_a_user_uploaded_stay(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"uploaded")
    made = uploaded.put(runs.workspace, name="m", path=tmp_path / "model.pt", user="ada")
    runs.finished("old", b"weights")
    prune_all(runs)
    assert runs.has(b"uploaded") and not runs.has(b"weights")
    runs.store.delete_model("m", made.version)
    prune_all(runs)
    assert not runs.has(b"uploaded")


# -- what is removed ------------------------------------------------------------------------------


def test_files_and_code_of_old_jobs_are_pruned_and_their_rows_stay(runs: Runs) -> None:
    job = runs.finished("old", b"weights", b"log", code=b"archive")
    made = prune_all(runs)
    assert not runs.has(b"weights") and not runs.has(b"log")
    assert not runs.has(b"archive", code=True)
    assert [unit.id for unit in made.units] == [job.id]
    assert made.bytes == len(b"weights") + len(b"log") + len(b"archive")
    assert runs.store.job(job.id).state is JobState.COMPLETED
    assert runs.store.files(job.id) == []
    assert runs.store.events(job.id)[-1].kind == "pruned"
    assert prune.plan(runs.workspace, ALL).units == []  # not pruned twice


def test_a_plan_changes_nothing(runs: Runs) -> None:
    job = runs.finished("old", b"weights", code=b"archive")
    runs.age()
    before = sorted((runs.workspace.path / "blobs").rglob("*"))
    made = prune.plan(runs.workspace, ALL)
    assert made.going and made.jobs == [job.id]
    assert sorted((runs.workspace.path / "blobs").rglob("*")) == before
    assert len(runs.store.files(job.id)) == 1


def test_young_jobs_stay(runs: Runs) -> None:
    runs.finished("young", b"weights")
    assert prune_all(runs, Rules()).units == []
    assert runs.has(b"weights")


def test_the_newest_stay_whatever_their_age(runs: Runs) -> None:
    for number in range(4):
        runs.finished(f"job-{number}", b"%d" % number)
    made = prune_all(runs, Rules(older_than_s=0.0, keep=2))
    assert [unit.name for unit in made.units] == ["job-0", "job-1"]
    assert [runs.has(b"%d" % number) for number in range(4)] == [False, False, True, True]


def test_oldest_jobs_are_pruned_until_the_rest_fits(runs: Runs) -> None:
    for number in range(4):
        runs.finished(f"job-{number}", b"%d" % number * 1000)
    made = prune_all(runs, Rules(older_than_s=None, max_bytes=2500))
    assert [unit.name for unit in made.units] == ["job-0", "job-1"]
    assert (made.bytes, made.bytes_left) == (2000, 2000)


def test_shared_bytes_count_once_and_are_pruned_with_the_last_job(runs: Runs) -> None:
    runs.finished("a", b"shared" * 100, b"a" * 10)
    runs.finished("b", b"shared" * 100, b"b" * 10)
    made = prune_all(runs, Rules(older_than_s=None, max_bytes=615))
    assert [unit.name for unit in made.units] == ["a"]
    assert made.bytes == 10
    assert runs.has(b"shared" * 100)
    prune_all(runs)
    assert not runs.has(b"shared" * 100)


def test_unreferenced_files_are_pruned(runs: Runs) -> None:
    runs.finished("young", b"weights")
    runs.blobs.add_file(_write(runs.workspace.path / "x", b"an older log"))
    runs.blobs.put_bytes(b"not ours to judge", "elsewhere/x")
    made = prune_all(runs, Rules())
    assert (len(made.unreferenced), made.units) == (1, [])
    assert not runs.has(b"an older log") and runs.has(b"weights")
    assert runs.blobs.exists("elsewhere/x")


def test_pieces_of_abandoned_uploads_are_pruned(runs: Runs) -> None:
    runs.blobs.put_bytes(b"abc", "uploads/61-00/0-3")
    prune_all(runs, Rules())
    assert not list(runs.blobs.list("uploads/"))


def test_records_are_pruned_on_request(runs: Runs) -> None:
    gone, kept = runs.finished("gone", b"weights"), runs.finished("model", b"model")
    register(runs, kept)
    prune_all(runs, Rules(older_than_s=0.0, records=True))
    with pytest.raises(NotFoundError):
        runs.store.job(gone.id)
    assert runs.store.events(kept.id)
    assert [job.id for job in runs.store.jobs()] == [kept.id]


# -- what stays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING])
def test_jobs_that_are_not_finished_stay(until: JobState, runs: Runs) -> None:
    queued = runs.submit("waits", code=b"archive")
    runs.queue.start(runs.submit("lives", code=b"other"), until=until)
    made = prune_all(runs)
    assert (made.units, made.going) == ([], set())
    assert runs.has(b"archive", code=True) and runs.has(b"other", code=True)
    assert runs.store.job(queued.id).snapshot is not None


def test_model_files_and_their_code_stay(runs: Runs) -> None:
    job = runs.finished("trained", b"model", code=b"archive")
    register(runs, job)
    prune_all(runs)
    assert runs.has(b"model") and runs.has(b"archive", code=True)
    runs.store.delete_model("digits", 1)
    prune_all(runs)
    assert not runs.has(b"model") and not runs.has(b"archive", code=True)


def test_resume_source_of_an_unfinished_job_stays(runs: Runs) -> None:
    source = runs.finished("source", b"checkpoint")
    second = runs.submit("second", resume_from=source.id)
    made = prune_all(runs)
    assert runs.has(b"checkpoint")
    assert "resumes from it" in made.stays[source.id]
    runs.store.request_cancel(second.id)
    prune_all(runs)
    assert not runs.has(b"checkpoint")


def test_warm_start_source_of_an_unfinished_sweep_stays(runs: Runs) -> None:
    sweep, trial = runs.finished("sweep", b"one"), runs.finished("trial", b"two")
    runs.store.put_sweep(
        NewSweep(
            base=JobSpec(script="train.py"),
            definition={"resume_from": [sweep.id], "resume_trials": [trial.id]},
            driver="m:f",
            experiment="e",
            name="s",
            user="u",
            snapshot=None,
        )
    )
    prune_all(runs)
    assert runs.has(b"one")
    assert runs.has(b"two")


def test_checkpoint_files_packed_at_submit_stay(runs: Runs, tmp_path: Path) -> None:
    packed = resuming.pack_path(runs.blobs, _write(tmp_path / "start.pt", b"start"))
    job = runs.submit("second", resume_from=packed)
    listing = packed.removeprefix("packed:sha256:")
    prune_all(runs)
    assert runs.has(b"start") and runs.blobs.exists(f"files/sha256/{listing[:2]}/{listing}")
    runs.store.request_cancel(job.id)
    prune_all(runs)
    assert not runs.has(b"start")


def test_a_listing_that_cannot_be_read_stops_the_prune(runs: Runs, tmp_path: Path) -> None:
    packed = resuming.pack_path(runs.blobs, _write(tmp_path / "start.pt", b"start"))
    runs.submit("second", resume_from=packed)
    value = packed.removeprefix("packed:sha256:")
    (runs.workspace.path / "blobs" / "files" / "sha256" / value[:2] / value).write_bytes(b"?")
    with pytest.raises(Exception, match="nothing is pruned"):
        prune_all(runs)
    assert runs.has(b"start")


def test_a_sweep_stays_until_its_last_trial_has_ended(runs: Runs) -> None:
    parent = runs.submit("sweep")
    runs.queue.start(parent)
    runs.finished("trial-0", b"trial", code=b"archive", parent=parent.id)
    made = prune_all(runs)
    assert runs.has(b"trial")
    assert "1 of its jobs is unfinished" in made.stays[parent.id]
    runs.queue.finish(runs.store.job(parent.id))
    made = prune_all(runs)
    assert [len(unit.jobs) for unit in made.units] == [2]
    assert not runs.has(b"trial")


def test_data_in_datastores_stays(runs: Runs) -> None:
    kept = runs.workspace.path / "datastores" / "workspaceblobstore" / "train.csv"
    kept.parent.mkdir(parents=True)
    kept.write_text("1,2\n")
    runs.finished("old", b"weights")
    prune_all(runs, Rules(older_than_s=0.0, records=True))
    assert kept.read_text() == "1,2\n"


# -- what comes into use meanwhile -----------------------------------------------------------------


def test_recently_stored_files_stay(runs: Runs) -> None:
    runs.age()
    runs.blobs.add_file(_write(runs.workspace.path / "x", b"its row comes in a moment"))
    made = prune.plan(runs.workspace, ALL)
    prune.apply(runs.workspace, made)
    assert made.fresh == 1
    assert runs.has(b"its row comes in a moment")


def test_bytes_that_are_stored_again_after_the_plan_stay(runs: Runs) -> None:
    runs.finished("old", b"same bytes", code=b"same code")
    runs.age()
    made = prune.plan(runs.workspace, ALL)
    # A running job has stored the same output, and a new submit the same code, but their rows
    # are not written yet.
    runs.blobs.add_file(_write(runs.workspace.path / "x", b"same bytes"))
    [code] = [key for key in made.going if key.startswith("snapshots/")]
    assert runs.blobs.exists(code)
    removed = prune.apply(runs.workspace, made)
    assert runs.has(b"same bytes") and runs.has(b"same code", code=True)
    assert (removed.files, removed.spared, removed.kept) == (0, 2, [])


def test_a_job_submitted_after_the_plan_keeps_what_it_resumes_from(runs: Runs) -> None:
    source = runs.finished("source", b"checkpoint", code=b"archive")
    runs.age()
    made = prune.plan(runs.workspace, ALL)
    runs.submit("second", resume_from=source.id)
    prune.apply(runs.workspace, made)
    assert runs.has(b"checkpoint") and runs.has(b"archive", code=True)
    assert len(runs.store.files(source.id)) == 1


def test_a_model_registered_after_the_plan_keeps_its_files(runs: Runs) -> None:
    job = runs.finished("trained", b"model")
    runs.age()
    made = prune.plan(runs.workspace, ALL)
    register(runs, job)
    prune.apply(runs.workspace, made)
    assert runs.has(b"model")


def test_submit_with_pruned_code_is_refused(runs: Runs) -> None:
    job = runs.finished("old", b"x", code=b"archive")
    assert job.snapshot is not None
    check_snapshot(runs.workspace, job.snapshot)
    prune_all(runs)
    with pytest.raises(NotFoundError, match="was pruned"):
        check_snapshot(runs.workspace, job.snapshot)


def test_kill_between_rows_and_bytes_leaves_no_permanent_leftovers(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_arguments: object, **_more: object) -> None:
        raise Killed

    runs.finished("old", b"weights")
    runs.age()
    made = prune.plan(runs.workspace, ALL)
    with monkeypatch.context() as patch:
        patch.setattr(OwnFolder, "remove", die)
        with pytest.raises(Killed):
            prune.apply(runs.workspace, made)
    assert runs.has(b"weights")
    prune_all(runs)
    assert not runs.has(b"weights")


def test_files_set_aside_by_a_killed_prune_are_restored_if_needed(runs: Runs) -> None:
    runs.finished("young", b"needed")
    [needed] = (runs.workspace.path / "blobs" / "files").rglob("*/*/*")
    aside = needed.with_name(f"{ASIDE}{'0' * 16}-{needed.name}")
    needed.rename(aside)
    unneeded = aside.with_name(f"{ASIDE}{'1' * 16}-{'ab' * 32}")
    unneeded.write_bytes(b"x")
    prune_all(runs, Rules())
    assert needed.read_bytes() == b"needed"
    assert [path.name for path in needed.parent.iterdir()] == [needed.name]


# -- links -----------------------------------------------------------------------------------------


def test_link_among_the_stored_files_is_not_followed(runs: Runs, tmp_path: Path) -> None:
    important = tmp_path / "important"
    important.mkdir()
    _write(important / "thesis.txt", b"four years")
    job = runs.finished("old", b"weights")
    (runs.workspace.path / "blobs" / "files" / "ckpt").symlink_to(important)
    [stored] = runs.store.files(job.id)
    runs.age()
    made = prune.plan(runs.workspace, ALL)
    folder = (runs.workspace.path / "blobs" / stored.blob).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(important)
    os.link(important / "thesis.txt", important / Path(stored.blob).name)
    os.utime(important / "thesis.txt", (0, 0))
    removed = prune.apply(runs.workspace, made)
    assert "is a link" in removed.kept[0]
    assert sorted(path.name for path in important.iterdir()) == sorted(
        ["thesis.txt", Path(stored.blob).name]
    )


def test_stored_files_behind_a_link_are_refused(runs: Runs, tmp_path: Path) -> None:
    blobs = runs.workspace.path / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeDeletionError, match="is a link"):
        prune.plan(runs.workspace, ALL)


# -- the command -----------------------------------------------------------------------------------


def test_command_shows_what_would_be_pruned(runs: Runs, terminal: Terminal) -> None:
    job = runs.finished("old", b"w" * 2000)
    runs.age()
    done = terminal.type("prune", "--dry-run", "--older-than", "0s")
    assert done.code == 0
    assert job.id.rpartition("_")[2] in done.out
    assert "would remove 1.95 KiB" in done.out
    shown = json.loads(terminal.type("prune", "--dry-run", "--keep", "0", "--json").out)
    assert (shown["removed"], shown["bytes"]) == (None, 2000)
    assert [one["id"] for one in shown["jobs"]] == [job.id]
    assert runs.has(b"w" * 2000)


def test_command_prunes_only_after_confirmation(runs: Runs, terminal: Terminal) -> None:
    runs.finished("old", b"weights")
    runs.age()
    refused = terminal.type("prune", "--older-than", "0s")
    assert refused.code == 2 and "--yes" in refused.err
    assert runs.has(b"weights")
    done = terminal.type("prune", "--older-than", "0s", "--yes")
    assert done.code == 0 and "removed 1 file from disk, 7 B" in done.out
    assert "1 job lost its logs and stored files: 1 file\n" in done.out
    assert not runs.has(b"weights")
    again = terminal.type("prune", "--max-size", "0B", "--yes", "--json")
    assert json.loads(again.out)["removed"] is None  # nothing left to do


def test_shared_bytes_stay_and_losses_of_jobs_are_counted(runs: Runs, terminal: Terminal) -> None:
    runs.finished("a", b"weights", b"log")
    runs.finished("b", b"weights", b"log")
    runs.finished("kept", b"weights", b"log")
    runs.age()
    done = terminal.type("prune", "--keep", "1", "--yes")
    shared = " (the bytes of 2 files stay: other jobs or models use them too)"
    assert f"2 jobs lose their logs and stored files: 4 files{shared}" in done.out
    assert f"2 jobs lost their logs and stored files: 4 files{shared}" in done.out
    assert "removed 0 files from disk, 0 B" in done.out


def test_prune_result_is_counted_in_json(runs: Runs, terminal: Terminal) -> None:
    runs.finished("a", b"weights", b"log")
    runs.finished("kept", b"weights")
    runs.age()
    result = json.loads(terminal.type("prune", "--keep", "1", "--yes", "--json").out)
    assert (result["files_unreferenced"], result["files_shared"]) == (2, 1)
    assert result["removed"]["files"] == 1


def test_concurrent_prune_is_refused(runs: Runs, terminal: Terminal) -> None:
    with prune.pruning(runs.workspace):
        with pytest.raises(UsageError), prune.pruning(runs.workspace):
            pass
        assert "another prune" in terminal.type("prune", "--yes").err


def test_without_a_workspace_there_is_nothing_to_prune(terminal: Terminal) -> None:
    done = terminal.type("prune", "--dry-run")
    assert done.code == 3 and "no workspace" in done.err
    done = terminal.type("prune", "--dry-run", "--scratch")
    assert done.code == 0 and "would remove 0 B of scratch" in done.out


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_pruned_job_shows_when_and_why_its_files_were_removed(
    runs: Runs, terminal: Terminal
) -> None:
    job, other = runs.finished("a", b"one"), runs.finished("b", b"two")
    assert terminal.type("prune", "--keep", "1", "--yes").code == 0
    for command in ("logs", "files", "show", "download"):
        done = terminal.type(command, job.id)
        output = " ".join(f"{done.out} {done.err}".split())
        assert "pruned by " in output, command
        assert "with `rayjobs prune --keep 1` (20" in output
        assert done.code == (3 if command == "logs" else 0)
    assert "pruned" not in terminal.type("show", other.id).out
    done = terminal.type("files", job.id, "outputs/model.pt")
    assert done.code == 3
    assert "has no stored file 'outputs/model.pt'; its " in done.err
    done = terminal.type("resume", job.id)
    assert done.code == 2
    assert f"run {job.id} has no checkpoint: its " in done.err and "pruned by " in done.err


def test_job_pruned_with_its_records_is_reported_as_pruned(runs: Runs, terminal: Terminal) -> None:
    job = runs.finished("a", b"one")
    assert terminal.type("prune", "--keep", "0", "--records", "--yes").code == 0
    for text in (job.id, job.id.rpartition("_")[2], job.name):
        done = terminal.type("logs", text)
        assert done.code == 3
        assert "any more: it was pruned with its records by " in done.err
        assert "with `rayjobs prune --keep 0 --records`" in done.err
