"""`rayjobs images score`: the record of model and code in its job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError
from rayjobs.images import configs
from rayjobs.images.sources import registered_model
from rayjobs.models import registry
from tests.unit.cli.conftest import Queue, Terminal, queue, terminal
from tests.unit.cli.fake_target import target

__all__ = ["queue", "terminal"]

ANSWER = {"ok": True, "served": True}


def test_a_folder_of_images_does_not_hide_the_model_of_its_name(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shapes/circle/a.png", "model/model.json", "others/a.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    registry.register_path(queue.workspace, name="shapes", path=tmp_path / "model")
    found = registered_model(queue.workspace, "shapes")
    assert found is not None
    assert found.name == "shapes"
    assert registered_model(queue.workspace, "model") is None  # a folder of this name is a model
    assert registered_model(queue.workspace, "others") is None  # no model of this name
    with pytest.raises(NotFoundError):
        registered_model(queue.workspace, "missing")


def test_a_folder_that_is_not_a_model_is_refused_at_the_submit(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(b"x")
    done = terminal.type("images", "score", "--model", "new", "--data", "new", "-d")
    assert done.code == 2
    assert "InvalidModelDirectoryError: new is not a trained model" in done.err


def test_weights_next_to_an_untrained_model_are_refused(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine/untrained_model.json", "data/circle/a.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"{}")
    places = ("--train", "data", "--validation", "data", "--model", "mine", "--weights", "w.pt")
    done = terminal.type("images", "train", *places, "-d")
    assert done.code == 2
    assert "the untrained model 'mine' names its own weights" in done.err
    component = Path(configs.__file__).parent / "component"
    script = subprocess.run(
        [sys.executable, str(component / "train.py"), *places],
        env={**os.environ, "PYTHONPATH": str(component)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ParameterOutOfRangeError: weights is 'w.pt'" in script.stderr


@pytest.mark.long
def test_score_names_its_model_and_no_internal_repository(
    queue: Queue,
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model/model.json", "model/weights.pt", "new/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    registry.register_path(queue.workspace, name="shapes", path=tmp_path / "model")
    with target(ANSWER):
        jobs = []
        for _ in range(2):
            done = terminal.type("images", "score", "--model", "shapes", "--data", "new", "-d")
            assert done.code == 0, done.err
            jobs.append(queue.workspace.store.job(done.out.strip()))
    assert "shapes:1: 2 files in workspaceblobstore/images/" in done.err
    first, second = jobs
    assert first.tags == {"model": "shapes:1"}
    assert not any(name.startswith("azureml.git") for name in first.properties)
    # The model is stored once, whenever it is fetched.
    assert first.spec.inputs["model"].source == second.spec.inputs["model"].source
