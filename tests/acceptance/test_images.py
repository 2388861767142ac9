"""Image classifiers from the command line and a pipeline file, by real jobs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.local_target import LocalTarget
from tests.terminal import DEADLINE_S, PROGRAM
from tests.unit.images.conftest import save_images

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

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
    save_images(tmp_path / "train", 6, seed=1)
    save_images(tmp_path / "val", 3, seed=2)
    parameters = ["--epochs", "1", "--batch-size", "4", "--image-size", "32", "--threads", "1"]
    job = rayjobs(
        *["images", "train", "--train", "train", "--validation", "val", "--register", "colors"],
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
