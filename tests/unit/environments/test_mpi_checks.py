"""Scripts that use Horovod, and the message if the target has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.environments import mpi_checks
from rayjobs.environments.horovod import builds
from rayjobs.launch import openmpi
from rayjobs.spec.model import JobSpec


@pytest.mark.parametrize(
    ("text", "is_used"),
    [
        ("import horovod.torch as hvd", True),
        ("    from horovod import torch", True),
        ("import torch, horovod.torch as hvd", True),
        ("import torch as t, numpy, horovod", True),
        ("import torch  # not horovod", False),
        ("import horovodlike", False),
        ("important = horovod", False),
    ],
)
def test_script_that_imports_horovod_is_detected(tmp_path: Path, text: str, is_used: bool) -> None:
    (script := tmp_path / "train.py").write_text(f"import os\n{text}\n")
    assert mpi_checks.names_horovod(script) is is_used


@pytest.mark.parametrize(
    ("environment", "is_refused"),
    [(None, True), ({"base": "target", "pip": ["tqdm"]}, True), ({"pip": ["tqdm"]}, False)],
)
def test_packages_added_to_those_of_the_target_do_not_provide_horovod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: object, is_refused: bool
) -> None:
    monkeypatch.setattr(builds, "of_interpreter", lambda _: None)
    monkeypatch.setattr(openmpi, "problem", lambda _: "")
    (tmp_path / "train.py").write_text("import torch, horovod.torch as hvd\n")
    values = {"script": "train.py", "environment": environment}
    spec = JobSpec.model_validate({**values, "distribution": {"backend": "mpi"}})
    problems = mpi_checks.check(spec, source=tmp_path, is_here=True)
    assert ["horovod install" in str(one) for one in problems] == [True] * is_refused
