"""DistributedDataParallel per process, as in azureml-examples, on a cluster named by a string."""

import os
import tarfile
import urllib.request
from pathlib import Path

from azureml.core import Dataset, Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import PyTorchConfiguration

ws = Workspace.from_config()
source = str(Path(__file__).parent.joinpath("src"))
data_root = "cifar-10"
if not os.path.isdir(data_root):
    os.makedirs(data_root, exist_ok=True)
    path = os.path.join(data_root, "cifar.tar.gz")
    urllib.request.urlretrieve("https://data.invalid/cifar.tar.gz", path)
    with tarfile.open(path, "r:gz") as tar:
        tar.extractall(path=data_root, filter="data")
    os.remove(path)
datastore = ws.get_default_datastore()
dataset = Dataset.File.upload_directory(src_dir=data_root, target=(datastore, data_root))
distr_config = PyTorchConfiguration(process_count=2, node_count=2)
src = ScriptRunConfig(
    source_directory=source,
    script="train.py",
    arguments=["--data-dir", dataset.as_download(), "--epochs", 2],
    compute_target="gpu-cluster",
    distributed_job_config=distr_config,
)
run = Experiment(ws, "ddp-twin").submit(src)
run.wait_for_completion(show_output=True)
print("per process", run.get_metrics()["world"], run.get_metrics()["accuracy"])
