"""Compute targets are created, found and mapped; machine sizes determine a process's share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs.api import notices, program_rules
from rayjobs.api.compute import AmlCompute, ComputeTarget, ComputeUsageError
from rayjobs.api.configs import PyTorchConfiguration, RunConfiguration, ScriptRunConfig
from rayjobs.api.estimators import PyTorch
from rayjobs.api.experiment import Experiment
from rayjobs.api.run import JobRun
from rayjobs.api.vm_sizes import vm_size
from rayjobs.api.workspace import Workspace
from rayjobs.azureml import mapping
from rayjobs.azureml.program import become_azure_program
from rayjobs.core.errors import CannotBePlacedError, NotFoundError, UsageError
from rayjobs.injob.azureml.exceptions import ComputeTargetException
from rayjobs.policy.capacity import Capacity, NodeShape
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.target import targets
from rayjobs.target.answers import NodeStatus
from rayjobs.workspace.azure import AzureSettings


@pytest.fixture
def workspace(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "8")
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "0")
    monkeypatch.setattr(program_rules, "rules", program_rules.Rules())
    made = Workspace.from_config()
    yield made
    made.close()


def cluster(workspace: Workspace, name: str, size: str, **more: object) -> ComputeTarget:
    given = AmlCompute.provisioning_configuration(vm_size=size, **more)  # type: ignore[arg-type]
    return ComputeTarget.create(workspace, name, given)


def test_compute_is_found_after_creation(workspace: Workspace) -> None:
    with pytest.raises(ComputeTargetException, match="rayjobs azureml map cpu=local"):
        ComputeTarget(workspace=workspace, name="cpu")
    cluster(workspace, "cpu", "STANDARD_D2_V2", max_nodes=3, vm_priority="lowpriority")
    found = ComputeTarget(workspace, "cpu")
    assert type(found) is AmlCompute and found.type == "AmlCompute"
    assert found.provisioning_state == "Succeeded"
    assert workspace.compute_targets["cpu"].vm_size == "STANDARD_D2_V2"
    found.update(min_nodes=1, idle_seconds_before_scaledown=60)
    status = found.get_status().serialize()
    assert status["scaleSettings"] == {
        "minNodeCount": 1,
        "maxNodeCount": 3,
        "nodeIdleTimeBeforeScaleDown": "PT60S",
    }
    assert status["vmPriority"] == "Lowpriority" and status["nodeStateCounts"]["idleNodeCount"] == 0
    found.delete()
    assert "cpu" not in workspace.compute_targets
    with pytest.raises(ComputeTargetException, match="min_nodes is 5"):
        cluster(workspace, "x", "STANDARD_D2_V2", min_nodes=5)


def test_creating_a_compute_again_replaces_its_configuration(workspace: Workspace) -> None:
    cluster(workspace, "cpu", "STANDARD_D2_V2", description="first")
    settings = AzureSettings(workspace.store)
    record = settings.compute("cpu")
    assert record is not None
    long_ago = "2020-01-01T00:00:00Z"
    settings.put_compute(replace(record, created_at=long_ago, modified_at=long_ago))
    again = cluster(workspace, "cpu", "STANDARD_NC6", max_nodes=2)
    assert (again.vm_size, again.description) == ("STANDARD_NC6", "")
    status = again.get_status()
    assert (status.creation_time, status.scale_settings.maximum_node_count) == (long_ago, 2)
    assert status.modified_time > long_ago


def test_a_mapping_binds_a_name_to_a_target(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        mapping.change(workspace.opened, ["cpu=nowhere"], [])
    kept = mapping.change(workspace.opened, ["cpu=local", f"https://h/a?b=1={tmp_path}"], [])
    assert kept.targets == {"cpu": "local"}
    assert kept.urls == {"https://h/a?b=1": str(tmp_path)}
    assert ComputeTarget(workspace, "cpu").target == "local"
    assert mapping.change(workspace.opened, [], ["cpu"]).targets == {}
    with pytest.raises(UsageError, match="NAME=TARGET"):
        mapping.change(workspace.opened, ["cpu"], [])


def test_runs_of_a_mapped_compute_are_those_of_its_target(workspace: Workspace) -> None:
    mapping.change(workspace.opened, ["cpu=local"], [])
    jobs = {}
    for target, tags in (("local", {"keep": "1"}), ("local", {}), ("other", {"keep": "1"})):
        spec = JobSpec(script="a.py", target=target, tags=tags)
        new = NewJob(spec=spec, experiment="e", snapshot=None, user="ada")
        job, _ = workspace.store.submit(new)
        jobs[job.id] = (target, tags)
    first, second, _ = jobs
    found = ComputeTarget(workspace, "cpu")
    assert isinstance(found, AmlCompute)
    assert [one.id for one in JobRun.list_by_compute(found)] == [second, first]
    assert [one.id for one in found.get_active_runs()] == [second, first]
    assert [one.id for one in found.get_active_runs(tags={"keep": "1"})] == [first]
    assert list(found.get_active_runs(type="hyperdrive")) == []
    assert list(found.get_active_runs(status="Running")) == []
    with pytest.raises(UsageError, match="'Running' or 'Queued'"):
        list(found.get_active_runs(status="Finished"))


def test_a_compute_has_the_living_nodes_of_its_target(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping.change(workspace.opened, ["cpu=local"], [])
    found = ComputeTarget(workspace, "cpu")
    assert isinstance(found, AmlCompute)
    assert found.list_nodes() == []
    # The cluster may start more nodes than live; its head runs no jobs.
    nodes = (NodeStatus(node_id="head"), *(NodeStatus(node_id=one, cpus=4.0) for one in "ab"))
    view = targets.TargetView(name="local", kind="attached", state="running", nodes=nodes)
    monkeypatch.setattr(targets, "target_status", lambda name: view)
    limit = Capacity(nodes=(NodeShape(4.0, count=8),), max_nodes=8)
    monkeypatch.setattr(targets, "capacity_of", lambda name: limit)
    assert [one["nodeId"] for one in found.list_nodes()] == ["local-0", "local-1"]
    assert found.get_status().current_node_count == 2


@pytest.mark.parametrize(
    ("size", "cpus", "gpus"),
    [
        ("STANDARD_NC6", 6, 1),
        ("Standard_NC24rs_v3", 24, 4),
        ("Standard_NC4as_T4_v3", 4, 1),
        ("Standard_ND96asr_v4", 96, 8),
        ("Standard_NC24ads_A100_v4", 24, 1),
        ("STANDARD_D2_V2", 2, 0),
        ("standard_d12_v2", 4, 0),
        ("STANDARD_DS12_V2", 4, 0),
        ("STANDARD_D4_V3", 4, 0),
        ("STANDARD_F4s_v2", 4, 0),
        ("Standard_E8-4s_v3", 4, 0),
    ],
)
def test_machine_sizes(size: str, cpus: int, gpus: int) -> None:
    found = vm_size(size)
    assert found is not None and (found.cpus, found.gpus) == (cpus, gpus)


@pytest.mark.parametrize("size", ["", "huge", "Standard_NC7", "Standard_Q4"])
def test_unknown_machine_sizes_are_refused(size: str) -> None:
    assert vm_size(size) is None


def test_process_gets_its_share_of_the_machine(workspace: Workspace) -> None:
    cluster(workspace, "cpu", "STANDARD_D3_V2")
    alone = ScriptRunConfig("src", "a.py", compute_target="cpu").to_spec(workspace=workspace)
    assert (alone.target, alone.resources.cpus, alone.resources.gpus) == ("local", 4, 0)
    two = PyTorchConfiguration("Gloo", process_count=4, node_count=2)
    config = ScriptRunConfig("src", "a.py", compute_target="cpu", distributed_job_config=two)
    assert config.to_spec(workspace=workspace).resources.cpus == 2
    big = cluster(workspace, "big", "STANDARD_D5_V2")
    spec = ScriptRunConfig("src", "a.py", compute_target=big).to_spec(workspace=workspace)
    assert spec.resources.cpus == 8  # the target has no more


def test_gpus_are_needed_unless_cpus_are_allowed(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(workspace, "gpu", "STANDARD_NC6")
    pair = PyTorchConfiguration(process_count=2, node_count=2)
    config = ScriptRunConfig("src", "a.py", compute_target="gpu", distributed_job_config=pair)
    with pytest.raises(CannotBePlacedError, match=r"nccl, which needs GPUs.*rayjobs azureml map"):
        config.to_spec(workspace=workspace)
    AzureSettings(workspace.store).set_allow_cpu(True)
    spec = config.to_spec(workspace=workspace)
    assert (spec.distribution.backend, spec.resources.gpus) == ("gloo", 0)
    assert "with gloo in place of nccl" in capsys.readouterr().err


def test_missing_target_resources_are_reported_at_submit(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_printed", set())  # each is printed once per process
    cluster(workspace, "cheap", "STANDARD_D2_V2", vm_priority="lowpriority")
    ScriptRunConfig("src", "a.py", compute_target="cheap").to_spec(workspace=workspace)
    assert "'local' has none: the job runs on ordinary nodes" in capsys.readouterr().err
    estimator = PyTorch("src", compute_target="local", entry_script="a.py", shm_size="3g")
    estimator.to_script_run_config().to_spec(workspace=workspace)
    stderr = capsys.readouterr().err
    assert "shm_size='3g': no effect: the job runs without a container" in stderr


@pytest.mark.parametrize(
    ("script", "arguments", "where"),
    [
        ("import torch\ntorch.distributed.init_process_group('NCCL')", [], "a.py:2"),
        (
            "import torch.distributed as d\n\nd.init_process_group(rank=0, backend='nccl')",
            [],
            "a.py:3",
        ),
        ("", ["--dist-backend", "nccl"], "in its arguments"),
        ("", ["--dist-backend=nccl"], "in its arguments"),
        ("print('nccl')\ndef f(d): d.init_process_group('gloo')", ["--name", "nccl-2"], None),
        ("not python", [], None),
    ],
)
def test_script_that_requires_nccl_is_reported_before_it_runs(
    workspace: Workspace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    script: str,
    arguments: list[str],
    where: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "_printed", set())  # each is printed once per process
    cluster(workspace, "gpu", "STANDARD_NC6")
    AzureSettings(workspace.store).set_allow_cpu(True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(script)
    ScriptRunConfig(tmp_path / "src", "a.py", arguments, compute_target="gpu").to_spec(
        workspace=workspace
    )
    stderr = capsys.readouterr().err
    assert "the job runs on CPUs" in stderr
    if where is None:
        assert "nccl" not in stderr
    else:
        assert f"the script itself requests nccl ({where}), which needs GPUs" in stderr
    # If there are GPUs, or none is requested, there is no message.
    ScriptRunConfig(tmp_path / "src", "a.py", arguments, compute_target="local").to_spec(
        workspace=workspace
    )
    assert capsys.readouterr().err == ""


def test_on_a_target_with_gpus_a_script_sees_its_nodes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "2")
    cluster(workspace, "gpu", "STANDARD_NC12")
    config = ScriptRunConfig("src", "a.py", compute_target="gpu")
    assert config.to_spec(workspace=workspace).resources.gpus == 2
    pair = PyTorchConfiguration(process_count=2)
    config = ScriptRunConfig("src", "a.py", compute_target="gpu", distributed_job_config=pair)
    spec = config.to_spec(workspace=workspace)
    assert (spec.distribution.backend, spec.resources.gpus) == ("nccl", 1)
    plain = ScriptRunConfig("src", "a.py", compute_target="local").to_spec(workspace=workspace)
    assert plain.resources.gpus == 0
    become_azure_program()
    seen = ScriptRunConfig("src", "a.py", compute_target="local").to_spec(workspace=workspace)
    assert seen.resources.gpus == 2


def test_unknown_compute_name_means_local_only_in_an_azure_program(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ScriptRunConfig("src", "a.py", compute_target="some-cluster")
    assert config.to_spec(workspace=workspace).target == "some-cluster"
    with pytest.raises(KeyError):
        workspace.compute_targets["some-cluster"]
    become_azure_program()
    assert config.to_spec(workspace=workspace).target == "local"
    assert type(workspace.compute_targets["some-cluster"]) is AmlCompute
    assert "'some-cluster' is not known here" in capsys.readouterr().err


def test_a_compute_without_a_size_is_described(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    become_azure_program()
    described = workspace.compute_targets["lab"].describe()
    assert re.match(r"compute target 'lab' \(\d+ to \d+ nodes\) runs", described)
    capsys.readouterr()
    AmlCompute.provisioning_configuration("STANDARD_D2_V2", vnet_name="a", subnet_name="b")
    assert "subnet_name, vnet_name have no effect" in capsys.readouterr().err
    AmlCompute.provisioning_configuration("STANDARD_D2_V2", vnet_name="a")
    assert "vnet_name has no effect" in capsys.readouterr().err


def test_a_run_configuration_is_saved_and_loaded(tmp_path: Path) -> None:
    settings = RunConfiguration("train.py", ["--lr", 0.1], communicator="OpenMpi")
    settings.target, settings.node_count = "cpu", 2
    settings.mpi.process_count_per_node = 3
    settings.environment.python.conda_dependencies.add_pip_package("numpy==1.26")
    settings.amlcompute.vm_size = "STANDARD_D2_V2"
    settings.save(tmp_path, "mine", separate_environment_yaml=True)
    assert (tmp_path / ".azureml" / "mine.runconfig").is_file()
    found = RunConfiguration.load(tmp_path, "mine")
    assert (found.script, found.arguments) == ("train.py", ["--lr", "0.1"])
    assert (found.target, found.node_count, found.communicator) == ("cpu", 2, "OpenMpi")
    assert found.mpi.process_count_per_node == 3
    assert "numpy==1.26" in found.environment.python.conda_dependencies.pip_packages
    assert found.amlcompute.vm_size == "STANDARD_D2_V2"
    RunConfiguration.delete(tmp_path, "mine")
    with pytest.raises(NotFoundError, match="mine"):
        RunConfiguration.load(tmp_path, "mine")
    with pytest.raises(AttributeError, match="no attribute 'typo'"):
        settings.typo = 1
    with pytest.raises(AttributeError, match="does not run Spark"):
        settings.spark = 1


def test_a_saved_run_configuration_loses_nothing(tmp_path: Path) -> None:
    settings = RunConfiguration(command=["python train.py", "--lr", 0.1, "&& echo done"])
    settings.environment = Path("/opt/mine")
    settings.save(tmp_path, "mine")
    found = ScriptRunConfig("src", run_config=RunConfiguration.load(tmp_path, "mine")).to_spec()
    assert found.command == "python train.py --lr 0.1 && echo done"
    assert found.environment == "/opt/mine"
    settings.gpus_per_process = 2
    settings.docker.arguments.append("--ipc=host")
    with pytest.raises(UsageError, match="gpus_per_process, docker cannot be saved in a run conf"):
        settings.save(tmp_path, "mine")
    settings = RunConfiguration("a.py", framework="PyTorch")
    settings.data = {"x": "ds"}
    with pytest.raises(UsageError, match=r"^data cannot be saved .*; set it again"):
        settings.save(tmp_path, "mine")


def test_experiments_have_tags_and_an_archive(workspace: Workspace) -> None:
    one = Experiment(workspace, "one")
    one.set_tags({"a": 1, "b": None})
    one.remove_tags(["b"])
    assert one.tags == {"a": "1"} and list(workspace.experiments) == ["one"]
    one.archive()
    assert one.archived_time is not None and workspace.experiments == {}
    assert [x.name for x in Experiment.list(workspace, view_type="ArchivedOnly")] == ["one"]
    assert Experiment.list(workspace, view_type="All", tags={"a": "2"}) == []
    one.reactivate()
    assert list(workspace.experiments) == ["one"]
    Experiment.delete(workspace, one.id)
    assert workspace.experiments == {}


def test_misspelled_name_is_refused_with_a_suggestion(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(workspace, "gpu-cluster", "STANDARD_NC6")
    AzureSettings(workspace.store).map_target("big-machine", "local")
    become_azure_program()
    for wrong, right in (
        ("gpu-clutser", "gpu-cluster"),
        ("gpu-clusterr", "gpu-cluster"),
        ("big-machin", "big-machine"),
        ("locl", "local"),
    ):
        config = ScriptRunConfig("src", "a.py", compute_target=wrong)
        for use in (
            lambda config=config: config.to_spec(workspace=workspace),
            lambda wrong=wrong: workspace.compute_targets[wrong],
        ):
            with pytest.raises(ComputeUsageError, match=f"Did you mean '{right}'"):
                use()
    assert "is not known here" not in capsys.readouterr().err
    AzureSettings(workspace.store).map_target("gpu-clutser", "local")  # the remedy that it names
    config = ScriptRunConfig("src", "a.py", compute_target="gpu-clutser")
    assert config.to_spec(workspace=workspace).target == "local"


@pytest.mark.parametrize("other", ["cpu-cluster", "gpu-cluster-2"])
def test_the_name_of_another_cluster_is_accepted(workspace: Workspace, other: str) -> None:
    cluster(workspace, "gpu-cluster", "STANDARD_NC6")
    cluster(workspace, "gpu-cluster-1", "STANDARD_NC6")
    become_azure_program()
    config = ScriptRunConfig("src", "a.py", compute_target=other)
    assert config.to_spec(workspace=workspace).target == "local"
