"""DistributedDataParallel per process, as azureml-examples has it, on a cluster named by text."""

from pathlib import Path

from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import PyTorchConfiguration

ws = Workspace.from_config()
source = str(Path(__file__).parent.joinpath("src"))
distr_config = PyTorchConfiguration(process_count=2, node_count=2)
src = ScriptRunConfig(
    source_directory=source,
    script="train.py",
    arguments=["--epochs", 2],
    compute_target="gpu-cluster",
    distributed_job_config=distr_config,
)
run = Experiment(ws, "ddp-twin").submit(src)
run.wait_for_completion(show_output=True)
print("losses", len(run.get_metrics()["loss"]))
