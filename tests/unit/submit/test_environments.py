"""Environments that are built on this machine without a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.submit.environments import working


def test_builds_use_the_scratch_folder_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    with working() as (_environments, work):
        assert work.paths.root.parent == tmp_path / "fast"
