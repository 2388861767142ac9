"""Getting started, data dependency, parameters, reuse, an MPI step, and a sweep as a step."""

import os

from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.data.datapath import DataPath, DataPathComputeBinding
from azureml.pipeline.core import (
    Pipeline,
    PipelineData,
    PipelineEndpoint,
    PipelineParameter,
    PublishedPipeline,
    TrainingOutput,
)
from azureml.pipeline.steps import (
    HyperDriveStep,
    HyperDriveStepRun,
    MpiStep,
    PythonScriptStep,
)
from azureml.train.hyperdrive import (
    GridParameterSampling,
    HyperDriveConfig,
    PrimaryMetricGoal,
    choice,
)

ws = Workspace.from_config()
store = ws.get_default_datastore()
os.makedirs("upload", exist_ok=True)
for name, numbers in (("one", "1\n2\n3\n"), ("two", "10\n20\n")):
    with open(os.path.join("upload", "numbers.txt"), "w") as f:
        f.write(numbers)
    store.upload_files(["upload/numbers.txt"], target_path="in/" + name, overwrite=True)

try:
    target = ComputeTarget(workspace=ws, name="cpu-cluster")
except ComputeTargetException:
    config = AmlCompute.provisioning_configuration(vm_size="STANDARD_D2_V2", max_nodes=4)
    target = ComputeTarget.create(ws, "cpu-cluster", config)
    target.wait_for_completion(show_output=True, timeout_in_minutes=10)

data = PipelineParameter(name="data", default_value=DataPath(store, "in/one"))
data_input = (data, DataPathComputeBinding(mode="mount"))
scale = PipelineParameter(name="scale", default_value=1)
prepared = PipelineData("prepared", datastore=store)
model = PipelineData("model", datastore=store, pipeline_output_name="the_model")
report = PipelineData("report", datastore=store, is_directory=True)

prepare = PythonScriptStep(
    name="prepare",
    script_name="prepare.py",
    arguments=["--input_data", data_input, "--output_data", prepared, "--scale", scale],
    inputs=[data_input],
    outputs=[prepared],
    compute_target=target,
    source_directory="scripts",
)
train = PythonScriptStep(
    name="train",
    script_name="train.py",
    arguments=["--data", prepared, "--model", model],
    inputs=[prepared],
    outputs=[model],
    params={"LEVEL": PipelineParameter("LEVEL", "low")},
    compute_target=target,
    source_directory="scripts",
)
spread = MpiStep(
    name="spread",
    source_directory="scripts",
    script_name="distributed.py",
    arguments=["--model", model, "--report", report],
    compute_target=target,
    node_count=PipelineParameter("nodes", 2),
    process_count_per_node=1,
    inputs=[model],
    outputs=[report],
    allow_reuse=True,
    version="1",
    hash_paths=["distributed.py"],
    use_gpu=False,
    use_docker=True,
    environment_variables={"MINE": "1"},
)
sweep_config = HyperDriveConfig(
    run_config=ScriptRunConfig("scripts", script="train.py", compute_target=target),
    hyperparameter_sampling=GridParameterSampling({"--rate": choice(0.25, 0.75)}),
    primary_metric_name="score",
    primary_metric_goal=PrimaryMetricGoal.MAXIMIZE,
    max_total_runs=2,
    max_concurrent_runs=2,
)
metrics = PipelineData("metrics_data", datastore=store, training_output=TrainingOutput("Metrics"))
best = PipelineData(
    "best_model",
    datastore=store,
    training_output=TrainingOutput("Model", model_file="outputs/model.json"),
)
search = HyperDriveStep(
    name="search",
    hyperdrive_config=sweep_config,
    estimator_entry_script_arguments=["--data", prepared],
    inputs=[prepared],
    outputs=[metrics, best],
)
compare = PythonScriptStep(
    name="compare",
    script_name="compare.py",
    arguments=["--metrics", metrics.as_input("all_metrics"), "--best", best],
    inputs=[metrics.as_input("all_metrics"), best],
    compute_target=target,
    source_directory="scripts",
    allow_reuse=False,
)
compare.run_after(spread)

pipeline = Pipeline(workspace=ws, steps=[spread, compare])
print("problems", pipeline.validate())
experiment = Experiment(ws, "pipelines-twin")
run = experiment.submit(pipeline, pipeline_parameters={"scale": 2})
print("status", run.wait_for_completion())
for step in run.get_steps():
    print("step", step.name, step.get_status(), sorted(step.get_outputs()))
output = run.get_pipeline_output("the_model")
output.download("got")
with open(os.path.join("got", output.path_on_datastore)) as f:
    print("model", f.read())
print("log", run.find_step_run("train")[0].get_stdout_log().strip())
print("ranks", run.find_step_run("spread")[0].get_output_data("report").download("got"))
best_run = HyperDriveStepRun(run.find_step_run("search")[0]).get_best_run_by_primary_metric()
print("best", best_run.get_metrics()["score"])
print("compare", run.find_step_run("compare")[0].get_stdout_log().strip())

again = experiment.submit(pipeline, pipeline_parameters={"scale": 2})
again.wait_for_completion(show_output=False)
print("reused", sorted(step.name for step in again.get_steps() if step.is_reused))

other = experiment.submit(
    pipeline, pipeline_parameters={"data": DataPath(store, "in/two"), "nodes": 1}
)
other.wait_for_completion(show_output=False)
print("other", other.find_step_run("train")[0].get_metrics()["total"])
print("reused", sorted(step.name for step in other.get_steps() if step.is_reused))

published = pipeline.publish(name="twin", description="all steps", version="1.0")
print("published", published.name, published.version, published.status)
found = PublishedPipeline.get(ws, published.id)
rest = found.submit(ws, "pipelines-twin", pipeline_parameters={"scale": 2})
rest.wait_for_completion(show_output=False)
print("reused", sorted(step.name for step in rest.get_steps() if step.is_reused))
endpoint = PipelineEndpoint.publish(ws, name="twin-endpoint", pipeline=published, description="")
endpoint.add_default(published)
print("endpoint", endpoint.default_version, endpoint.get_all_versions())
found.disable()
print("active", len(PublishedPipeline.list(ws)))
