"""Each parameter of an estimator: its effect on the job's record, or its refusal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Experiment, Workspace
from rayjobs.api import notices, program_rules
from rayjobs.api.environment import ContainerRegistry, Environment
from rayjobs.api.estimators import Estimator, Gloo, PyTorch
from rayjobs.azureml.program import become_azure_program
from rayjobs.datastore import DataPath, DataReference, Datastore
from rayjobs.injob.azureml.exceptions import TrainingException
from rayjobs.jobs.records import Job
from rayjobs.target import revive

Seen = Callable[[Job], Any]
_IMAGE = "mcr.microsoft.com/azureml/openmpi3.1.2-ubuntu18.04"


def _registry() -> ContainerRegistry:
    registry = ContainerRegistry()
    registry.address = "registry.example"
    return registry


def _environment() -> Environment:
    environment = Environment("mine")
    environment.environment_variables = {"A": "1"}
    return environment


def _packages(job: Job) -> Any:
    environment = job.spec.environment
    return environment if isinstance(environment, str | None) else environment.pip


def _registry_of(job: Job) -> str | None:
    container = job.spec.container
    return container.registry.address if container and container.registry else None


def _instead(job: Job) -> list[str]:
    return [one.asked for one in job.spec.substitutes]


# Parameter: the arguments that set it, what is read from the job, and the expected value. An
# argument `DATA` becomes a reference to data in the default datastore.
DATA = object()
EFFECTS: dict[str, tuple[dict[str, Any], Seen, Any]] = {
    "source_directory": ({}, lambda job: Path(job.spec.source_directory or "").name, "src"),
    "compute_target": ({"compute_target": "local"}, lambda job: job.spec.target, "local"),
    "vm_size": ({"vm_size": "STANDARD_D2_V2"}, lambda job: job.spec.resources.cpus, 2),
    "entry_script": ({}, lambda job: job.spec.script, "a.py"),
    "script_params": (
        {"script_params": {"--deep": "", "--lr": 0.5}},
        lambda job: job.spec.arguments,
        ("--deep", "--lr", "0.5"),
    ),
    "node_count": (
        {"node_count": 2, "distributed_training": Gloo()},
        lambda job: job.spec.distribution.nodes,
        2,
    ),
    "process_count_per_node": (
        {"process_count_per_node": 2, "distributed_backend": "mpi"},
        lambda job: job.spec.distribution.processes_per_node,
        2,
    ),
    "distributed_backend": (
        {"distributed_backend": "mpi"},
        lambda job: job.spec.distribution.backend,
        "mpi",
    ),
    "distributed_training": (
        {"node_count": 2, "distributed_training": Gloo()},
        lambda job: job.spec.distribution.backend,
        "gloo",
    ),
    "use_docker": ({"use_docker": False}, lambda job: job.spec.container, None),
    "custom_docker_base_image": (
        {"custom_docker_base_image": _IMAGE},
        _instead,
        [f"image {_IMAGE}"],
    ),
    "custom_docker_image": (
        {"custom_docker_image": "team/train:1"},
        lambda job: job.spec.container and job.spec.container.image,
        "team/train:1",
    ),
    "image_registry_details": (
        {"custom_docker_image": "team/train:1", "image_registry_details": _registry()},
        _registry_of,
        "registry.example",
    ),
    "user_managed": ({"user_managed": True}, _packages, None),
    "conda_packages": ({"conda_packages": ["tabulate"]}, _instead, ["tabulate (conda)"]),
    "pip_packages": ({"pip_packages": ["tabulate"]}, _packages, "tabulate"),
    "conda_dependencies_file_path": (
        {"conda_dependencies_file_path": "conda.yml"},
        _packages,
        "cowsay",
    ),
    "pip_requirements_file_path": (
        {"pip_requirements_file_path": "pip.txt"},
        _packages,
        "pyfiglet",
    ),
    "conda_dependencies_file": ({"conda_dependencies_file": "conda.yml"}, _packages, "cowsay"),
    "pip_requirements_file": ({"pip_requirements_file": "pip.txt"}, _packages, "pyfiglet"),
    "environment_variables": (
        {"environment_variables": {"A": "1"}},
        lambda job: dict(job.spec.environment_variables),
        {"A": "1"},
    ),
    "environment_definition": (
        {"environment_definition": _environment()},
        lambda job: dict(job.spec.environment_variables),
        {"A": "1"},
    ),
    "inputs": ({"inputs": DATA}, lambda job: sorted(job.spec.inputs), ["birds"]),
    "resume_from": (
        {"resume_from": DATA},
        lambda job: (job.spec.resume_from or "").partition(":")[0],
        "packed",
    ),
    "max_run_duration_seconds": (
        {"max_run_duration_seconds": 60},
        lambda job: job.spec.max_duration_s,
        60,
    ),
}

# Parameter: the arguments that set it, and a part of the notice that is printed.
NOTICES: dict[str, tuple[dict[str, Any], str]] = {
    "vm_priority": ({"vm_priority": "lowpriority"}, "ignores the job's machine size and priority"),
    "shm_size": ({"shm_size": "1g"}, "shm_size='1g': no effect: the job runs without"),
    "framework_version": ({"framework_version": "1.6"}, "instead of torch==1.6.0"),
    "_enable_optimized_mode": ({"_enable_optimized_mode": True}, "has no effect"),
    "_show_lint_warnings": (
        {"entry_script": "odd.py", "_show_lint_warnings": True},
        "odd.py, line 2: assertion is always true",
    ),
}

# Parameter: the arguments that set it, and a part of the refusal.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "use_gpu": ({"use_gpu": True}, "it needs GPUs, and target 'local' has none"),
    "source_directory_data_store": (
        {"source_directory_data_store": "blob"},
        "into the workspace's own storage",
    ),
    "_disable_validation": (
        {"entry_script": "bad.py", "_disable_validation": False},
        "bad.py, line 2",
    ),
    "_show_package_warnings": (
        {"_show_package_warnings": True},
        "rayjobs does not compare packages with the script's imports",
    ),
}


@pytest.fixture
def experiment(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Experiment]:
    (tmp_path / "src").mkdir()
    for name, text in {
        "a.py": "print('hello')\n",
        "bad.py": "x = 1\nif x:\n",
        "odd.py": "x = 1\nassert (x, 'always true')\n",
        "pip.txt": "pyfiglet\n",
        "conda.yml": "dependencies:\n- pip:\n  - cowsay\n",
    }.items():
        (tmp_path / "src" / name).write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pt").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "4")
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "0")
    monkeypatch.setattr(revive, "in_background", lambda _target, **_more: None)
    monkeypatch.setattr(program_rules, "rules", program_rules.Rules())
    become_azure_program()
    monkeypatch.setattr(notices, "_printed", set())  # each is printed once per process
    workspace = Workspace.create("team", path=tmp_path / "team")
    yield Experiment(workspace, "effects")
    workspace.close()


def _submitted(experiment: Experiment, kind: type[Estimator], given: dict[str, Any]) -> Job:
    if DATA in given.values():
        store = Datastore.get_default(experiment.workspace)
        store.upload("data", target_path="in", show_progress=False)
        made = {
            "inputs": [DataReference(store, "birds", "in")],
            "resume_from": DataPath(store, "in"),
        }
        given = {name: made[name] for name in given}
    options = {"compute_target": "local", "entry_script": "a.py", **given}
    run = experiment.submit(kind("src", **options))
    return experiment.workspace.store.job(run.id)


def test_every_parameter_has_its_line() -> None:
    names = [*EFFECTS, *NOTICES, *REFUSED]
    assert sorted(names) == sorted(inspect.signature(PyTorch).parameters)


@pytest.mark.parametrize("name", EFFECTS)
def test_parameter_appears_in_the_job_record(experiment: Experiment, name: str) -> None:
    given, seen, expected = EFFECTS[name]
    without = seen(_submitted(experiment, PyTorch, {}))
    found = seen(_submitted(experiment, PyTorch, given))
    if isinstance(found, tuple) and isinstance(expected, str):
        assert [expected in one for one in found].count(True) == 1, found
    else:
        assert found == expected
    always = {"source_directory", "compute_target", "entry_script", "use_docker", "user_managed"}
    assert (found == without) == (name in always)


@pytest.mark.parametrize("name", NOTICES)
def test_parameter_without_an_effect_causes_a_warning(
    experiment: Experiment, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, words = NOTICES[name]
    _submitted(experiment, PyTorch, given)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_is_refused_in_a_sentence(experiment: Experiment, name: str) -> None:
    given, words = REFUSED[name]
    with pytest.raises(Exception, match=words):
        _submitted(experiment, PyTorch, given)
    assert not list(experiment.get_runs())


@pytest.mark.parametrize(
    "given",
    [
        {"pip_requirements_file": "pip.txt", "pip_requirements_file_path": "other.txt"},
        {"conda_dependencies_file": "conda.yml", "conda_dependencies_file_path": "other.yml"},
        {"custom_docker_image": "team/a:1", "custom_docker_base_image": "team/b:1"},
    ],
)
def test_a_parameter_and_its_older_name_may_not_differ(given: dict[str, str]) -> None:
    name, older = given
    with pytest.raises(TrainingException, match=f"{name}: is .* and {older}, its older name, is"):
        PyTorch("src", compute_target="local", entry_script="a.py", **given)  # type: ignore[arg-type]


def test_environment_definition_excludes_use_docker() -> None:
    with pytest.raises(TrainingException, match="environment_definition: excludes use_docker"):
        PyTorch(
            "src",
            compute_target="local",
            entry_script="a.py",
            environment_definition=Environment("mine"),
            use_docker=False,
        )
