"""Configurations of Azure ML v1 and their specs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs import CondaDependencies, Environment, Estimator, PyTorch, ScriptRunConfig
from rayjobs.api.configs import MpiConfiguration, PyTorchConfiguration, RunConfiguration
from rayjobs.api.estimators import Gloo, Mpi, Nccl, ParameterServer
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.injob.azureml.exceptions import NotProvidedError
from rayjobs.spec.model import JobSpec

SECRET = "RAYJOBS_SECRET_REGISTRY"


def test_a_script_with_its_arguments() -> None:
    config = ScriptRunConfig(
        "src", "train.py", ["--lr", 0.1, "--epochs", 3, "--deep", True], compute_target="local"
    )
    spec = config.to_spec(tags={"a": 1})  # type: ignore[dict-item]
    assert spec.script == "train.py"
    assert spec.name == "train"
    assert spec.arguments == ("--lr", "0.1", "--epochs", "3", "--deep", "True")
    assert spec.source_directory == str(Path("src").absolute())
    assert (spec.target, dict(spec.tags)) == ("local", {"a": "1"})
    assert spec.max_duration_s is None
    assert spec.distribution.world_size == 1


def test_a_command_is_joined() -> None:
    config = ScriptRunConfig("src", command=["python train.py", "--lr", 0.1, "&& echo done"])
    spec = config.to_spec()
    assert spec.command == "python train.py --lr 0.1 && echo done"
    assert spec.script is None


def test_numbers_of_numpy_are_arguments_too() -> None:
    numpy = pytest.importorskip("numpy")
    spec = ScriptRunConfig("src", "a.py", [numpy.float64(0.5), numpy.int32(3)]).to_spec()
    assert spec.arguments == ("0.5", "3")


@pytest.mark.parametrize(
    ("distribution", "shape"),
    [
        (MpiConfiguration(4, 2), (2, 4, "mpi")),
        (PyTorchConfiguration("Gloo", 6, 3), (3, 2, "gloo")),
        (PyTorchConfiguration("nccl", node_count=2), (2, 1, "nccl")),
        (PyTorchConfiguration(), (1, 1, "none")),
    ],
)
def test_distribution_is_in_the_spec(distribution: Any, shape: tuple[int, int, str]) -> None:
    config = ScriptRunConfig("src", "a.py", distributed_job_config=distribution)
    found = config.to_spec().distribution
    assert (found.nodes, found.processes_per_node, found.backend) == shape


def test_a_run_config_wins_over_the_other_arguments() -> None:
    settings = RunConfiguration("b.py", ["--old"])
    settings.target = "cluster"
    settings.environment_variables = {"A": "1"}
    settings.max_run_duration_seconds = 60
    settings.gpus_per_process = 2
    with pytest.warns(UserWarning, match="compute_target: ignored"):
        config = ScriptRunConfig(
            "src", arguments=["--new"], run_config=settings, compute_target="local"
        )
    spec = config.to_spec()
    assert (spec.script, spec.arguments, spec.target) == ("b.py", ("--new",), "cluster")
    assert dict(spec.environment_variables) == {"A": "1"}
    assert (spec.max_duration_s, spec.resources.gpus) == (60, 2)
    longer = ScriptRunConfig("src", run_config=settings, max_run_duration_seconds=600)
    assert longer.to_spec().max_duration_s == 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScriptRunConfig("src"),
        lambda: ScriptRunConfig("src", "a.py", command="python a.py"),
        lambda: ScriptRunConfig("src", "a.py", [object()]).to_spec(),
        lambda: ScriptRunConfig("src", "a.py", compute_target=3).to_spec(),
        lambda: ScriptRunConfig("src", "a.py", environment=object()).to_spec(),
        lambda: ScriptRunConfig("src", "a.py", resume_from=object()).to_spec(),
        lambda: ScriptRunConfig("src", "a.py", distributed_job_config="mpi"),  # type: ignore[arg-type]
        lambda: MpiConfiguration(0, 1),
        lambda: PyTorchConfiguration("mpi"),
        lambda: PyTorchConfiguration("gloo", 5, 2),
        lambda: RunConfiguration(conda_dependencies="x"),
        lambda: RunConfiguration(communicator="Smoke"),
        lambda: RunConfiguration(framework="pyspark"),
        lambda: RunConfiguration(framework="Smoke"),
    ],
)
def test_invalid_arguments_are_reported_in_a_sentence(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"\w") as caught:
        made = make()
        if isinstance(made, RunConfiguration):
            ScriptRunConfig("src", "a.py", run_config=made).to_spec()
    assert len(str(caught.value)) > 20


def test_wrong_values_of_the_spec_are_listed_together() -> None:
    settings = RunConfiguration("a.py")
    settings.max_run_duration_seconds = -5
    settings.cpus_per_process = -1
    with pytest.raises(SpecError) as caught:
        ScriptRunConfig("src", run_config=settings).to_spec()
    assert {problem.path for problem in caught.value.problems} == {
        "max_duration_s",
        "resources.cpus",
    }


# -- estimators -----------------------------------------------------------------------------------


def test_a_pytorch_estimator_is_a_script_with_parameters() -> None:
    estimator = PyTorch(
        "src",
        compute_target="local",
        entry_script="train.py",
        script_params={"--epochs": 3, "--deep": "", "--lr": 0.5},
        environment_variables={"A": "1"},
        max_run_duration_seconds=90,
        use_gpu=True,
    )
    spec = estimator.to_script_run_config().to_spec()
    assert spec.arguments == ("--epochs", "3", "--deep", "--lr", "0.5")
    assert (spec.script, spec.max_duration_s, spec.resources.gpus) == ("train.py", 90, 1)
    assert dict(spec.environment_variables) == {"A": "1"}
    assert spec.distribution.backend == "none"
    replaced = estimator.to_script_run_config({"--epochs": 9}).to_spec()
    assert replaced.arguments == ("--epochs", "9")
    assert estimator.framework_version == PyTorch.DEFAULT_VERSION
    assert "1.6" in PyTorch.get_supported_versions()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"node_count": 2, "distributed_backend": "mpi"}, (2, 1, "mpi")),
        ({"process_count_per_node": 2, "distributed_backend": "GLOO"}, (1, 2, "gloo")),
        ({"node_count": 2, "distributed_training": Mpi(4)}, (2, 4, "mpi")),
        ({"node_count": 3, "distributed_training": Gloo()}, (3, 1, "gloo")),
        (
            {"node_count": 2, "process_count_per_node": 2, "distributed_training": Gloo()},
            (2, 2, "gloo"),
        ),
        ({"node_count": 2, "distributed_training": Nccl(), "use_gpu": True}, (2, 1, "nccl")),
        ({"distributed_training": MpiConfiguration(2, 2)}, (2, 2, "mpi")),
        ({"process_count_per_node": 4, "distributed_training": Mpi(4)}, (1, 4, "mpi")),
        ({"process_count_per_node": 4, "distributed_training": Mpi()}, (1, 4, "mpi")),
        ({"distributed_backend": "mpi"}, (1, 1, "mpi")),
    ],
)
def test_three_generations_of_distribution(
    options: dict[str, Any], shape: tuple[int, int, str]
) -> None:
    estimator = PyTorch("src", compute_target="local", entry_script="a.py", **options)
    found = estimator.to_script_run_config().to_spec().distribution
    assert (found.nodes, found.processes_per_node, found.backend) == shape


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"process_count_per_node": 4, "distributed_training": Mpi(2)},
            "says process_count_per_node=2, and the estimator itself says process_count_per_node=4",
        ),
        (
            {"node_count": 3, "distributed_training": MpiConfiguration(node_count=2)},
            "says node_count=2, and the estimator itself says node_count=3",
        ),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        PyTorch("src", compute_target="local", entry_script="a.py", **options)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"node_count": 0}, "node_count"),
        ({"process_count_per_node": "2"}, "process_count_per_node"),
        ({"node_count": 2}, "distributed_training"),
        ({"distributed_backend": "horovod"}, "distributed_training"),
        ({"distributed_training": ParameterServer()}, "distributed_training"),
        ({"distributed_training": object()}, "distributed_training"),
        ({"distributed_training": Mpi(), "distributed_backend": "mpi"}, "distributed_training"),
        ({"environment_definition": "/venv", "pip_packages": ["x"]}, "environment_definition"),
        ({"conda_dependencies_file": "c.yml", "pip_packages": ["x"]}, "conda_dependencies_file"),
        ({"user_managed": True, "conda_packages": ["x"]}, "user_managed"),
        ({"use_docker": False, "custom_docker_image": "i"}, "use_docker"),
        ({"pip_requirements_file": "not-there.txt"}, "pip_requirements_file"),
        ({"conda_dependencies_file": "not-there.yml"}, "conda_dependencies_file"),
        ({"script_params": {"--data": object()}}, "script_params['--data']"),
        ({"inputs": [object()]}, "inputs"),
        ({"entry_script": None}, "entry_script"),
        ({"compute_target": None}, "compute_target"),
        ({"compute_target": None}, "compute_target"),
        ({"source_directory_data_store": "blob"}, "source_directory_data_store"),
        ({"image_registry_details": object()}, "image_registry_details"),
        ({"shm_size": "garbage"}, "shm_size"),
        ({"max_run_duration_seconds": 0}, "max_run_duration_seconds"),
        ({"max_run_duration_seconds": "60"}, "max_run_duration_seconds"),
        ({"_show_package_warnings": True}, "_show_package_warnings"),
        ({"_disable_validation": False}, "entry_script"),
    ],
)
def test_the_rules_of_estimators(options: dict[str, Any], where: str) -> None:
    given = {"compute_target": "local", "entry_script": "a.py", **options}
    with pytest.raises(SpecError) as caught:
        PyTorch("src", **given)
    assert where in [problem.path for problem in caught.value.problems]


def test_the_plain_estimator_supports_only_mpi() -> None:
    with pytest.raises(SpecError, match="'gloo' is not supported"):
        Estimator("src", compute_target="local", entry_script="a.py", distributed_backend="gloo")
    with pytest.raises(UsageError, match="framework_version"):
        PyTorch("src", compute_target="local", entry_script="a.py", framework_version="9")


def test_all_problems_of_an_estimator_are_reported_together() -> None:
    with pytest.raises(SpecError) as caught:
        PyTorch("src", node_count=0, custom_docker_image="x", use_docker=False)
    assert len(caught.value.problems) == 4


def test_configuration_objects_have_a_readable_repr() -> None:
    settings = {"compute_target": "lab", "environment": Environment("torch")}
    config = ScriptRunConfig("src", "a.py", ["--lr", 1], **settings)  # type: ignore[arg-type]
    config.run_config.gpus_per_process = 2.0
    config.run_config.environment_variables["TOKEN"] = "hidden"
    assert repr(config) == (
        "ScriptRunConfig('src', script='a.py', arguments=['--lr', 1], target='lab', "
        "gpus_per_process=2.0, environment=Environment('torch', 'python'))"
    )
    made = PyTorch(
        "src",
        compute_target="lab",
        entry_script="a.py",
        node_count=2,
        distributed_training=Mpi(4),
        environment_variables={"TOKEN": "hidden"},
    )
    assert repr(made) == (
        "PyTorch('src', entry_script='a.py', target='lab', communicator='OpenMpi', node_count=2, "
        "process_count_per_node=4)"
    )
    sampling = rayjobs.RandomParameterSampling({"--lr": rayjobs.uniform(0.1, 1.0)})
    sweep = rayjobs.HyperDriveConfig(
        sampling, "loss", rayjobs.PrimaryMetricGoal.MINIMIZE, 8, 2, estimator=made
    )
    assert repr(sweep) == (
        f"HyperDriveConfig({made!r}, RandomParameterSampling, 'loss', MINIMIZE, max_total_runs=8, "
        "max_concurrent_runs=2, policy=NoTerminationPolicy)"
    )
    packages = CondaDependencies.create(pip_packages=["numpy"], python_version="3.11")
    assert repr(packages) == "CondaDependencies(python='3.11', pip=['numpy'])"
    assert repr(PyTorchConfiguration("Gloo", 4, 2)) == (
        "PyTorchConfiguration('Gloo', process_count=4, node_count=2)"
    )
    for one in (Mpi(2), Gloo(), Nccl(), MpiConfiguration(2), RunConfiguration("a.py")):
        assert repr(one).startswith(f"{type(one).__name__}(")


def test_unsupported_azure_ml_name_suggests_a_replacement() -> None:
    from rayjobs import ComputeTarget, InteractiveLoginAuthentication, SKLearn  # importable
    from rayjobs import Keyvault, Webservice  # isort: skip # a program imports all names first

    assert (ComputeTarget.__name__, SKLearn.__name__) == ("ComputeTarget", "SKLearn")
    assert InteractiveLoginAuthentication is not None
    with pytest.raises(NotProvidedError, match=r"rayjobs\.Webservice is not part .* serve it"):
        Webservice("name")
    with pytest.raises(NotProvidedError, match="use `rayjobs target secret set`"):
        Keyvault.get_secret
    with pytest.raises(AttributeError, match="Did you mean 'Workspace'"):
        rayjobs.Workspaces
    with pytest.raises(AttributeError, match="no attribute '_wrapped'"):
        rayjobs._wrapped
    assert not set(rayjobs._INSTEAD) & set(rayjobs._LAZY)


def test_a_star_import_brings_every_public_name() -> None:
    names: dict[str, object] = {"__version__": "the script's own"}
    exec("from rayjobs import *", names)
    assert set(rayjobs._LAZY) <= set(names)
    assert names["__version__"] == "the script's own"


@pytest.mark.parametrize(
    "values",
    [
        {"environment": "/opt/python"},
        {
            "environment": {
                "name": "mine",
                "python": "3.11",
                "pip": ["--index-url https://example.org/simple", "numpy"],
                "constraints": ["numpy<2"],
                "conda": ["zlib >=1.2"],
                "channels": ["https://example.org/channel", "conda-forge"],
            },
            "environment_variables": {"A": "1"},
        },
        {"environment": {"name": "torch", "pip": ["torch"], "base": "target"}},
        {
            "container": {
                "image": "registry.example/train:1",
                "arguments": ["--volume", "/data:/data"],
                "shm_mib": 512,
                "registry": {"address": "a.example", "username": "u", "password": SECRET},
            }
        },
        {"container": {"dockerfile": "FROM python:3.13\nRUN true\n"}},
    ],
)
def test_the_environment_of_a_spec_requests_the_same_again(values: dict[str, Any]) -> None:
    spec = JobSpec(script="a.py", **values)
    config = ScriptRunConfig("src", "a.py", environment=Environment.of_spec(spec))
    again = config.to_spec()
    assert again.environment == spec.environment
    assert again.environment_variables == spec.environment_variables
    assert again.container == spec.container
