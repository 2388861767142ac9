"""Interactive runs: stored from the start, with children, files and a correct end."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayjobs import Experiment, Run, ScriptRunConfig, Workspace
from rayjobs.api.interactive import InteractiveRun
from rayjobs.api.kinds import RunDto, _factories
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob import attempt_runs
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter

CONFUSION = {
    "schema_type": "confusion_matrix",
    "schema_version": "1.0.0",
    "data": {"class_labels": ["a", "b"], "matrix": [[1, 2], [3, 4]]},
}


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace.create("team", path=tmp_path / "team")
    yield made
    made.close()


@pytest.fixture
def experiment(workspace: Workspace) -> Experiment:
    return Experiment(workspace, "notes")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(experiment: Experiment, here: Path) -> Iterator[InteractiveRun]:
    started = experiment.start_logging(name="first", outputs=False)
    yield started
    if started.status == "Running":
        started.cancel()


def test_interactive_run_is_stored_from_the_start(
    experiment: Experiment, workspace: Workspace, run: InteractiveRun
) -> None:
    assert (run.status, run.name, run.type) == ("Running", "first", "azureml.interactive")
    assert [one.id for one in experiment.get_runs()] == [run.id]
    assert [one.id for one in experiment.get_runs(type="interactive")] == [run.id]
    assert list(experiment.get_runs(type="azureml.scriptrun")) == []
    assert list(workspace.experiments) == ["notes"]
    found = Run(experiment, run.id)
    assert isinstance(found, InteractiveRun)
    found.log("loss", 0.5)  # another handle writes to the same curve
    run.log("loss", 0.25)
    assert Run.get(workspace, run.id).get_metrics() == {"loss": [0.5, 0.25]}
    assert run.get_portal_url() == f"rayjobs://{workspace.name}/{run.id}"
    run.complete()
    details = run.get_details()
    assert (details["status"], details["runId"]) == ("Completed", run.id)
    assert details["endTimeUtc"] >= details["startTimeUtc"]
    assert run.wait_for_completion()["status"] == "Completed"


def test_with_block_ends_the_run_by_its_outcome(experiment: Experiment, here: Path) -> None:
    with experiment.start_logging() as good:
        good.log("x", 1)
    with pytest.raises(ZeroDivisionError), experiment.start_logging() as bad:
        bad.log("x", 1 / 0)
    with pytest.raises(SystemExit), experiment.start_logging() as left:
        raise SystemExit(0)
    assert [one.status for one in (good, bad, left)] == ["Completed", "Failed", "Completed"]
    assert bad.get_details()["error"]["error"]["message"] == "ZeroDivisionError: division by zero"


def test_fail_fails_and_an_end_is_final(run: InteractiveRun) -> None:
    run.fail("it diverged", error_code="NaNLoss")
    assert run.get_status() == "Failed"
    assert run.get_details()["error"]["error"]["message"] == "NaNLoss: it diverged"
    with pytest.warns(UserWarning, match="has already ended as Failed"):
        run.complete()
    assert run.get_status() == "Failed"


@pytest.mark.long
def test_every_kind_of_value_round_trips(run: InteractiveRun, tmp_path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG picture")
    run.log("int", 3)
    run.log("float", 0.1)
    run.log("text", "fine")
    run.log("bool", True)
    run.log("infinite", math.inf)
    run.log("nan", math.nan)
    run.log("numpy", np.float32(0.5))
    run.log("repeated", 1, step=0)
    run.log("repeated", 2, step=1)
    run.log_list("list", [1, 2.5, math.nan])
    run.log_row("row", x=1, y="a")
    run.log_row("rows", x=1)
    run.log_row("rows", x=2)
    run.log_table("table", {"x": [1, 2], "y": [3, 4]})
    run.log_confusion_matrix("confusion", CONFUSION)
    run.log_accuracy_table("accuracy", {**CONFUSION, "schema_type": "accuracy_table"})
    run.log_residuals("residuals", {**CONFUSION, "schema_type": "residuals"})
    run.log_predictions("predictions", {**CONFUSION, "schema_type": "predictions"})
    run.log_image("picture", path=str(picture))
    figure, axes = pyplot.subplots()
    axes.plot([1, 2], [3, 4])
    run.log_image("figure", plot=figure)
    run.log_image("pyplot", plot=pyplot)
    pyplot.close(figure)
    found = run.get_metrics()
    images = {name: found.pop(name) for name in ("picture", "figure", "pyplot")}
    assert math.isnan(found.pop("nan")) and math.isnan(found["list"].pop())
    assert found == {
        "int": 3,
        "float": 0.1,
        "text": "fine",
        "bool": True,
        "infinite": math.inf,
        "numpy": 0.5,
        "repeated": [1, 2],
        "list": [1, 2.5],
        "row": {"x": 1, "y": "a"},
        "rows": {"x": [1, 2]},
        "table": {"x": [1, 2], "y": [3, 4]},
        "confusion": CONFUSION,
        "accuracy": {**CONFUSION, "schema_type": "accuracy_table"},
        "residuals": {**CONFUSION, "schema_type": "residuals"},
        "predictions": {**CONFUSION, "schema_type": "predictions"},
    }
    assert set(images.values()) == set(run.get_file_names())
    populated = run.get_metrics(populate=True)
    assert populated["picture"] == picture.read_bytes()
    assert all(populated[name].startswith(b"\x89PNG") for name in images)


def test_files_are_stored_and_fetched(run: InteractiveRun, here: Path) -> None:
    (here / "model.pt").write_bytes(b"weights")
    (here / "data" / "deep").mkdir(parents=True)
    (here / "data" / "deep" / "a.txt").write_text("a")
    run.upload_file("outputs/model.pt", "model.pt")
    run.upload_file("stream.bin", io.BytesIO(b"streamed"))
    run.upload_files(["x", "y"], ["model.pt", "notes.py"])
    run.upload_folder("data", "data")
    assert run.get_file_names() == ["data/deep/a.txt", "outputs/model.pt", "stream.bin", "x", "y"]
    run.download_file("stream.bin", "back.bin")
    assert (here / "back.bin").read_bytes() == b"streamed"
    run.download_files("data/", "copy", append_prefix=False, timeout_seconds=10)
    assert (here / "copy" / "deep" / "a.txt").read_text() == "a"
    with pytest.raises(UsageError, match="already has a file 'x'"):
        run.upload_file("x", "notes.py")
    with pytest.raises(UsageError, match="leave out datastore_name"):
        run.upload_file("z", "notes.py", datastore_name="elsewhere")
    with pytest.raises(NotFoundError, match="no file"):
        run.upload_file("z", "nothing")
    with pytest.raises(UsageError, match="relative"):
        run.upload_file("../z", "notes.py")
    run.complete()
    with pytest.raises(UsageError, match="is Completed: files can only be added until a run ends"):
        run.upload_file("z", "notes.py")


def test_new_outputs_are_stored_at_the_end(experiment: Experiment, here: Path) -> None:
    (here / "outputs").mkdir()
    (here / "outputs" / "old.txt").write_text("from before")
    run = experiment.start_logging()
    (here / "outputs" / "new.txt").write_text("new")
    child = run.child_run("part", outputs="own")
    (here / "own").mkdir()
    (here / "own" / "c.txt").write_text("c")
    child.complete()
    run.complete()
    assert run.get_file_names() == ["outputs/new.txt"]
    assert child.get_file_names() == ["outputs/c.txt"]


def test_outputs_folder_exists_for_writing(experiment: Experiment, here: Path) -> None:
    with experiment.start_logging(snapshot_directory=None) as run:
        (here / "outputs" / "model.pkl").write_text("m")
    assert run.get_file_names() == ["outputs/model.pkl"]
    (here / "outputs" / "model.pkl").unlink()
    (here / "outputs").rmdir()
    with experiment.start_logging(snapshot_directory=None):
        assert (here / "outputs").is_dir()
    assert not (here / "outputs").exists()


def test_code_is_stored_with_the_run(experiment: Experiment, here: Path, tmp_path: Path) -> None:
    run = experiment.start_logging(outputs=False)
    with zipfile.ZipFile(run.restore_snapshot(path=tmp_path / "code.zip")) as file:
        assert file.namelist() == ["notes.py"]
    assert run.get_snapshot_id() == run.get_details()["properties"]["ContentSnapshotId"]
    with pytest.raises(UsageError, match="a snapshot is never replaced"):
        run.take_snapshot("notes.py")
    assert run.child_run().get_snapshot_id() == run.get_snapshot_id()
    bare = experiment.start_logging(snapshot_directory=None, outputs=False)
    assert bare.get_snapshot_id() is None
    with pytest.raises(NotFoundError, match="has no snapshot"):
        bare.restore_snapshot()
    assert bare.take_snapshot("notes.py") == run.get_snapshot_id()
    with pytest.raises(UsageError, match="for the snapshot does not exist"):
        experiment.start_logging(snapshot_directory="nothing")
    run.cancel()
    bare.cancel()


def test_model_is_registered_from_a_running_run(run: InteractiveRun, here: Path) -> None:
    run.upload_file("model.pt", "notes.py")
    model = run.register_model("notes-model", "model.pt", tags={"area": "text"})
    assert (model.version, model.run_id) == (1, run.id)
    run.complete()
    assert run.register_model("notes-model", "model.pt").version == 1


def test_children_are_filtered_by_their_properties(run: InteractiveRun) -> None:
    first, second = run.create_children(tag_key="part", tag_values=["a", "b"])
    below = first.child_run("below", run_id="below_1_00000001")
    below.log("x", 1)
    second.complete()
    assert below.id == "below_1_00000001" and below.parent is not None
    assert below.parent.id == first.id
    assert [one.id for one in run.get_children()] == [second.id, first.id]
    assert {one.id for one in run.get_children(recursive=True)} == {first.id, second.id, below.id}
    assert [one.id for one in run.get_children(tags={"part": "a"})] == [first.id]
    assert [one.id for one in run.get_children(tags="part", status="Completed")] == [second.id]
    assert list(run.get_children(properties={"none": "1"})) == []
    assert list(run.get_children(type="hyperdrive")) == []
    assert run.get_metrics(recursive=True)[below.id] == {"x": 1}
    assert run.get_metrics(recursive=True, run_type="hyperdrive") == {}
    numbered = run.create_children(count=2)
    assert [one.tags["azureml.batch_child_number"] for one in numbered] == ["0", "1"]
    wrong_calls: tuple[dict[str, Any], ...] = (
        {},
        {"count": 1, "tag_key": "a"},
        {"tag_key": "a"},
        {"count": 101},
    )
    for wrong in wrong_calls:
        with pytest.raises(UsageError, match="create_children") as here:
            run.create_children(**wrong)
        given = (wrong.get("count"), wrong.get("tag_key"), None)
        with pytest.raises(ValueError, match="create_children") as in_job:
            attempt_runs.children_tags(*given)
        assert str(here.value) == str(in_job.value)


def test_a_job_is_submitted_below_a_run(
    experiment: Experiment, workspace: Workspace, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.submit.submitting.wake_or_start", lambda *_given: False)
    run = experiment.start_logging(outputs=False)
    child = run.submit_child(ScriptRunConfig(str(here), "notes.py"), tags={"why": "test"})
    assert child.parent is not None and child.parent.id == run.id
    assert [one.id for one in run.get_children()] == [child.id]
    assert (child.status, child.tags) == ("Queued", {"why": "test"})
    assert child.get_environment().python.user_managed_dependencies
    child.fail("not wanted")
    assert child.status == "Failed"
    assert child.get_details()["error"]["error"]["message"] == "not wanted"
    assert child.clean() == []
    run.complete()
    with pytest.raises(UsageError, match="cannot be submitted as a child run"):
        run.submit_child(object())
    assert [job.id for job in workspace.store.jobs(JobFilter(states=[JobState.QUEUED]))] == []


def test_description_and_tags_can_be_changed(run: InteractiveRun) -> None:
    run.description = "my notes"
    run.display_name = "second"
    run.tag("done")
    run.tag("lr", 0.5)
    again = Run.get(run.experiment.workspace, run.id)
    assert (again.description, again.name) == ("my notes", "second")
    assert again.tags == {"done": None, "lr": "0.5"}


def test_handle_methods_refuse_or_answer(
    run: InteractiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="is interactive, so it has no environment"):
        run.get_environment()
    with pytest.raises(UsageError, match="is Running; its files are removed"):
        run.clean()
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    assert run.get_secrets(["db-password"]) == {"db-password": "hunter2"}
    with pytest.raises(NotFoundError, match="no secret 'other'"):
        run.get_secret("other")
    with pytest.raises(UsageError, match="compute target of a workspace"):
        list(Run.list_by_compute("local"))


def test_runs_of_a_compute_are_listed_while_they_are_unfinished(run: InteractiveRun) -> None:
    class Target:
        name = "interactive"
        workspace = run.experiment.workspace

    assert [one.id for one in Run.list_by_compute(Target)] == [run.id]
    assert list(Run.list_by_compute(Target, status="Queued")) == []
    run.complete()
    assert list(Run.list_by_compute(Target)) == []


def test_a_factory_makes_the_handles_of_its_type(
    run: InteractiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(InteractiveRun):
        pass

    def make(experiment: Experiment, dto: RunDto) -> Mine:
        assert (dto.run_type, dto.status) == ("azureml.interactive", "Running")
        return Mine(experiment, dto.run_id)

    monkeypatch.setattr("rayjobs.api.kinds._factories", dict[str, Any](_factories))
    Run.add_type_provider("azureml.interactive", make)
    assert isinstance(Run.get(run.experiment.workspace, run.id), Mine)
    with pytest.raises(ValueError, match="already has a run factory"):
        Run.add_type_provider("azureml.interactive", make)


def test_two_writers_at_the_same_nanosecond_lose_nothing(
    run: InteractiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.results.run_metrics.time.time_ns", lambda: 5)
    for value in range(3):
        run.log("x", value)
    assert run.get_metrics() == {"x": [0, 1, 2]}


def test_no_file_is_left_in_the_project(run: InteractiveRun, here: Path) -> None:
    run.log("x", 1)
    run.complete()
    assert os.listdir(here) == ["notes.py"]
