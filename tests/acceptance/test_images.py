"""Image classifiers from the command line and a pipeline file, by real jobs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rayjobs import (
    Experiment,
    GridParameterSampling,
    HyperDriveConfig,
    Pipeline,
    PipelineData,
    PrimaryMetricGoal,
    Workspace,
    choice,
)
from rayjobs.datastore import Datastore
from rayjobs.images import (
    ConvertToImageDirectory,
    PyTorchModel,
    ScoreImageModel,
    TrainPytorchModel,
    training_config,
)
from rayjobs.workspace.folder import locate
from tests.support.local_target import LocalTarget
from tests.support.terminal import DEADLINE_S, PROGRAM
from tests.unit.images.conftest import save_images

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINE = """
name: colors
steps:
  convert:
    component: images
    script: convert.py
    arguments: [--data, $AZUREML_DATAREFERENCE_raw, --output, $AZUREML_DATAREFERENCE_train,
      --validation-output, $AZUREML_DATAREFERENCE_validation]
    inputs: {raw: workspaceblobstore/raw}
    outputs: {train: {}, validation: {}}
  train:
    component: images
    script: train.py
    arguments: [--train, $AZUREML_DATAREFERENCE_train,
      --validation, $AZUREML_DATAREFERENCE_validation, --output, $AZUREML_DATAREFERENCE_model,
      --epochs, "1", --image-size, "32", --learning-rate, "0.01", --threads, "1"]
    inputs: {train: step:convert/train, validation: step:convert/validation}
    outputs: {model: {}}
  score:
    component: images
    script: score.py
    arguments: [--model, $AZUREML_DATAREFERENCE_model, --data, $AZUREML_DATAREFERENCE_images,
      --output, $AZUREML_DATAREFERENCE_scores]
    inputs: {model: step:train/model, images: step:convert/validation}
    outputs: {scores: {destination: workspaceblobstore/scores}}
"""


def rayjobs(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def test_two_ranks_train_a_model_that_is_registered_and_scores(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_images(tmp_path / "raw", 9, seed=1)
    save_images(tmp_path / "val", 3, seed=2)
    source = shutil.make_archive(str(tmp_path / "raw"), "zip", tmp_path / "raw")
    convert = ["images", "convert", source, "--submit", "--validation-share", "0.3", "-q"]
    converted = rayjobs(*convert).stdout.strip()
    rayjobs("wait", converted)
    folders = [f"--train=output:{converted}/train", f"--validation=output:{converted}/validation"]
    parameters = ["--epochs", "1", "--batch-size", "4", "--image-size", "32", "--threads", "1"]
    job = rayjobs(
        *["images", "train", *folders, "--register", "colors"],
        *["--procs-per-node", "2", *parameters, "-q"],
    ).stdout.strip()
    rayjobs("wait", job)
    assert "epoch 1/1 validation loss" in rayjobs("logs", job).stdout
    names = json.loads(rayjobs("metrics", job, "--json").stdout)
    for name in ("images_per_s", "top1", "top5", "val_loss", "learning_rate", "data_wait_share"):
        assert name in json.dumps(names)
    files = rayjobs("files", job).stdout
    assert "images/confusion_matrix.png" in files
    assert "model/model.json" in files

    scored = rayjobs("images", "score", "--model", "colors", "--data", "val", "-q").stdout.strip()
    rayjobs("wait", scored)
    rayjobs("download", scored, "-o", "got")
    (table,) = (tmp_path / "got").rglob("scores.parquet")
    assert len(pq.read_table(table)) == 9


def test_a_pipeline_file_converts_trains_and_scores(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_images(tmp_path / "raw", 6, seed=1)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    rayjobs("data", "put", "raw", "workspaceblobstore/raw")
    run = rayjobs("pipeline", "run", "-f", "pipeline.yaml", "-q").stdout.strip()
    rayjobs("wait", run)
    rayjobs("data", "get", "workspaceblobstore/scores", "got")
    (table,) = (tmp_path / "got").rglob("scores.parquet")
    assert len(pq.read_table(table)) == 3


def test_the_example_learns_digits_and_compares_with_a_linear_model(
    local_target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "images" / "quality.py", "digits", "--quick"],
        capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.search(r"digits: component (0\.\d+), linear (0\.\d+)", done.stdout)
    assert found is not None, done.stdout
    component, linear = map(float, found.groups())
    assert component > 0.5  # of ten digits, after four epochs of 288 images
    assert linear > 0.8


SWEEP = """
name: colors
job:
  component: images
  script: train.py
  arguments: [--train, $AZUREML_DATAREFERENCE_train,
    --validation, $AZUREML_DATAREFERENCE_validation,
    --epochs, "1", --image-size, "32", --threads, "1"]
  inputs: {train: workspaceblobstore/train, validation: workspaceblobstore/val}
sampling: {type: grid, parameters: {--learning-rate: {choice: [0.0001, 0.01]}}}
metric: top1
goal: maximize
limits: {total: 2, concurrent: 2}
register_as: colors
"""


def test_trainings_are_the_trials_of_a_sweep_from_a_file_and_from_python(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_images(tmp_path / "train", 6, seed=1)
    save_images(tmp_path / "val", 3, seed=2)
    for name in ("train", "val"):
        rayjobs("data", "put", name, f"workspaceblobstore/{name}")
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    sweep = rayjobs("sweep", "create", "-f", "sweep.yaml", "-q").stdout.strip()
    ws = Workspace(path=locate())
    store = Datastore.get(ws, "workspaceblobstore")
    config = HyperDriveConfig(
        run_config=training_config(
            store.path("train").as_mount(),
            store.path("val").as_mount(),
            parameters={"epochs": 1},
            settings={"image_size": 32, "threads": 1},
            compute_target="local",
        ),
        hyperparameter_sampling=GridParameterSampling({"--batch-size": choice(4, 8)}),
        primary_metric_name="top1",
        primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
        max_total_runs=2,
        max_concurrent_runs=2,
    )
    run = Experiment(ws, "colors").submit(config)
    rayjobs("wait", sweep)
    assert "model.json" in rayjobs("model", "show", "colors", "--json").stdout
    scored = rayjobs("images", "score", "--model", "colors", "--data", "val", "-q").stdout.strip()
    run.wait_for_completion()
    best = run.get_best_run_by_primary_metric()
    assert best is not None
    assert "top5" in best.get_metrics()
    rayjobs("wait", scored)


def test_a_pipeline_from_python_converts_trains_and_scores(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    save_images(tmp_path / "raw", 6, seed=1)
    rayjobs("data", "put", "raw", "workspaceblobstore/raw")
    ws = Workspace(path=locate())
    store = Datastore.get(ws, "workspaceblobstore")
    train, validation = PipelineData("train"), PipelineData("validation")
    model, scores = PipelineData("model"), PipelineData("scores")
    untrained = PipelineData("untrained")
    where = {"compute_target": "local"}
    steps = [
        ConvertToImageDirectory(store.path("raw").as_mount(), train, validation, **where),
        PyTorchModel("resnet18", untrained, **where),
        TrainPytorchModel(
            untrained,
            train,
            validation,
            model,
            parameters={"epochs": 1},
            settings={"image_size": 32, "threads": 1},
            **where,
        ),
        ScoreImageModel(model, validation, scores, table_format="csv", **where),
    ]
    run = Pipeline(ws, steps).submit("colors")
    assert run.wait_for_completion() == "Finished"
    (score,) = run.find_step_run("score")
    score.get_output_data("scores").download(str(tmp_path / "got"))
    (table,) = (tmp_path / "got").rglob("scores.csv")
    assert len(table.read_text().splitlines()) == 4
