"""MPI and Horovod jobs are refused if software is missing, with a remedy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import Problem
from rayjobs.environments import mpi_checks
from rayjobs.environments.horovod import builds
from rayjobs.launch import openmpi
from rayjobs.spec.model import JobSpec


def check(
    source: Path,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has: builds.Build | None,
    mpi: str = "",
    is_here: bool = True,
    **more: object,
) -> list[Problem]:
    """Check a job of two ranks on a machine that has this Horovod and this Open MPI."""
    monkeypatch.setattr(openmpi, "problem", lambda _path: mpi)
    monkeypatch.setattr(builds, "of_interpreter", lambda _python: has)
    (source / "train.py").write_text(text)
    shape = {"processes_per_node": 2, "backend": "mpi"}
    spec = JobSpec.model_validate({"script": "train.py", "distribution": shape, **more})
    return mpi_checks.check(spec, source=source, is_here=is_here)


CPU = builds.Build(Path("lib.so"), has_gpu_operations=False)
GPU = builds.Build(Path("lib.so"), has_gpu_operations=True)
SCRIPT = "import torch\nimport horovod.torch as hvd\n"
GPUS = {"gpus": 1.0}


@pytest.mark.parametrize(
    ("text", "has", "more", "word"),
    [
        (SCRIPT, CPU, {}, None),
        (SCRIPT, None, {}, "horovod install"),
        (SCRIPT, CPU, {"resources": GPUS}, "Build it with them where"),
        (SCRIPT, GPU, {"resources": GPUS}, None),
        ("print('plain MPI')", CPU, {"resources": GPUS}, None),
        ("# import horovod", None, {}, None),
        (
            SCRIPT,
            CPU,
            {"resources": GPUS, "environment_variables": {"HOROVOD_CPU_OPERATIONS": "MPI"}},
            None,
        ),
    ],
)
def test_horovod_must_be_installed_with_the_needed_features(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    has: builds.Build | None,
    more: dict[str, Any],
    word: str | None,
) -> None:
    problems = check(tmp_path, text, monkeypatch, has=has, **more)
    assert len(problems) == (word is not None)
    if word is not None:
        assert word in problems[0].remedy and problems[0].path == "distribution.backend"
    # Nothing is known about another machine here.
    assert check(tmp_path, text, monkeypatch, has=has, is_here=False, **more) == []


def test_open_mpi_must_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = check(tmp_path, "", monkeypatch, has=None, mpi="Open MPI is not installed")
    assert "not installed on this machine" in problem.message
    assert "apt-get install openmpi-bin" in problem.remedy


def test_another_mpi_and_another_version_are_named(tmp_path: Path) -> None:
    assert "no mpirun and no orted in PATH" in openmpi.problem(str(tmp_path))
    for number, version in enumerate(("mpirun (Open MPI) 5.0.7", "HYDRA build details")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("mpirun", "orted"):
            (folder / name).write_text(f"#!/bin/sh\necho '{version}'\n")
            (folder / name).chmod(0o755)
    assert "has version 5.0.7" in openmpi.problem(str(tmp_path / "0"))
    assert "is not Open MPI's" in openmpi.problem(str(tmp_path / "1"))


def test_version_check_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mpirun", "orted"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
        (tmp_path / name).chmod(0o755)

    def hangs(*command: object, **_: object) -> None:
        raise subprocess.TimeoutExpired("mpirun", 30.0)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", hangs)
        assert "mpirun --version` failed: " in openmpi.problem(str(tmp_path))
    assert openmpi.problem(str(tmp_path)) == ""
