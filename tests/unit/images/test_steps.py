"""The steps of pipelines, and the commands that submit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.api.workspace import Workspace
from rayjobs.cli.main import main
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.datastore import DataReference, Datastore
from rayjobs.images import (
    ConvertToImageDirectory,
    PyTorchModel,
    ScoreImageModel,
    TrainPytorchModel,
    training_config,
)
from rayjobs.images.jobs import COMPONENT
from rayjobs.pipelines import Pipeline, PipelineData
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.spec import PipelineError
from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.sweep_file import load_sweep


@pytest.fixture
def ws(tmp_path: Path, own_home: Path) -> Iterator[Workspace]:
    workspace = Workspace.create("ws", path=str(tmp_path / "ws"))
    yield workspace
    workspace.close()


def test_convert_train_and_score_are_a_pipeline(ws: Workspace) -> None:
    raw = DataReference(Datastore(ws), "raw", "photos")
    train, validation = PipelineData("train"), PipelineData("validation")
    untrained, model, scores = (PipelineData(name) for name in ("untrained", "model", "scores"))
    steps = [
        ConvertToImageDirectory(raw, train, validation, compute_target="local"),
        PyTorchModel("resnet18", untrained, compute_target="local"),
        TrainPytorchModel(
            untrained,
            train,
            validation,
            model,
            parameters={"epochs": 2},
            settings={"image_size": 32},
            compute_target="local",
        ),
        ScoreImageModel(model, validation, scores, compute_target="local"),
    ]
    spec = Pipeline(ws, steps).to_spec()
    assert set(spec.steps) == {"convert", "untrained", "train", "score"}
    job = spec.steps["train"].job
    assert job["source_directory"] == str(COMPONENT)
    words = list(job["arguments"])
    assert words[words.index("--epochs") + 1] == "2"
    assert {one["source"] for one in job["inputs"].values()} == {
        "step:untrained/untrained",
        "step:convert/train",
        "step:convert/validation",
    }


def test_step_refuses_the_same_as_the_job(ws: Workspace) -> None:
    out = PipelineData("out")
    with pytest.raises(UsageError, match="vgg16"):
        PyTorchModel("vgg16", out, compute_target="local")
    with pytest.raises(SpecError, match="1 problem"):
        TrainPytorchModel("resnet18", "a", "b", out, parameters={"epochs": 0})
    with pytest.raises(UsageError, match="output is a str"):
        ScoreImageModel("a", "b", "c")


def test_a_pipeline_file_names_the_component(tmp_path: Path) -> None:
    step = {"component": "images", "script": "train.py"}
    spec = pipeline_of({"steps": {"train": step}}, folder=tmp_path)
    assert spec.steps["train"].job["source_directory"] == str(COMPONENT)
    with pytest.raises(PipelineError) as found:
        pipeline_of({"steps": {"train": {**step, "component": "texts"}}}, folder=tmp_path)
    assert "Use: images." in str(found.value.problems[0])


@pytest.mark.long
def test_train_submits_the_component_with_its_inputs(own_home: Path, data: Path) -> None:
    folders = ["--train", str(data / "train"), "--validation", str(data / "val")]
    words = ["images", "train", *folders, "--epochs", "3", "--procs-per-node", "2"]
    done = CliRunner().invoke(main, [*words, "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    spec = json.loads(done.stdout)["spec"]
    assert spec["distribution"]["backend"] == "gloo"
    assert set(spec["inputs"]) == {"train", "validation"}
    assert spec["arguments"][:2] == ["--epochs", "3"]


@pytest.mark.long
def test_convert_can_be_submitted(own_home: Path, data: Path) -> None:
    words = ["images", "convert", str(data / "train"), "--submit", "--validation-share", "0.3"]
    done = CliRunner().invoke(main, [*words, "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    spec = json.loads(done.stdout)["spec"]
    assert (spec["name"], spec["script"]) == ("images-convert", "convert.py")
    assert set(spec["inputs"]) == {"data"}
    assert set(spec["outputs"]) == {"train", "validation"}
    done = CliRunner().invoke(main, [*words, "workspaceblobstore/made", "--dry-run", "--json"])
    assert (
        json.loads(done.stdout)["spec"]["outputs"]["train"]["destination"]
        == "workspaceblobstore/made/train"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["out", "--nodes", "2"], "--nodes is for a job; also give --submit"),
        ([], "name the FOLDER of the images"),
        (["out", "--validation-share", "1.5"], "must be between 0 and 1"),
        (["/abs", "--submit"], "is not a DATASTORE/PATH"),
    ],
)
def test_convert_reports_problems(words: list[str], text: str, data: Path) -> None:
    done = CliRunner().invoke(main, ["images", "convert", str(data / "train"), *words])
    assert done.exit_code != 0
    assert text in done.output + str(done.exception)


def test_a_sweep_file_names_the_component(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    text = "job: {component: %s, script: train.py}\nmetric: top1\ngoal: maximize\n"
    text += "limits: {total: 2, concurrent: 1}\n"
    text += "sampling: {type: grid, parameters: {--epochs: {choice: [1, 2]}}}\n"
    file.write_text(text % "images")
    assert load_sweep(file).job["source_directory"] == str(COMPONENT)
    file.write_text(text % "texts")
    with pytest.raises(SweepError) as found:
        load_sweep(file)
    assert "Use: images." in str(found.value.problems[0])


def test_a_training_is_a_run_configuration() -> None:
    config = training_config("a", "b", parameters={"epochs": 2}, settings={"image_size": 32})
    assert config.source_directory == str(COMPONENT)
    assert "--image-size" in config.arguments
    with pytest.raises(SpecError):
        training_config("a", "b", parameters={"epochs": 0})
    with pytest.raises(UsageError, match="'epoch' is not one of the parameters"):
        training_config("a", "b", parameters={"epoch": 1})


@pytest.mark.long
def test_train_reports_problems(own_home: Path, data: Path) -> None:
    folders = ["--train", str(data / "train"), "--validation", str(data / "val")]
    for words, text in (
        (["--epochs", "0"], "epochs is '0'; it must be a whole number, 1 or more"),
        (["--model", "vgg16"], "'vgg16' is not a network"),
        (["--backend", "nccl", "--procs-per-node", "2"], "nccl works between GPUs"),
        (["--train", "nowhere"], "there is no folder 'nowhere'"),
        (["--train", str(data / "train" / "red")], "NotLabeledDatasetError: "),
        (["--validation", str(data)], "InvalidDatasetError: the categories of training"),
    ):
        done = CliRunner().invoke(main, ["images", "train", *folders, *words, "--dry-run"])
        assert done.exit_code != 0
        shown = " ".join((done.output + str(done.exception)).split())
        assert text in shown + " ".join(str(one) for one in getattr(done.exception, "problems", ()))


def test_a_misspelt_folder_of_images_is_named_before_anything_is_stored(tmp_path: Path) -> None:
    from rayjobs.core.errors import NotFoundError
    from rayjobs.images.sources import source_of
    from rayjobs.workspace.folder import open_workspace

    (tmp_path / "data" / "train").mkdir(parents=True)
    messages: list[str] = []
    with open_workspace(tmp_path / "w") as workspace:
        with pytest.raises(
            NotFoundError, match=r"trian'.*Did you mean '.*data/train'.*workspaceblob"
        ):
            source_of(workspace, str(tmp_path / "data" / "trian"), messages.append)
        assert (
            source_of(workspace, "workspaceblobstore/x", messages.append) == "workspaceblobstore/x"
        )
    assert messages == []
