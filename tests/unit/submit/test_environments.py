"""Environments that are built on this machine without a job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.submit.environments import key_here, working


def test_builds_use_the_scratch_folder_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    with working() as (_environments, work):
        assert work.paths.root.parent == tmp_path / "fast"


def test_a_folder_of_environments_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    asked = {"pip": ["tiny-tool"]}
    assert key_here(asked) is None
    environments = tmp_path / "fast" / "environments"
    for damaged in (environments / "requests", environments, tmp_path / "fast"):
        shutil.rmtree(damaged)
        damaged.symlink_to(damaged.name)  # also root cannot read a link to itself
        with pytest.raises(PrepareError) as caught:
            key_here(asked)
        assert f"the environments in {environments} cannot be used: " in caught.value.message
        assert f"({damaged}" in caught.value.message
        assert "name another folder with RAYJOBS_SCRATCH" in caught.value.message
        damaged.unlink()
