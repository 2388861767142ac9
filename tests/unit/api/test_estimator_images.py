"""The image of an estimator in the spec of a job."""

from __future__ import annotations

from pathlib import Path

from rayjobs import PyTorch
from rayjobs.submit.checks import check


def test_estimator_with_its_own_image_runs_in_the_unchanged_image(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    estimator = PyTorch(
        str(tmp_path),
        compute_target="local",
        entry_script="train.py",
        custom_docker_image="registry.example/train:1",
        shm_size="1g",
    )
    spec = estimator.to_script_run_config().to_spec()
    assert spec.environment is None
    assert spec.container is not None
    assert (spec.container.image, spec.container.shm_mib) == ("registry.example/train:1", 1024.0)
    assert check(spec) == []
