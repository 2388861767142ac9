"""Environments in Azure ML v1's terms become what a spec says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import (
    CondaDependencies,
    Environment,
    Estimator,
    PyTorch,
    RunConfiguration,
    ScriptRunConfig,
)
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.spec.model import Packages


def environment_of(environment: Environment | None) -> object:
    return ScriptRunConfig("src", "a.py", environment=environment).to_spec().environment


def test_an_environment_of_a_requirements_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy\nscipy>=1\n")
    made = Environment.from_pip_requirements("mine", tmp_path / "r.txt")
    made.environment_variables = {"A": "environment", "B": "2"}
    config = ScriptRunConfig("src", "a.py", environment=made)
    config.run_config.environment_variables = {"A": "run"}
    spec = config.to_spec()
    assert spec.environment == Packages(name="mine", pip=("numpy", "scipy>=1"))
    assert dict(spec.environment_variables) == {"A": "run", "B": "2"}
    assert spec.environment_text == "mine: numpy, scipy>=1"


def test_an_environment_of_a_conda_specification(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text("dependencies:\n- python=3.9\n- pip:\n  - torch\n")
    made = Environment.from_conda_specification("mine", tmp_path / "c.yml")
    assert environment_of(made) == Packages(name="mine", pip=("torch",), python="3.9")
    clone = made.clone("other")
    assert clone.python.conda_dependencies is not None
    clone.python.conda_dependencies.add_pip_package("scipy")
    assert environment_of(clone) == Packages(name="other", pip=("torch", "scipy"), python="3.9")
    assert environment_of(made) == Packages(name="mine", pip=("torch",), python="3.9")


def test_dependencies_are_edited_and_written(tmp_path: Path) -> None:
    made = CondaDependencies.create(
        pip_packages=["torch==1.4", "Scikit_Learn"], python_version="3.8"
    )
    made.add_pip_package("torch==1.6")
    made.remove_pip_package("scikit-learn")
    made.add_conda_package("python=3.9")
    made.set_pip_option("--no-index")
    made.add_channel("conda-forge")
    assert made.pip_packages == ["torch==1.6"]
    assert (made.python_version, made.pip_options) == ("3.9", ["--no-index"])
    made.save_to_file(tmp_path, "c.yml")
    again = CondaDependencies(tmp_path / "c.yml")
    assert again.pip_packages == ["torch==1.6"]
    assert again.python_version == "3.9"
    settings = RunConfiguration("a.py", conda_dependencies=made)
    spec = ScriptRunConfig("src", run_config=settings).to_spec()
    assert spec.environment == Packages(
        name="conda_dependencies", pip=("--no-index", "torch==1.6"), python="3.9"
    )


def test_what_only_conda_or_a_container_could_give_is_refused() -> None:
    made = Environment("mine")
    made.python.conda_dependencies = CondaDependencies.create(conda_packages=["cudatoolkit"])
    with pytest.raises(SpecError, match="asks conda for cudatoolkit"):
        environment_of(made)
    made.python.conda_dependencies.remove_conda_package("cudatoolkit")
    assert environment_of(made) == Packages(name="mine")
    made.docker.base_image = "mcr/openmpi"
    with pytest.raises(SpecError, match="without containers"):
        environment_of(made)
    with pytest.raises(UsageError, match="interpreter_path"):
        Environment.from_existing_conda_environment("mine", "base")
    with pytest.raises(UsageError, match="name"):
        Environment("")


def test_an_interpreter_that_the_user_manages() -> None:
    made = Environment("mine")
    assert environment_of(made) is None
    made.python.user_managed_dependencies = True
    assert environment_of(made) is None
    made.python.interpreter_path = "/opt/venv/bin/python"
    assert environment_of(made) == "/opt/venv/bin/python"


def test_packages_of_estimators(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy\n")
    (tmp_path / "c.yml").write_text("dependencies: [python=3.9, {pip: [scipy]}]\n")
    common = {"compute_target": "local", "entry_script": "a.py"}
    both = PyTorch(
        "src",
        **common,
        pip_packages=["tqdm"],
        pip_requirements_file=str(tmp_path / "r.txt"),
        conda_packages=["python=3.10"],
    )
    assert both.to_script_run_config().to_spec().environment == Packages(
        name="estimator", pip=("numpy", "tqdm"), python="3.10"
    )
    other = Estimator("src", **common, conda_dependencies_file_path=str(tmp_path / "c.yml"))
    assert other.to_script_run_config().to_spec().environment == Packages(
        name="estimator", pip=("scipy",), python="3.9"
    )
    defined = PyTorch("src", **common, environment_definition=Environment("own"))
    assert defined.to_script_run_config().to_spec().environment is None
