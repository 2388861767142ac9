"""The table of Azure ML's variables lists exactly those that a job's processes get."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rayjobs import Experiment, Workspace
from rayjobs.api.configs import KILL_TIMEOUT, ScriptRunConfig
from rayjobs.azureml.variables import VARIABLES, When
from rayjobs.injob.azureml.exceptions import RunConfigurationException
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext
from tests.support.local_target import LocalTarget
from tests.unit.launch.test_torch_env import context as torch_context

# The variables that Azure ML v1 sets in a job, or that examples and community code read in one.
NAMED = [
    "AZUREML_RUN_ID",
    "AZUREML_ROOT_RUN_ID",
    "AZUREML_ARM_SUBSCRIPTION",
    "AZUREML_ARM_RESOURCEGROUP",
    "AZUREML_ARM_WORKSPACE_NAME",
    "AZUREML_ARM_PROJECT_NAME",
    "AZUREML_OUTPUT_DIRECTORY",
    "AZUREML_LOGDIRECTORY_PATH",
    "AZUREML_DATAREFERENCE_<name>",
    "<name>",
    "AZUREML_DATAREFERENCE_MODEL_LOCATION",
    "AZ_BATCHAI_TASK_INDEX",
    "AZ_BATCHAI_PYTORCH_INIT_METHOD",
    "AZ_BATCH_MASTER_NODE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "AZUREML_EXPERIMENT_ID",
    "AZUREML_WORKSPACE_ID",
    "AZUREML_SERVICE_ENDPOINT",
    "AZUREML_RUN_TOKEN",
    "AZUREML_RUN_TOKEN_EXPIRY",
    "AZUREML_DISCOVERY_SERVICE_ENDPOINT",
    "AZUREML_TARGET_TYPE",
    "AZUREML_COMMUNICATOR",
    "AZUREML_FRAMEWORK",
    "AZUREML_CR_NODE_RANK",
    "AZ_BATCHAI_MPI_MASTER_NODE",
    "AZ_BATCHAI_JOB_TEMP",
    "AZ_BATCHAI_TASK_TYPE",
    "AML_PARAMETER_<NAME>",
    "TF_CONFIG",
    "MLFLOW_TRACKING_URI",
    "AZUREML_OUTPUT_UPLOAD_TIMEOUT_SEC",
    "AZUREML_RUN_KILL_SIGNAL_TIMEOUT_SEC",
]


SETS = {
    "none": {When.ALWAYS},
    "gloo": {When.ALWAYS, When.RANKS, When.MEETING},
    "nccl": {When.ALWAYS, When.RANKS, When.MEETING},
    "mpi": {When.ALWAYS, When.RANKS, When.MEETING, When.MPI},
    "horovod-gloo": {When.ALWAYS, When.RANKS},
}


def test_every_variable_of_azure_has_a_line() -> None:
    assert sorted(NAMED) == sorted(VARIABLES)


def planned(backend: str) -> set[str]:
    """Return the variables that all ranks of a job get from its launch plan."""
    size = 1 if backend == "none" else 2
    shape = {"nodes": size, "processes_per_node": size, "backend": backend}
    made: AttemptContext = torch_context(size, 1, distribution=shape)
    plans = launcher_for(made.job.spec).plans(made)
    each = [{*plan.env, *rank.env} for plan in plans for rank in plan.ranks]
    return set.intersection(*each)


@pytest.mark.parametrize("backend", list(SETS))
def test_job_has_only_the_variables_of_its_kind(backend: str) -> None:
    found = planned(backend)
    for name, variable in VARIABLES.items():
        if variable.by_node or "<" in name:
            continue
        if backend == "mpi" and name.startswith("OMPI_"):
            continue  # mpirun sets them itself
        assert (name in found) == (variable.when in SETS[backend]), name


def test_variable_of_end_time_is_the_grace_period(tmp_path: Path) -> None:
    config = ScriptRunConfig(str(tmp_path), "train.py")
    config.run_config.environment_variables[KILL_TIMEOUT] = "45"
    assert config.to_spec().grace_s == 45
    config.run_config.environment_variables[KILL_TIMEOUT] = "soon"
    with pytest.raises(RunConfigurationException, match="must be a number of seconds"):
        config.to_spec()


@pytest.mark.ray
def test_process_has_the_variables_of_its_node(local_target: LocalTarget, own_home: Path) -> None:
    source = own_home / "source"
    source.mkdir()
    (source / "train.py").write_text(
        "import json, os\nos.makedirs('outputs', exist_ok=True)\n"
        "json.dump(dict(os.environ), open('outputs/variables.json', 'w'))\n"
    )
    workspace = Workspace.create("ws", path=own_home / "w")
    config = ScriptRunConfig(str(source), "train.py", max_run_duration_seconds=600)
    began_s = time.time()
    run = Experiment(workspace, "e").submit(config)
    run.wait_for_completion()
    run.download_file("outputs/variables.json", str(own_home / "found.json"))
    workspace.close()
    found = json.loads((own_home / "found.json").read_text())
    for name, variable in VARIABLES.items():
        if variable.by_node:
            assert found[name], name
    assert began_s < int(found["AZUREML_RUN_TOKEN_EXPIRY"]) < time.time() + 600
