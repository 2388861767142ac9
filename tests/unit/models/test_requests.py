"""Models that a script registers: requested while it runs, registered when it completes."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Dataset, Model
from rayjobs.core.clock import to_text
from rayjobs.core.errors import StoreUnreachableError
from rayjobs.injob.model_requests import MOST_MODELS, ModelRequest
from rayjobs.injob.submitted import SubmittedRun
from rayjobs.jobs.records import Job, ModelRefusal
from rayjobs.jobs.states import JobState
from rayjobs.models import requested
from rayjobs.results.collect import Publisher
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from tests.support.attempts import on_node
from tests.unit.models.conftest import SNAPSHOT, Runs
from tests.unit.models.test_sweep_best import a_sweep


class Scripts:
    """Simulates the calls of scripts in their runs, and the end of runs by a target."""

    def __init__(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = runs
        self._set = monkeypatch.setenv

    def run(self, job: Job, rank: int = 0) -> SubmittedRun:
        """Return the run as the script of the job's newest attempt sees it."""
        paths = self.runs.paths(job)
        self._set("RAYJOBS_ATTEMPT_DIR", str(paths.root))
        self._set("RAYJOBS_OUTPUTS", str(paths.work / "outputs"))
        return SubmittedRun(job.id, str(paths.root / "metrics"), rank)

    def ready(self, job: Job) -> list[Any]:
        """Return the models that the end is to register, with all files stored."""
        store = self.runs.workspace.store
        requests = requested.read(self.runs.paths(job).root, 0)
        blobs = self.runs.workspace.opened.blobs
        return requested.prepare(store, blobs, job.id, requested.fold(requests))

    def finalize(self, job: Job) -> int:
        """Store the files of the newest attempt; return its number."""
        self.runs.publish(job)
        number = self.runs.workspace.store.job(job.id).attempt
        store = self.runs.workspace.store
        store.move(job.id, attempt=number, old=JobState.RUNNING, new=JobState.FINALIZING)
        return number

    def finish(self, job: Job, ready: list[Any]) -> bool:
        """Record the job's end as Completed."""
        store = self.runs.workspace.store
        number = store.job(job.id).attempt
        return store.finish(job.id, attempt=number, state=JobState.COMPLETED, models=ready)

    def end(self, job: Job) -> Job:
        """Complete the run as a target does."""
        self.finalize(job)
        assert self.finish(job, self.ready(job))
        return self.runs.workspace.store.job(job.id)

    def refusals(self, job: Job) -> list[str]:
        """Return the refusals that the run's history contains."""
        events = self.runs.workspace.store.events(job.id)
        return [one.message for one in events if one.kind == "model_refused"]


@pytest.fixture
def scripts(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(runs, monkeypatch)


def test_a_scripts_model_is_there_when_its_run_completes(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, model__pt=b"weights")
    runs.log(job, "accuracy", (0.5, 0.9))
    request = scripts.run(job).register_model(
        "mnist",
        "./outputs/model.pt",
        tags={"stage": "dev", "epochs": 3},
        properties={"p": 1.5},
        model_framework="PyTorch",
        model_framework_version="2.1",
        description="first",
    )
    assert isinstance(request, ModelRequest)
    assert (request.name, request.version, request.id, request.run_id) == (
        "mnist",
        None,
        None,
        job.id,
    )
    assert (request.path, request.tags["epochs"]) == ("outputs/model.pt", "3")
    assert "registered when the run completes" in repr(request)
    with pytest.raises(AttributeError, match="no 'download' yet"):
        request.download()
    scripts.finalize(job)
    ready = scripts.ready(job)
    assert runs.workspace.store.models() == []
    assert scripts.finish(job, ready)
    done = runs.workspace.store.job(job.id)
    model = Model(runs.workspace, "mnist")
    assert (model.id, model.run_id, model.created_by) == ("mnist:1", job.id, "ada")
    assert (model.tags, model.properties) == ({"stage": "dev", "epochs": "3"}, {"p": "1.5"})
    assert (model.model_framework, model.model_framework_version) == ("PyTorch", "2.1")
    assert model.description == "first"
    found = model.lineage
    assert (found["run"], found["attempt"], found["snapshot"]) == (job.id, 1, SNAPSHOT)
    assert found["metrics"] == {"accuracy": 0.9}
    assert done.ended_at is not None and found["ended_at"] == to_text(done.ended_at)
    assert done.reason == ""
    assert Path(model.download(runs.folder / "got")).read_bytes() == b"weights"
    # A manual registration of the same files returns it.
    assert runs.workspace.get_run(job.id).register_model("mnist", "model.pt").version == 1


def test_model_is_not_refused_while_its_storage_does_not_answer(
    runs: Runs, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = runs.begin()
    (runs.paths(job).work / "outputs" / "model.pt").write_bytes(b"weights")
    scripts.run(job).register_model("mnist", "outputs/model.pt")
    scripts.finalize(job)

    def away(*_: object, **__: object) -> None:
        raise StoreUnreachableError("S3 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(runs.workspace.opened.blobs), "open", away)
        with pytest.raises(StoreUnreachableError):
            scripts.ready(job)
    assert scripts.finish(job, scripts.ready(job))
    assert [one.name for one in runs.workspace.store.models()] == ["mnist"]


def test_a_scripts_model_names_its_datasets_and_resources(runs: Runs, scripts: Scripts) -> None:
    (runs.folder / "words").mkdir(parents=True)
    (runs.folder / "words" / "a.txt").write_text("a b")
    store = runs.workspace.get_default_datastore()
    store.upload(runs.folder / "words", "words", show_progress=False)
    files = Dataset.File.from_files((store, "words"))
    words, more = (files.register(runs.workspace, name) for name in ("words", "more"))
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    run = scripts.run(job)
    run.register_model(
        "m",
        "m.pt",
        datasets=[("training", words)],
        sample_input_dataset=words,
        # as a script without rayjobs in its Python finds it: RunWorkspace.datasets
        sample_output_dataset={"name": "more", "version": 1, "id": more.id, "kind": "file"},
        resource_configuration="2 CPUs",
    )
    run.register_model("m", "m.pt", datasets=[("training", words), ("test", more)])
    scripts.end(job)
    model = Model(runs.workspace, "m")
    assert [(one["name"], one["dataset"], one["dataset_id"]) for one in model.datasets] == [
        ("sample_input", "words:1", words.id),
        ("sample_output", "more:1", more.id),
        ("training", "words:1", words.id),
        ("test", "more:1", more.id),
    ]
    assert model.sample_input_dataset is not None and model.sample_output_dataset is not None
    assert model.sample_output_dataset.id == more.id
    assert model.resource_configuration == "2 CPUs"
    outside = Model.register(runs.workspace, "m.pt", "n", run=job.id, datasets=[("test", more)])
    assert outside.datasets == model.datasets[-1:]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"datasets": ["words"]},
            "is not a pair of purpose and dataset; give [('training', dataset)]",
        ),
        ({"datasets": 3}, "is not a pair of purpose and dataset; give [('training', dataset)]"),
        (
            {"datasets": [("training", "/mnt/w")]},
            "the dataset for 'training' is '/mnt/w', which is",
        ),
        (
            {"sample_input_dataset": {"name": "w"}},
            "the dataset for 'sample_input' is {'name': 'w'}",
        ),
        ({"sample_output_dataset": "unregistered"}, "'sample_output' is not registered, so the"),
        ({"colour": "red", "size": 1}, "register_model does not accept colour, size"),
    ],
)
def test_what_a_scripts_model_cannot_record_is_refused(
    runs: Runs, scripts: Scripts, arguments: dict[str, Any], text: str
) -> None:
    if arguments.get("sample_output_dataset") == "unregistered":
        store = runs.workspace.get_default_datastore()
        runs.folder.mkdir(parents=True, exist_ok=True)
        (runs.folder / "a.txt").write_text("a b")
        store.upload_files([str(runs.folder / "a.txt")], target_path="words", show_progress=False)
        arguments = {"sample_output_dataset": Dataset.File.from_files((store, "words"))}
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        scripts.run(job).register_model("m", "m.pt", **arguments)
    scripts.end(job)
    assert runs.workspace.store.models() == []


def test_final_bytes_and_latest_texts_count(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"epoch 1")
    run = scripts.run(job)
    run.register_model("m", "m.pt", tags={"epoch": 1, "kept": "y"}, description="told")
    runs.write(job, m__pt=b"epoch 2")
    run.register_model("m", "outputs/m.pt", tags={"epoch": 2}, properties={"p": "q"})
    scripts.end(job)
    (kept,) = runs.workspace.store.models()
    assert (kept.version, kept.tags) == (1, {"epoch": "2", "kept": "y"})
    assert (kept.properties, kept.description) == ({"p": "q"}, "told")
    model = Model(runs.workspace, "m")
    assert Path(model.download(runs.folder / "got")).read_bytes() == b"epoch 2"


def test_a_file_that_was_uploaded_and_a_folder(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, net___a__bin=b"a", net___b__bin=b"b")
    source = runs.folder / "local.pkl"
    source.write_bytes(b"pickle")
    run = scripts.run(job)
    run.upload_file("outputs/up.pkl", str(source))
    run.upload_folder("bundle", str(runs.paths(job).work / "outputs" / "net"))
    assert run.register_model("up", "outputs/up.pkl").path == "outputs/up.pkl"
    assert run.register_model("bundle").path == "bundle"  # without a path, the name
    outputs = runs.paths(job).work / "outputs"
    assert run.register_model("net", str(outputs / "net")).path == "outputs/net"
    assert run.register_model("all", str(outputs)).path == "outputs"
    scripts.end(job)
    names = {
        one.name: sorted(file.name for file in one.files) for one in runs.workspace.store.models()
    }
    assert names == {
        "up": ["up.pkl"],
        "bundle": ["a.bin", "b.bin"],
        "net": ["a.bin", "b.bin"],
        "all": ["net/a.bin", "net/b.bin", "up.pkl"],
    }


@pytest.mark.parametrize(
    ("name", "path", "error", "message"),
    [
        ("bad name", "m.pt", ValueError, "cannot be called 'bad name'"),
        (7, "m.pt", TypeError, "must be text"),
        ("m", "none.pt", FileNotFoundError, r"available: outputs/.*outputs/m\.pt"),
        ("m", None, FileNotFoundError, "below outputs/"),
        ("m", "../m.pt", ValueError, "cannot be the name"),
        ("m", "/etc/passwd", ValueError, "is not below the run's outputs"),
        ("m", "hollow", ValueError, "empty folder"),
        ("m", "away.pt", ValueError, "outside the job's directory"),
        ("m", "checkpoints/step-000000000007", ValueError, "an incomplete checkpoint"),
        ("m", "pipe", ValueError, "neither a file nor a folder"),
        ("m", "outputs/.part-1", ValueError, "are reserved"),
        ("m", 7, TypeError, "int"),
    ],
)
def test_invalid_model_request_is_refused_immediately(
    runs: Runs, scripts: Scripts, name: Any, path: Any, error: type[Exception], message: str
) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w", empty__pt=b"")
    outputs = runs.paths(job).work / "outputs"
    (outputs / "hollow").mkdir()
    (outputs / "away.pt").symlink_to("/etc/passwd")
    os.mkfifo(outputs / "pipe")
    runs.save(job, 7)
    (outputs / "checkpoints" / "step-000000000007" / "model.pt").write_bytes(b"cut")
    with pytest.raises(error, match=message):
        scripts.run(job).register_model(name, path)
    assert not (runs.paths(job).root / "models").exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"tags": [1]}, "tags is a list"),
        ({"properties": "p"}, "properties is a str"),
        ({"tags": {"a": None}}, "None"),
        ({"description": 7}, "description is a int"),
        ({"model_framework": b"x"}, "model_framework is a bytes"),
    ],
)
def test_texts_of_a_wrong_type_are_refused(
    runs: Runs, scripts: Scripts, texts: dict[str, Any], message: str
) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    with pytest.raises(TypeError, match=message):
        scripts.run(job).register_model("m", "m.pt", **texts)


def test_a_request_that_cannot_be_written_raises(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    (runs.paths(job).root / "models").write_bytes(b"")  # no folder can be made there
    with pytest.raises(OSError, match="models"):
        scripts.run(job).register_model("m", "m.pt")


@pytest.mark.long
def test_more_models_than_a_run_may_have(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    run = scripts.run(job)
    for number in range(MOST_MODELS):
        run.register_model(f"m{number}", "m.pt")
    run.register_model("m0", "m.pt")  # requested before
    with pytest.raises(ValueError, match=f"already requested {MOST_MODELS} models"):
        run.register_model("more", "m.pt")
    scripts.run(job, rank=1).register_model("of-rank-1", "m.pt")
    scripts.finalize(job)
    ready = scripts.ready(job)
    assert len(ready) == MOST_MODELS + 1
    assert isinstance(ready[-1], ModelRefusal) and "one more" in ready[-1].why


def test_model_whose_file_is_missing_at_the_end_is_reported(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, good__pt=b"w", gone__pt=b"w")
    run = scripts.run(job)
    run.register_model("gone", "gone.pt")
    run.register_model("good", "good.pt")
    (runs.paths(job).work / "outputs" / "gone.pt").unlink()
    done = scripts.end(job)
    assert done.state is JobState.COMPLETED
    assert [one.name for one in runs.workspace.store.models()] == ["good"]
    (message,) = scripts.refusals(job)
    assert message.startswith("the model 'gone' of 'outputs/gone.pt' was not registered: run ")
    assert "its files are: outputs/good.pt" in message
    assert done.reason == message


def test_files_that_change_before_the_end_is_written(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, a__pt=b"w", b__pt=b"w")
    run = scripts.run(job)
    run.register_model("a", "a.pt")
    run.register_model("b", "b.pt")
    scripts.finalize(job)
    ready = scripts.ready(job)
    runs.write(job, a__pt=b"others")
    runs.publish(job)
    assert scripts.finish(job, ready)
    assert [one.name for one in runs.workspace.store.models()] == ["b"]
    assert "'outputs/a.pt' of run" in scripts.refusals(job)[0]


def test_repeated_end_duplicates_nothing(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    scripts.run(job).register_model("m", "m.pt")
    scripts.finalize(job)
    scripts.ready(job)  # a target that died here
    ready = scripts.ready(job)
    assert scripts.finish(job, ready)
    assert not scripts.finish(job, ready)  # and its answer was lost
    assert [(one.name, one.version) for one in runs.workspace.store.models()] == [("m", 1)]
    kinds = [one.kind for one in runs.workspace.store.events(job.id)]
    assert kinds.count("model") == 1


def test_different_bytes_under_a_name_become_the_next_version(runs: Runs, scripts: Scripts) -> None:
    for number, data in enumerate((b"one", b"two"), 1):
        job = runs.begin()
        runs.write(job, m__pt=data)
        scripts.run(job).register_model("m", "m.pt")
        scripts.end(job)
        assert Model(runs.workspace, "m").version == number


def test_equal_requests_of_ranks_are_merged_and_the_lowest_rank_counts(
    runs: Runs, scripts: Scripts
) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w", one__pt=b"1")
    for rank in (2, 1, 0):
        scripts.run(job, rank).register_model("m", "m.pt", tags={"rank": rank})
    scripts.run(job, 1).register_model("m", "one.pt")
    scripts.end(job)  # its plan has one rank: the script started the others
    kept = runs.workspace.store.models(name="m")
    assert [(one.version, one.path) for one in kept] == [(2, "outputs/one.pt"), (1, "outputs/m.pt")]
    assert kept[1].tags == {"rank": "0"}


def test_a_rank_of_another_node_means_its_own_file(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"of node 1")
    run = scripts.run(job, 1)
    run.register_model("m", "m.pt")
    store, root = runs.workspace.store, runs.paths(job).root
    publisher = Publisher(
        on_node(root, ranks=(1,), node=1, node_count=2),
        blobs=runs.workspace.opened.blobs,
        publish=lambda files: store.publish_files(job.id, attempt=1, files=list(files)),
    )
    assert publisher.finish() == []
    store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING)
    requests = requested.fold(requested.read(root, 1))
    ready = requested.prepare(store, runs.workspace.opened.blobs, job.id, requests)
    assert scripts.finish(job, ready)
    assert Model(runs.workspace, "m").record.path == "node-1/outputs/m.pt"


def test_requests_of_a_lost_attempt_are_dropped(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"hal", lost__pt=b"x")
    run = scripts.run(job)
    run.register_model("m", "m.pt", tags={"attempt": 1})
    run.register_model("lost", "lost.pt")
    runs.retry(job)
    runs.write(job, m__pt=b"whole")
    scripts.run(job).register_model("m", "m.pt", tags={"attempt": 2})
    done = scripts.end(job)
    (kept,) = runs.workspace.store.models()
    assert (kept.name, kept.version, kept.attempt, kept.tags) == ("m", 1, 2, {"attempt": "2"})
    assert done.reason == ""


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELED])
def test_only_completed_runs_end_with_models(runs: Runs, scripts: Scripts, state: JobState) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    scripts.run(job).register_model("m", "m.pt")
    number = scripts.finalize(job)
    ready = scripts.ready(job)
    store = runs.workspace.store
    with pytest.raises(ValueError, match="only completed runs have models"):
        store.finish(job.id, attempt=number, state=state, models=ready)
    assert store.job(job.id).state is JobState.FINALIZING
    assert store.finish(job.id, attempt=number, state=state)
    assert store.models() == []
    # A request prepared after the end is refused.
    (late,) = scripts.ready(job)
    assert isinstance(late, ModelRefusal) and f"has ended as {state}" in late.why


def test_diverged_trial_registers_no_requested_model(runs: Runs, scripts: Scripts) -> None:
    store = runs.workspace.store
    sweep = a_sweep(runs, metric="accuracy")
    trial, _ = store.submit(
        NewJob(
            spec=JobSpec(script="train.py"),
            experiment="mnist",
            snapshot=SNAPSHOT,
            user="ada",
            parent=sweep.id,
        )
    )
    runs.attempt(trial)
    runs.write(trial, m__pt=b"w")
    runs.log(trial, "accuracy", (0.9, math.nan))
    scripts.run(trial).register_model("m", "m.pt")
    done = scripts.end(trial)
    assert store.models() == []
    assert "accuracy of run" in done.reason and "is nan" in done.reason


def test_handwritten_request_file_is_handled(runs: Runs, scripts: Scripts) -> None:
    job = runs.begin()
    runs.write(job, m__pt=b"w")
    run = scripts.run(job)
    run.register_model("m", "m.pt")
    file = runs.paths(job).model_requests(0)
    lines = [
        b'{"k":"model","name":"a","path":"../../x","tags":{},"properties":{}}',
        b'{"k":"model","name":"b","path":"outputs/m.pt","tags":[],"properties":{}}',
        b'{"k":"model","name":["c"],"path":null}',
        b"{torn",
    ]
    with file.open("ab") as stream:
        stream.write(b"\n".join(lines) + b"\n")
    run.register_model("after", "m.pt")
    scripts.end(job)
    assert [one.name for one in runs.workspace.store.models()] == ["after", "m"]
    messages = scripts.refusals(job)
    assert len(messages) == 3 and all(one.endswith("its request is damaged") for one in messages)
    assert runs.workspace.store.job(job.id).reason == f"{messages[0]} (and 2 more)"
