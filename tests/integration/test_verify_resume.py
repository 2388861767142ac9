"""verify-resume on real Ray: the shipped example resumes exactly, a broken one is detected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.main import run
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray

EXAMPLE = Path(__file__).parents[2] / "examples/resume/train.py"
STEPS = ("--steps", "40", "--step-s", "0.04")


def verified(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    code = run(["verify-resume", "--seed", "5", "--json", str(EXAMPLE), "--", *STEPS, *more])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def test_the_example_resumes_exactly(
    local_target: LocalTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    code, verdict, stderr = verified(capsys)
    assert verdict["problems"] == []
    assert (code, verdict["same"], verdict["checkpoint_step"]) == (0, True, 40)
    kills = verdict["kills"]
    assert isinstance(kills, list)
    assert [kill["attempt"] for kill in kills] == [1, 2]
    assert "killed rank 0 of attempt 1 after step" in stderr
    (curve,) = verdict["metrics"]
    assert (curve["points"], curve["missing"], curve["doubled"]) == (40, [], [])


def test_missing_optimizer_state_is_detected(
    local_target: LocalTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    code, verdict, _ = verified(capsys, "--leave-out", "optimizer")
    assert (code, verdict["same"]) == (1, False)
    (curve,) = verdict["metrics"]
    # The first steps match the undisturbed run: no rank was killed before a checkpoint.
    assert 5 < curve["first_step"] <= 40
    (file,) = verdict["files"]
    assert "model.0.weight" in {one["name"] for one in file["largest"]}
    assert "optimizer.state.0.exp_avg" in {one["name"] for one in file["largest"]}
