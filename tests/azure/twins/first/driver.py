"""ScriptRunConfig, the PyTorch estimator and HyperDrive, as drivers of 2019 to 2021 use them."""

import os
import shutil

import azureml.core
from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.telemetry import set_diagnostics_collection
from azureml.train.dnn import PyTorch
from azureml.train.hyperdrive import (
    BanditPolicy,
    HyperDriveConfig,
    PrimaryMetricGoal,
    RandomParameterSampling,
    choice,
)
from azureml.widgets import RunDetails

print("SDK version:", azureml.core.VERSION)
set_diagnostics_collection(send_diagnostics=True)

ws = Workspace.from_config()
print(ws.name, ws.resource_group, ws.location, ws.subscription_id, sep="\n")

cluster_name = "cpu-cluster"
try:
    compute_target = ComputeTarget(workspace=ws, name=cluster_name)
    print("Found existing compute target.")
except ComputeTargetException:
    print("Creating a new compute target...")
    compute_config = AmlCompute.provisioning_configuration(vm_size="STANDARD_D2_V2", max_nodes=4)
    compute_target = ComputeTarget.create(ws, cluster_name, compute_config)
    compute_target.wait_for_completion(show_output=True, min_node_count=None)
assert type(compute_target) is AmlCompute
print(compute_target.get_status().serialize())

project_folder = "./project"
os.makedirs(project_folder, exist_ok=True)
shutil.copy("train.py", project_folder)
experiment = Experiment(ws, name="first-twin")

src = ScriptRunConfig(
    source_directory=project_folder,
    script="train.py",
    arguments=["--epochs", 3],
    compute_target=compute_target,
)
run = experiment.submit(src)
RunDetails(run).show()
run.wait_for_completion(show_output=True)
print("metrics", sorted(run.get_metrics()))
assert run.get_status() == "Completed"
model = run.register_model(model_name="first-twin", model_path="outputs/model.pt")
print("registered", model.name, model.version)

estimator = PyTorch(
    source_directory=project_folder,
    script_params={"--epochs": 2},
    compute_target=compute_target,
    entry_script="train.py",
    use_gpu=False,
)
est_run = experiment.submit(estimator)
est_run.wait_for_completion()
print("estimator", est_run.get_status())

sweep = HyperDriveConfig(
    estimator=estimator,
    hyperparameter_sampling=RandomParameterSampling({"--lr": choice(0.05, 0.2)}),
    policy=BanditPolicy(evaluation_interval=1, slack_factor=0.5, delay_evaluation=2),
    primary_metric_name="accuracy",
    primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
    max_total_runs=2,
    max_concurrent_runs=2,
)
hyperdrive_run = experiment.submit(sweep)
hyperdrive_run.wait_for_completion()
best = hyperdrive_run.get_best_run_by_primary_metric()
print("best", best.get_details()["runDefinition"]["arguments"])
