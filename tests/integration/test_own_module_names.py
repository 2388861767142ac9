"""A project's own `datastore.py` and `tuning/` load, and the packages of rayjobs load as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray

# The user's modules, a driver that submits a job and a sweep, and the script that both run.
PROJECT = {
    "datastore.py": "OWNER = 'the user'\n",
    "tuning/__init__.py": "OWNER = 'the user'\n",
    "tuning/space.py": "RATES = [0.1, 0.2]\n",
    "train.py": """
import argparse
import datastore, tuning
from tuning.space import RATES
from rayjobs import Run
import rayjobs.datastore.refs
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.5)
rate = parser.parse_args().rate
assert datastore.OWNER == tuning.OWNER == "the user"
assert rayjobs.datastore.DataReference.__module__ == "rayjobs.datastore.refs"
Run.get_context().log("rate", rate)
print("both load")
""",
    "driver.py": """
import datastore, tuning
from tuning.space import RATES
from rayjobs import (
    Datastore, Experiment, GridParameterSampling, HyperDriveConfig, PrimaryMetricGoal,
    ScriptRunConfig, Workspace, choice,
)
import rayjobs.datastore.refs, rayjobs.tuning.space
assert datastore.OWNER == tuning.OWNER == "the user"
experiment = Experiment(Workspace(path=WORKSPACE), "names")
config = ScriptRunConfig(".", "train.py")
run = experiment.submit(config)
run.wait_for_completion()
sweep = experiment.submit(HyperDriveConfig(
    hyperparameter_sampling=GridParameterSampling({"--rate": choice(*RATES)}),
    primary_metric_name="rate", primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
    max_total_runs=2, max_concurrent_runs=2, run_config=config,
))
sweep.wait_for_completion()
best = sweep.get_best_run_by_primary_metric()
print(run.get_status(), sweep.get_status(), best.get_metrics()["rate"])
""",
}


@pytest.fixture
def project(tmp_path: Path, jobs: Jobs) -> Path:
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("WORKSPACE", repr(str(jobs.workspace.path))))
    return folder


def test_own_module_name_works_in_driver_job_and_sweep(project: Path, jobs: Jobs) -> None:
    done = subprocess.run(
        [sys.executable, "driver.py"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Completed Completed 0.2"


def test_own_module_name_works_in_a_notebook(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    # Without the history database and the kernels of the caller.
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    cell = nbformat.v4.new_code_cell(PROJECT["driver.py"].partition("experiment =")[0])
    notebook = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    path = {"metadata": {"path": str(project)}}
    NotebookClient(notebook, timeout=120, resources=path).execute()
    assert all(output.output_type != "error" for output in cell.outputs), cell.outputs


ALIASES = """
import json, sys
import datastore.refs, tuning, tuning.expressions
import rayjobs.datastore.refs, rayjobs.tuning.expressions
same = (
    datastore.refs is rayjobs.datastore.refs
    and tuning.expressions.uniform is rayjobs.tuning.uniform
    and datastore.DataReference is rayjobs.DataReference
    and datastore.refs.__spec__.name == "rayjobs.datastore.refs"
)
print(json.dumps({"same": same}))
"""


def test_old_names_are_aliases_unless_shadowed(jobs: Jobs, tmp_path: Path) -> None:
    """In a driver, and in a job: each module is loaded once."""
    (tmp_path / "old_names.py").write_text(ALIASES)
    done = subprocess.run(
        [sys.executable, tmp_path / "old_names.py"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout) == {"same": True}
    job = jobs.submit(ALIASES)
    jobs.wait(job)
    assert json.loads(jobs.log(job)) == {"same": True}
