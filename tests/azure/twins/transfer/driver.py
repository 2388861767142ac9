"""Transfer learning with the PyTorch estimator, a sweep over it, and the best model registered."""

import os
import shutil

import torch
from azureml.core import Dataset, Experiment, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.train.dnn import PyTorch
from azureml.train.hyperdrive import (
    BanditPolicy,
    HyperDriveConfig,
    PrimaryMetricGoal,
    RandomParameterSampling,
    uniform,
)
from azureml.widgets import RunDetails

ws = Workspace.from_config()
cluster_name = "gpu-cluster"
try:
    compute_target = ComputeTarget(workspace=ws, name=cluster_name)
except ComputeTargetException:
    config = AmlCompute.provisioning_configuration(vm_size="STANDARD_NC6", max_nodes=4)
    compute_target = ComputeTarget.create(ws, cluster_name, config)
    compute_target.wait_for_completion(show_output=True)

# The frozen weights below the trained layer.
from network import features  # noqa: E402 - as notebooks do

os.makedirs("weights", exist_ok=True)
torch.manual_seed(0)
torch.save(features().state_dict(), "weights/features.pt")
store = ws.get_default_datastore()
store.upload(src_dir="weights", target_path="weights", overwrite=True, show_progress=False)
weights = Dataset.File.from_files((store, "weights/features.pt"))

project_folder = "./pytorch-birds"
os.makedirs(project_folder, exist_ok=True)
for name in ("pytorch_train.py", "network.py"):
    shutil.copy(name, project_folder)

experiment = Experiment(ws, name="pytorch-birds")
estimator = PyTorch(
    source_directory=project_folder,
    script_params={
        "--num_epochs": 3,
        "--weights": weights.as_named_input("weights").as_mount(),
        "--output_dir": "./outputs",
    },
    compute_target=compute_target,
    entry_script="pytorch_train.py",
    use_gpu=True,
    framework_version="1.4",
)
run = experiment.submit(estimator)
RunDetails(run).show()
run.wait_for_completion(show_output=True)

hyperdrive_config = HyperDriveConfig(
    estimator=estimator,
    hyperparameter_sampling=RandomParameterSampling({"learning_rate": uniform(0.05, 0.5)}),
    policy=BanditPolicy(slack_factor=0.15, evaluation_interval=1, delay_evaluation=10),
    primary_metric_name="best_val_acc",
    primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
    max_total_runs=2,
    max_concurrent_runs=2,
)
hyperdrive_run = experiment.submit(hyperdrive_config)
hyperdrive_run.wait_for_completion(show_output=True)
assert hyperdrive_run.get_status() == "Completed"
best_run = hyperdrive_run.get_best_run_by_primary_metric()
best_run_metrics = best_run.get_metrics()
print("Best Run is:", best_run.id, best_run_metrics["best_val_acc"][-1])
model = best_run.register_model(model_name="pytorch-birds", model_path="outputs/model.pt")
print(model.name, model.id, model.version, sep="\t")
