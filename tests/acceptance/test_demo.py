"""``make demo`` with fewer trials: each of its steps works, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
DEADLINE_S = 500.0  # it takes half a minute on a quiet machine


def test_demo_runs_all_its_steps(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAYJOBS_")
    }
    demo = subprocess.run(
        [sys.executable, DEMO, "--epochs", "3", "--trials", "3", "--output", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=environment,
    )
    output = demo.stdout
    assert demo.returncode == 0, output[-3000:] + demo.stderr[-3000:]
    assert "Traceback" not in demo.stderr
    for step in (
        "# 1. Data: 5,000 real handwritten digits",
        "(the script was just ended by kill -9",
        "resumed after epoch",
        "accuracy on 1,000 digits it has not seen: 0.9",
        "best so far: trial",
        "digits:1",
    ):
        assert step in output, output[-3000:]
    results = tmp_path / "out"
    assert (results / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert list(results.glob("digits-*.html"))
    assert len(list(results.glob("digits-*.png"))) == 3
    assert any(path.is_file() for path in (results / "champion").rglob("*"))
    assert "lineage" in output
    environment["RAYJOBS_WORKSPACE"] = str(results / "workspace")
    listed = subprocess.run(
        [Path(sys.executable).with_name("rayjobs"), "sweep", "ls", "--json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        env=environment,
    )
    [sweep] = json.loads(listed.stdout)
    assert (sweep["state"], sweep["ended"], sweep["total"]) == ("Completed", 3, 3)
