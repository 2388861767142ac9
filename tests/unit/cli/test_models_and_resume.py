"""`rayjobs model` and `rayjobs resume` on a workspace without a target."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs import Workspace
from rayjobs.core.users import user_name
from rayjobs.jobs.records import Job, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.models import requested
from rayjobs.models.facts import RunChoice
from rayjobs.protocol.collected import RequestedModel
from rayjobs.submit import submitting
from tests.support import registering as models
from tests.unit.cli.conftest import Terminal
from tests.unit.models.conftest import Runs


@pytest.fixture
def runs(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """Runs of the workspace that the test's commands use; no target is started."""
    monkeypatch.setattr(submitting, "wake_or_start", lambda workspace, target: False)
    workspace = Workspace.create("w", path=Path(os.environ["RAYJOBS_WORKSPACE"]))
    yield Runs(workspace, tmp_path / "node")
    workspace.close()


def tail(job: Job) -> str:
    return job.id.rpartition("_")[2]


def test_a_model_from_its_run_to_its_files(
    runs: Runs, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no models" in terminal.type("model", "ls").err
    job = runs.trained()
    register = ("model", "register", "mnist", "--run", tail(job), "--path", "outputs/model.pt")
    done = terminal.type(*register, "--metric", "accuracy", "--alias", "live", "--tag", "a=1")
    assert (done.code, done.out) == (0, "mnist:1\n"), done.err
    assert terminal.type(*register, "-q").out == "mnist:1\n"
    listed = terminal.type("model", "ls").out.splitlines()
    assert listed[1].split()[:3] == ["mnist", "1", "live"]
    assert "accuracy 0.9" in listed[1]
    shown = terminal.type("model", "show", "mnist@live").out
    assert "a=1" in shown
    assert "model.pt" in shown
    lineage = terminal.type("model", "lineage", "mnist").out
    for fact in (job.id, "train.py of snapshot sha256:", "--lr 0.1", "accuracy=0.9", "sha256:"):
        assert fact in lineage
    found = json.loads(terminal.type("model", "lineage", "mnist:1", "--json").out)
    assert (found["model"], found["run"]) == ("mnist:1", job.id)
    done = terminal.type("model", "download", "mnist@live", "-o", "got")
    assert done.out == "got/model.pt\n"
    assert Path("got/model.pt").read_bytes() == b"weights"
    again = terminal.type("model", "download", "mnist", "-o", "got")
    assert again.code == 2
    assert "exist" in again.err
    assert terminal.type("model", "download", "mnist", "-o", "got", "--force").code == 0


def test_aliases_are_moved_and_removed(runs: Runs, terminal: Terminal) -> None:
    for data in (b"1", b"2"):
        job = runs.trained(data=data)
        terminal.type("model", "register", "m", "--run", job.id, "--path", "model.pt")
    assert terminal.type("model", "alias", "m:1", "live").out == "m@live is m:1\n"
    assert terminal.type("model", "alias", "m", "live").out == "m@live is m:2\n"
    rows = json.loads(terminal.type("model", "ls", "m", "--json").out)
    assert [(row["id"], row["aliases"]) for row in rows] == [("m:2", ["live"]), ("m:1", [])]
    assert terminal.type("model", "alias", "m", "live", "--remove").code == 0
    assert terminal.type("model", "show", "m@live").code == 3


def test_mistakes_are_reported_in_a_sentence(runs: Runs, terminal: Terminal) -> None:
    job = runs.begin()
    done = terminal.type("model", "register", "m", "--run", job.id, "--path", "model.pt")
    assert done.code == 2
    assert "only a completed run can become a model" in done.err
    done = terminal.type("model", "show", "nothing")
    assert (done.code, "there is no model 'nothing'" in done.err) == (3, True)
    assert terminal.type("model", "register", "a b", "--run", job.id).code == 2


def test_completed_runs_are_suggested_if_several_have_the_name(
    runs: Runs, terminal: Terminal
) -> None:
    trained, running = runs.trained(), runs.begin()
    name = trained.spec.name
    done = terminal.type("model", "register", "m", "--run", name, "--path", "model.pt")
    assert (done.code, done.out) == (2, "")
    assert f"{name!r} names 2 runs" in done.err
    assert trained.id in done.err
    assert running.id not in done.err


def test_resume_submits_a_job_that_continues(runs: Runs, terminal: Terminal) -> None:
    job = runs.begin()
    runs.save(job, 5)
    runs.end(job, JobState.FAILED)
    done = terminal.type("resume", tail(job), "-q", "--max-duration", "2h")
    assert done.code == 0, done.err
    new = runs.workspace.store.job(done.out.strip())
    assert (new.spec.resume_from, new.snapshot) == (job.id, job.snapshot)
    assert (new.spec.arguments, new.spec.max_duration_s) == (job.spec.arguments, 7200.0)
    resumed = terminal.type("resume", tail(job))
    assert f"continues from {job.id}" in resumed.err


def test_resume_without_a_checkpoint_is_refused(runs: Runs, terminal: Terminal) -> None:
    job = runs.trained()
    done = terminal.type("resume", tail(job))
    assert done.code == 2
    assert "has no checkpoint" in done.err
    done = terminal.type("resume", tail(job), "--max-duration", "soon")
    assert done.code == 2
    assert terminal.type("resume", "nothing").code == 3


def test_a_models_value_is_shown_with_the_one_at_the_end_where_that_differs(
    runs: Runs, terminal: Terminal
) -> None:
    job = runs.trained((0.5, 0.944, 0.923))
    models.register_best(
        runs.workspace,
        name="best",
        run=job.id,
        choice=RunChoice(metric="accuracy", value=0.944, configuration={}, sweep="sweep_1"),
    )
    for command in (("ls",), ("lineage", "best")):
        assert "accuracy 0.944 (last 0.923)" in terminal.type("model", *command).out


def test_run_shows_its_models_and_refused_requests(runs: Runs, terminal: Terminal) -> None:
    job = runs.begin()
    runs.write(job, model__pt=b"w")
    runs.publish(job)
    store, blobs = runs.workspace.store, runs.workspace.opened.blobs
    store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING)
    requests = [
        RequestedModel(name, path, file=path)
        for name, path in (("net", "outputs/model.pt"), ("gone", "outputs/g.pt"))
    ]
    ready = requested.prepare(store, blobs, job.id, requests)
    assert store.finish(job.id, attempt=1, state=JobState.COMPLETED, models=ready)
    shown = terminal.type("show", tail(job)).out
    models_shown = shown[shown.index("\nModels\n") :].split("\n")
    assert models_shown[2].split() == ["net:1", "outputs/model.pt"]
    assert models_shown[3].split()[:3] == ["gone", "not", "registered:"]
    found = json.loads(terminal.type("show", "--json", tail(job)).out)
    assert found["models"] == [{"name": "net", "version": 1, "path": "outputs/model.pt"}]
    (refused,) = found["models_refused"]
    assert (refused["name"], refused["path"]) == ("gone", "outputs/g.pt")
    assert "no file or folder 'outputs/g.pt'" in refused["why"]
    waited = terminal.type("wait", tail(job))
    assert waited.code == 0
    assert "Completed: the model 'gone' of 'outputs/g.pt' was not registered" in waited.out
    assert "net:1 is outputs/model.pt" in terminal.type("events", tail(job)).out


def test_refused_model_registered_manually_is_no_longer_shown_as_refused(
    runs: Runs, terminal: Terminal
) -> None:
    job = runs.begin()
    runs.write(job, model__pt=b"w")
    runs.publish(job)
    store = runs.workspace.store
    store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING)
    refusal = ModelRefusal(name="net", path="outputs/model.pt", why="it was damaged")
    assert store.finish(job.id, attempt=1, state=JobState.COMPLETED, models=[refusal])
    assert "not registered: it was damaged" in terminal.type("show", tail(job)).out
    models.register(runs.workspace, name="net", run=job.id, path="outputs/model.pt")
    assert json.loads(terminal.type("show", "--json", tail(job)).out)["models_refused"] == []


def test_local_file_is_registered_with_its_origin(
    runs: Runs, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert.bin").write_bytes(b"weights")
    done = terminal.type("model", "register", "bert", "--from", "bert.bin", "--alias", "live")
    assert (done.code, done.out) == (0, "bert:1\n"), done.err
    origin = f"uploaded by {user_name()} from {tmp_path / 'bert.bin'} on "
    assert origin in terminal.type("model", "show", "bert@live").out
    lineage = terminal.type("model", "lineage", "bert").out
    assert origin in lineage and "bert.bin  sha256:" in lineage
    assert "(uploaded)" in terminal.type("model", "ls").out
    for wrong in ((), ("--run", "x", "--from", "y"), ("--from", "y", "--path", "z")):
        assert terminal.type("model", "register", "bert", *wrong).code == 2
    assert terminal.type("model", "register", "bert", "--from", "nothing").code == 3
