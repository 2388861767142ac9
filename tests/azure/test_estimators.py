"""Every parameter of an estimator has an effect, or is refused in one sentence."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api import estimators
from rayjobs.api.environment import ContainerRegistry, Environment
from rayjobs.api.estimators import Chainer, Estimator, PyTorch, SKLearn, TensorFlow
from rayjobs.azureml.signatures import azure_class
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.injob.azureml.exceptions import TrainingException

ALL = (Estimator, PyTorch, TensorFlow, Chainer, SKLearn)


def made(kind: type = PyTorch, **options: Any) -> Any:
    return kind("src", compute_target="local", entry_script="a.py", **options)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("azureml.train.estimator.Estimator", Estimator),
        ("azureml.train.dnn.PyTorch", PyTorch),
        ("azureml.train.dnn.TensorFlow", TensorFlow),
        ("azureml.train.dnn.Chainer", Chainer),
        ("azureml.train.sklearn.SKLearn", SKLearn),
    ],
)
def test_signatures_are_explicit_and_match_the_wheels(name: str, kind: type) -> None:
    azure = azure_class(name)
    assert azure is not None and azure.init is not None
    ours = list(inspect.signature(kind).parameters.values())
    assert [(one.name, one.kind.name) for one in ours] == [
        (one.name, "KEYWORD_ONLY" if one.kind == "keyword" else "POSITIONAL_OR_KEYWORD")
        for one in azure.init
    ]
    assert [repr(one.default) for one in ours[1:]] == [one.default for one in azure.init[1:]]


def test_an_image_its_registry_and_its_memory_go_into_the_environment() -> None:
    registry = ContainerRegistry()
    registry.address = "registry.example"
    estimator = made(
        custom_docker_image="team/train:1", image_registry_details=registry, shm_size="4g"
    )
    docker = estimator.run_config.environment.docker
    assert (docker.base_image, docker.shm_size, docker.enabled) == ("team/train:1", "4g", True)
    assert docker.base_image_registry.address == "registry.example"
    assert made(use_docker=False).run_config.environment.docker.enabled is False


def test_user_managed_is_the_targets_own_python() -> None:
    environment = made(user_managed=True).run_config.environment
    assert environment.python.user_managed_dependencies
    assert environment.to_spec() is None


def test_none_parameters_are_dropped_and_lists_are_flattened() -> None:
    estimator = made(script_params={"--a": None, "--flag": "", "--layers": [64, 32], "--b": 1})
    config = estimator.to_script_run_config()
    assert config.arguments == ["--flag", "--layers", "64", "32", "--b", "1"]


def test_validation_compiles_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nif x:\n")
    (tmp_path / "odd.py").write_text("x = 1\nassert (x, 'always true')\n")
    given: dict[str, Any] = {"compute_target": "local", "_disable_validation": False}
    with pytest.raises(TrainingException, match=r"bad\.py, line 2"):
        PyTorch(tmp_path, entry_script="bad.py", **given)
    PyTorch(tmp_path, entry_script="odd.py", _show_lint_warnings=True, **given)
    assert "odd.py, line 2: assertion is always true" in capsys.readouterr().err


def test_optimized_mode_has_no_effect_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    made(_enable_optimized_mode=True)
    assert "_enable_optimized_mode has no effect" in capsys.readouterr().err


def test_errors_are_training_exceptions() -> None:
    with pytest.raises(TrainingException):
        made(node_count=0)
    with pytest.raises(TrainingException):
        made(framework_version="9.9")
    with pytest.raises(SpecError, match="parameter servers"):
        made(TensorFlow, worker_count=2)
    with pytest.raises(SpecError, match="not supported"):
        made(Estimator, distributed_training=estimators.Gloo())


def test_frameworks_ask_for_their_packages() -> None:
    assert made(SKLearn).run_config.environment.to_spec()["pip"] == [
        "scikit-learn",
        "scipy",
        "joblib",
    ]
    spec = made(TensorFlow, framework_version="2.2", pip_packages=["keras"])
    assert spec.run_config.environment.to_spec()["pip"] == ["tensorflow==2.2", "keras"]
    assert spec.framework_version == "2.2"
    assert Chainer.get_supported_versions() == ["5.1.0", "7.0.0"]


def test_files_come_from_the_source_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pip.txt").write_text("inside==1\n")
    (tmp_path / "pip.txt").write_text("outside==1\n")
    monkeypatch.chdir(tmp_path)
    estimator = PyTorch(
        "project", compute_target="local", entry_script="a.py", pip_requirements_file="pip.txt"
    )
    assert "inside==1" in estimator.conda_dependencies.pip_packages


def test_unsupported_submit_arguments_are_refused() -> None:
    from rayjobs.api.experiment import _submit_estimator

    with pytest.raises(UsageError, match="source_directory_data_store"):
        _submit_estimator(None, made(), source_directory_data_store="x")  # type: ignore[arg-type]


def test_given_environment_is_used() -> None:
    environment = Environment("mine")
    assert made(environment_definition=environment).run_config.environment is environment
