"""The example of the guide: its file and its program, on a real target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray
EXAMPLE = Path(__file__).parents[2] / "examples/pipeline"


def test_the_file_and_the_program_make_the_same_model(
    local_target: LocalTarget, tmp_path: Path
) -> None:
    def rayjobs(*words: str) -> str:
        return ran("-m", "rayjobs", *words).stdout

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    file = str(EXAMPLE / "pipeline.yaml")
    lines = rayjobs("pipeline", "run", "-f", file, "-p", "epochs=5", "--attach").splitlines()
    assert any(one.startswith("train: Completed") for one in lines), lines
    assert "[train] epoch 4: loss" in rayjobs("logs", "line")
    rayjobs("data", "get", "output:line/train/model", "got")
    model = json.loads((tmp_path / "got/line.json").read_text())
    assert model["slope"] > 1
    ran(str(EXAMPLE / "pipeline.py"))
    (found,) = (tmp_path / "here").rglob("line.json")
    assert json.loads(found.read_text()) == model
