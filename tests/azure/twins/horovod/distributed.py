"""Horovod through the PyTorch estimator: two nodes, MPI between them."""

import os
import shutil

from azureml.core import Experiment, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.runconfig import MpiConfiguration
from azureml.train.dnn import PyTorch

ws = Workspace.from_config()
cluster_name = "gpu-cluster"
try:
    compute_target = ComputeTarget(workspace=ws, name=cluster_name)
except ComputeTargetException:
    config = AmlCompute.provisioning_configuration(vm_size="STANDARD_NC6", max_nodes=4)
    compute_target = ComputeTarget.create(ws, cluster_name, config)
    compute_target.wait_for_completion(show_output=True)

project_folder = "./pytorch-distr-hvd"
os.makedirs(project_folder, exist_ok=True)
shutil.copy("pytorch_horovod_mnist.py", project_folder)
estimator = PyTorch(
    source_directory=project_folder,
    compute_target=compute_target,
    entry_script="pytorch_horovod_mnist.py",
    script_params={"--epochs": 2},
    node_count=2,
    process_count_per_node=1,
    distributed_training=MpiConfiguration(),
    use_gpu=True,
)
run = Experiment(ws, name="pytorch-distr-hvd").submit(estimator)
run.wait_for_completion(show_output=True)
print("metrics", run.get_metrics())
