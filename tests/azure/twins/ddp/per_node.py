"""DistributedDataParallel per node: PyTorch's own launcher starts the processes of a node."""

import sys
from pathlib import Path

from azureml.core import Dataset, Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import PyTorchConfiguration

ws = Workspace.from_config()
source = str(Path(__file__).parent.joinpath("src"))
datastore = ws.get_default_datastore()
dataset = Dataset.File.upload_directory(src_dir="cifar-10", target=(datastore, "cifar-10"))
distr_config = PyTorchConfiguration(node_count=2)
launch_cmd = [
    f"{sys.executable} -m torch.distributed.run --nproc_per_node 1 --nnodes 2 "
    "--node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT "
    "train.py --data-dir",
    dataset.as_download(),
    "--epochs 2",
]
src = ScriptRunConfig(
    source_directory=source,
    command=launch_cmd,
    compute_target="gpu-cluster",
    distributed_job_config=distr_config,
)
run = Experiment(ws, "ddp-twin").submit(src)
run.wait_for_completion(show_output=True)
print("per node", run.get_metrics()["world"], run.get_metrics()["accuracy"])
