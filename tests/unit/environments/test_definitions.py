"""Environments in Azure ML v1's terms become fields of a spec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def test_packages_of_conda_and_their_channels() -> None:
    made = Environment("mine")
    made.python.conda_dependencies = CondaDependencies.create(conda_packages=["cudatoolkit"])
    made.python.conda_dependencies.add_channel("conda-forge")
    assert environment_of(made) == Packages(
        name="mine", conda=("cudatoolkit",), channels=("conda-forge",)
    )
    made.python.conda_dependencies.remove_conda_package("cudatoolkit")
    assert environment_of(made) is None


def test_a_name_is_needed() -> None:
    with pytest.raises(UsageError, match="name"):
        Environment("")
    with pytest.raises(UsageError, match="AzureML are reserved for Azure ML"):
        Environment("mine").clone("AzureML-mine")
    with pytest.raises(UsageError, match="has no dokcer"):
        Environment("mine", dokcer=None)


def test_a_conda_environment_of_this_machine_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert Environment.from_existing_conda_environment("mine", "vision") is None
    python = tmp_path / "envs" / "vision" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    made = Environment.from_existing_conda_environment("mine", "vision")
    assert environment_of(made) == str(python)


def test_all_sections_exist() -> None:
    settings = RunConfiguration()
    settings.environment.docker.enabled = True
    settings.environment.docker.shm_size = "1g"
    settings.environment.python.user_managed_dependencies = False
    settings.environment.python.conda_dependencies.add_pip_package("scipy")
    settings.environment.docker.base_image_registry.address = "registry.example"
    settings.environment.spark.packages.append("x")
    spec = ScriptRunConfig("src", "a.py", run_config=settings).to_spec()
    assert spec.environment == Packages(name="project", pip=("scipy",))


def test_an_interpreter_that_the_user_manages() -> None:
    made = Environment("mine")
    assert environment_of(made) is None
    made.python.user_managed_dependencies = True
    assert environment_of(made) is None
    made.python.interpreter_path = "/opt/venv/bin/python"
    assert environment_of(made) == "/opt/venv/bin/python"


COMMON: dict[str, Any] = {"compute_target": "local", "entry_script": "a.py"}


def test_packages_of_estimators_are_added_to_the_framework(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy\n")
    (tmp_path / "c.yml").write_text("dependencies: [python=3.9, {pip: [scipy]}]\n")
    # Files are relative to the source directory.
    both = PyTorch(
        tmp_path,
        **COMMON,
        pip_packages=["tqdm"],
        pip_requirements_file="r.txt",
        conda_packages=["python=3.10"],
    )
    assert both.to_script_run_config().to_spec().environment == Packages(
        name="PyTorch",
        pip=("torch", "torchvision", "numpy", "tqdm"),
        python="3.10",
        base="target",
        if_used=("horovod", "tensorboard", "future"),
    )
    other = Estimator(tmp_path, **COMMON, conda_dependencies_file_path="c.yml")
    assert other.to_script_run_config().to_spec().environment == Packages(
        name="estimator", pip=("scipy",), python="3.9"
    )
    plain = Estimator(tmp_path, **COMMON, pip_packages=["tqdm"])
    assert plain.to_script_run_config().to_spec().environment == Packages(
        name="estimator", pip=("tqdm",), base="target"
    )
    defined = PyTorch("src", **COMMON, environment_definition=Environment("own"))
    assert defined.to_script_run_config().to_spec().environment is None
    assert both.conda_dependencies.pip_packages == ["numpy", "tqdm"]
    with pytest.raises(SpecError, match=r"pip_requirements_file.*there is no file"):
        PyTorch(tmp_path, **COMMON, pip_requirements_file="absent.txt")


@pytest.mark.parametrize("version", PyTorch.get_supported_versions())
def test_a_framework_version_requests_its_packages(version: str) -> None:
    made = PyTorch("src", **COMMON, framework_version=version)
    packages = made.to_script_run_config().to_spec().environment
    assert isinstance(packages, Packages)
    assert packages.python == "3.6.2"
    assert packages.pip[0].startswith(f"torch=={version}")
    assert packages.if_used[0].startswith("horovod==0.1")


def test_definitions_go_to_a_folder_and_back(tmp_path: Path) -> None:
    made = Environment("mine")
    made.python.conda_dependencies = CondaDependencies.create(
        pip_packages=["scipy"], conda_packages=["zlib"], python_version="3.11"
    )
    made.docker.base_image_registry.password = "hunter2"
    made.docker.shm_size = "4g"
    made.environment_variables = {"A": "1"}
    made.save_to_directory(tmp_path / "kept")
    assert "hunter2" not in (tmp_path / "kept" / "azureml_environment.json").read_text()
    again = Environment.load_from_directory(tmp_path / "kept")
    made.docker.base_image_registry.password = None
    assert vars(again) == vars(made)
    with pytest.raises(UsageError, match="overwrite=True"):
        made.save_to_directory(tmp_path / "kept")
    made.save_to_directory(tmp_path / "kept", overwrite=True)
    with pytest.raises(UsageError, match="no readable environment"):
        Environment.load_from_directory(tmp_path)


def test_repr_of_a_section_hides_the_password_but_not_a_reference() -> None:
    docker = Environment("mine").docker
    docker.base_image_registry.username = "robot"
    docker.base_image_registry.password = "hunter2"
    for shown in (repr(docker), repr(docker.base_image_registry)):
        assert "hunter2" not in shown
        assert "username='robot', password='***'" in shown
    docker.base_image_registry.password = "${RAYJOBS_SECRET_REGISTRY}"
    assert "${RAYJOBS_SECRET_REGISTRY}" in repr(docker.base_image_registry)


def test_requirements_of_one_package_are_merged() -> None:
    lines = ["numpy>=1", "scipy", "Numpy<3", "numpy>=1"]
    assert CondaDependencies.merge_requirements(lines) == ["numpy>=1,<3", "scipy"]


def test_an_image_and_its_registry_reach_the_spec(tmp_path: Path) -> None:
    made = Environment.from_docker_image("mine", "registry.example/train:1")
    made.docker.shm_size = "4g"
    registry = made.docker.base_image_registry
    registry.address, registry.username = "registry.example", "robot"
    registry.password = "hunter2"
    with pytest.raises(UsageError, match="RAYJOBS_SECRET_REGISTRY"):
        ScriptRunConfig("src", "a.py", environment=made).to_spec()
    registry.password = "${RAYJOBS_SECRET_REGISTRY}"
    container = ScriptRunConfig("src", "a.py", environment=made).to_spec().container
    assert container is not None
    assert (container.image, container.shm_mib) == ("registry.example/train:1", 4096)
    assert container.registry is not None
    assert container.registry.password is not None
    assert container.registry.password.env == "RAYJOBS_SECRET_REGISTRY"
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    built = Environment.from_dockerfile("own", tmp_path / "Dockerfile")
    container = ScriptRunConfig("src", "a.py", environment=built).to_spec().container
    assert container is not None
    assert container.dockerfile == "FROM scratch\n"
    assert ScriptRunConfig("src", "a.py", environment=Environment("x")).to_spec().container is None


@pytest.mark.parametrize(
    "part", [lambda one: one, lambda one: one.docker, lambda one: one.python, lambda one: one.r]
)
def test_unknown_environment_attribute_is_refused(part: Callable[[Any], Any]) -> None:
    environment = Environment("mine")
    with pytest.raises(AttributeError, match="no attribute 'base_images'; it has: "):
        part(environment).base_images = "x"
    assert not hasattr(part(environment), "base_images")


def test_an_environment_is_copied_with_its_sections() -> None:
    environment = Environment("mine", inferencing_stack_version="latest")
    environment.docker.base_image = "team/a:1"
    other = environment.clone("other")
    other.docker.base_image = "team/b:1"
    assert (environment.docker.base_image, other.name) == ("team/a:1", "other")
    assert set(vars(other)) == set(vars(Environment("x")))
    with pytest.raises(UsageError, match="has no nonsense; it has asset_id, databricks"):
        Environment("mine", nonsense=1)
