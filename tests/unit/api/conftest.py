"""The environment of a job as a rank sees it, and a workspace without a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayjobs.injob import run as injob_run


@dataclass(frozen=True)
class InJob:
    """The folder of an attempt whose variables are set."""

    root: Path

    @property
    def metrics_file(self) -> Path:
        return self.root / "metrics" / "rank-0.jsonl"

    @property
    def outputs(self) -> Path:
        return self.root / "work" / "outputs"


@pytest.fixture
def in_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InJob]:
    """Variables and folders of attempt 1 of a job."""
    root = tmp_path / "attempt"
    for folder in ("metrics", "work/outputs", "tmp"):
        (root / folder).mkdir(parents=True)
    for name, value in {
        "RAYJOBS_RUN_ID": "mnist_1_0a1b2c3d",
        "RAYJOBS_ATTEMPT": "1",
        "RAYJOBS_ATTEMPT_DIR": str(root),
        "RAYJOBS_METRICS_DIR": str(root / "metrics"),
        "RAYJOBS_OUTPUTS": str(root / "work" / "outputs"),
        "RAYJOBS_EXPERIMENT": "mnist",
        "RAYJOBS_WORKSPACE_NAME": "team",
    }.items():
        monkeypatch.setenv(name, value)
    injob_run._contexts.clear()
    yield InJob(root)
    injob_run._contexts.clear()
