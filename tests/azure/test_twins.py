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
