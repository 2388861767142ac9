"""The environment variables of Azure ML v1 in a job: which are set, when, and to what.

Sources: ``Run.get_context`` of azureml-core, the variables of Azure's Batch AI and of Open MPI, and
torch's ``env://`` names.
"""

from __future__ import annotations

from enum import StrEnum

from rayjobs.injob.lazy_dataclass import dataclass


class When(StrEnum):
    """In which jobs a variable is set."""

    ALWAYS = "every job"
    LIMITED = "jobs with a time limit"
    RANKS = "jobs of several processes"
    MEETING = "jobs over gloo, nccl or MPI"
    MPI = "jobs over MPI"
    DATA = "jobs with this input or output"
    RESUMED = "jobs that resume"
    STEP = "steps with parameters"
    OWN = "jobs that set it themselves"
    NEVER = "no job"


@dataclass(frozen=True)
class Variable:
    """One variable.

    Attributes:
        when: In which jobs it is set.
        value: What it holds, or what to use instead of it.
        by_node: Whether the node sets it instead of the launch plan, as it differs by attempt.
    """

    when: When
    value: str
    by_node: bool = False


# `<name>` and `<NAME>` stand for the part of a name that the user chooses.
VARIABLES: dict[str, Variable] = {
    "AZUREML_RUN_ID": Variable(When.ALWAYS, "the run's id"),
    "AZUREML_ROOT_RUN_ID": Variable(When.ALWAYS, "the id of its sweep or pipeline, else its own"),
    "AZUREML_ARM_SUBSCRIPTION": Variable(When.ALWAYS, "as in `config.json`, else `local`"),
    "AZUREML_ARM_RESOURCEGROUP": Variable(When.ALWAYS, "as in `config.json`, else `local`"),
    "AZUREML_ARM_WORKSPACE_NAME": Variable(When.ALWAYS, "the workspace's name"),
    "AZUREML_ARM_PROJECT_NAME": Variable(When.ALWAYS, "the experiment's name"),
    "AZUREML_EXPERIMENT_ID": Variable(When.ALWAYS, "the workspace's id and the experiment's name"),
    "AZUREML_WORKSPACE_ID": Variable(When.ALWAYS, "the workspace's id"),
    "AZUREML_SERVICE_ENDPOINT": Variable(
        When.ALWAYS, "`rayjobs://WORKSPACE`, an address at which nothing answers"
    ),
    "AZUREML_DISCOVERY_SERVICE_ENDPOINT": Variable(When.ALWAYS, "the same"),
    "AZUREML_RUN_TOKEN": Variable(
        When.ALWAYS, "the attempt's token, which ends with the attempt", by_node=True
    ),
    "AZUREML_RUN_TOKEN_EXPIRY": Variable(
        When.LIMITED, "when the time limit ends the attempt, in seconds since 1970", by_node=True
    ),
    "AZUREML_TARGET_TYPE": Variable(When.ALWAYS, "`local` or `amlcompute`"),
    "AZUREML_COMMUNICATOR": Variable(When.ALWAYS, "`OpenMpi`, `Gloo`, `Nccl` or `None`"),
    "AZUREML_FRAMEWORK": Variable(When.ALWAYS, "`PyTorch` over gloo and nccl, else `Python`"),
    "AZUREML_CR_NODE_RANK": Variable(When.ALWAYS, "the node's number in the job"),
    "AZUREML_OUTPUT_DIRECTORY": Variable(When.ALWAYS, "the folder `outputs`"),
    "AZUREML_LOGDIRECTORY_PATH": Variable(When.ALWAYS, "the folder `logs`"),
    "AZ_BATCHAI_JOB_TEMP": Variable(When.ALWAYS, "the attempt's temporary folder on its node"),
    "AZ_BATCHAI_TASK_TYPE": Variable(When.ALWAYS, "`worker`"),
    "AZ_BATCHAI_TASK_INDEX": Variable(When.ALWAYS, "the process's rank"),
    "MLFLOW_TRACKING_URI": Variable(
        When.ALWAYS, "the attempt's MLflow endpoint, unless the job names one", by_node=True
    ),
    "AZUREML_DATAREFERENCE_<name>": Variable(When.DATA, "its path on the node"),
    "<name>": Variable(When.DATA, "the same"),
    "AZUREML_DATAREFERENCE_MODEL_LOCATION": Variable(When.RESUMED, "the checkpoint's folder"),
    "AML_PARAMETER_<NAME>": Variable(When.STEP, "the parameter's value"),
    "RANK": Variable(When.RANKS, "the process's rank"),
    "LOCAL_RANK": Variable(When.RANKS, "its number on its node"),
    "WORLD_SIZE": Variable(When.RANKS, "processes of the job"),
    "LOCAL_WORLD_SIZE": Variable(When.RANKS, "processes of the node"),
    "NODE_RANK": Variable(When.RANKS, "the node's number in the job"),
    "GROUP_RANK": Variable(When.RANKS, "the same"),
    "MASTER_ADDR": Variable(When.MEETING, "address of the first node"),
    "MASTER_PORT": Variable(When.MEETING, "a free port there; Azure's is 6105"),
    "AZ_BATCHAI_PYTORCH_INIT_METHOD": Variable(When.MEETING, "`tcp://ADDRESS:PORT` of the two"),
    "AZ_BATCH_MASTER_NODE": Variable(When.MEETING, "`ADDRESS:PORT` of the two"),
    "AZ_BATCHAI_MPI_MASTER_NODE": Variable(When.MPI, "address of the first node"),
    "OMPI_COMM_WORLD_RANK": Variable(When.MEETING, "the process's rank"),
    "OMPI_COMM_WORLD_SIZE": Variable(When.MEETING, "processes of the job"),
    "OMPI_COMM_WORLD_LOCAL_RANK": Variable(When.MEETING, "its number on its node"),
    "OMPI_COMM_WORLD_LOCAL_SIZE": Variable(When.MEETING, "processes of the node"),
    "AZUREML_OUTPUT_UPLOAD_TIMEOUT_SEC": Variable(
        When.OWN, "no effect: the upload at the end has no time limit"
    ),
    "AZUREML_RUN_KILL_SIGNAL_TIMEOUT_SEC": Variable(
        When.OWN, "becomes the job's grace period: the time between SIGTERM and SIGKILL"
    ),
    "TF_CONFIG": Variable(
        When.NEVER,
        "`TensorflowConfiguration` with several workers is refused: use `MpiConfiguration` with "
        "Horovod",
    ),
}
