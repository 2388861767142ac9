"""Programs in the exact form of the public ones train for real, their `azureml` imports unchanged.

Each asserts metrics and files: some example scripts swallow every exception of their training.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.api.workspace import Workspace
from tests.azure.running import CONFIG, azureml_run, copy_twin
from tests.local_target import LocalTarget

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_script_estimator_and_sweep_of_one_driver(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("first", own_home)
    done = azureml_run("driver.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1:5] == ["team-ws", "group-1", "local", CONFIG["subscription_id"]]
    assert "metrics ['accuracy', 'lr']" in lines
    assert "registered first-twin 1" in lines
    assert "estimator Completed" in lines
    assert "compute target 'cpu-cluster' (STANDARD_D2_V2, 0 to 4 nodes) runs" in done.stderr
    workspace = Workspace()
    assert workspace.name == "team-ws"
    runs = list(workspace.experiments["first-twin"].get_runs())
    assert [run.type for run in runs] == ["hyperdrive", "azureml.scriptrun", "azureml.scriptrun"]
    for run in runs[1:]:
        assert run.get_metrics()["accuracy"][-1] > 0.7
        assert "outputs/model.pt" in run.get_file_names()
    best = runs[0].get_best_run_by_primary_metric()
    assert best.get_metrics()["accuracy"][-1] > 0.7
    workspace.close()


def test_distributed_training_on_a_gpu_cluster_runs_on_cpus_only_when_that_is_allowed(
    local_target: LocalTarget, own_home: Path
) -> None:
    """PyTorchConfiguration asks for nccl; two nodes of one process meet by gloo on CPUs."""
    folder = copy_twin("ddp", own_home)
    (folder / "gpus.py").write_text(NO_GPUS)
    refused = azureml_run("gpus.py", "job.py", cwd=folder)
    assert refused.returncode == 1
    assert "allow CPUs: `rayjobs azureml run --allow-cpu`" in refused.stderr
    done = azureml_run("--allow-cpu", "gpus.py", "job.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 2" in done.stdout.splitlines()
    assert f"{CONFIG['workspace_name']} {CONFIG['subscription_id']}" in done.stdout
    assert "with gloo in place of nccl" in done.stderr
    workspace = Workspace()
    (run,) = workspace.experiments["ddp-twin"].get_runs()
    assert "outputs/model.pt" in run.get_file_names()
    assert "azureml-logs/70_driver_log_1.txt" in run.get_file_names()
    workspace.close()


# The tests' target says that it has GPUs; this program runs another one as on a target without.
NO_GPUS = """
import dataclasses, runpy, sys
from rayjobs.target import targets
found = targets.capacity_of
def none(name="local", **more):
    has = found(name, **more)
    nodes = tuple(dataclasses.replace(one, gpus=0.0) for one in has.nodes)
    return dataclasses.replace(has, nodes=nodes)
targets.capacity_of = none
runpy.run_path(sys.argv[1], run_name="__main__")
"""
