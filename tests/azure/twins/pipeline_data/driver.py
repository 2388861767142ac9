"""Outputs as inputs, a step over many files, an estimator, a command, and a schedule."""

import os
import time
from datetime import datetime, timedelta

from azureml.core import Environment, Experiment, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.data import OutputFileDatasetConfig
from azureml.pipeline.core import Pipeline, PipelineData
from azureml.pipeline.core.schedule import Schedule, ScheduleRecurrence, TimeZone
from azureml.pipeline.steps import (
    CommandStep,
    EstimatorStep,
    ParallelRunConfig,
    ParallelRunStep,
    PythonScriptStep,
)
from azureml.train.estimator import Estimator

ws = Workspace.from_config()
store = ws.get_default_datastore()
target = ComputeTarget.create(
    ws, "cpu-cluster", AmlCompute.provisioning_configuration(vm_size="STANDARD_D2_V2", max_nodes=4)
)
target.wait_for_completion(show_output=False)

pages = OutputFileDatasetConfig(name="pages", destination=(store, "pages/{run-id}"))
write = PythonScriptStep(
    name="write",
    script_name="write.py",
    arguments=["--out", pages.as_upload(overwrite=False), "--count", 6],
    compute_target=target,
    source_directory="scripts",
)
lengths = PipelineData("lengths", datastore=store)
measure = ParallelRunStep(
    name="measure",
    parallel_run_config=ParallelRunConfig(
        environment=Environment("measure"),
        entry_script="measure.py",
        source_directory="scripts",
        output_action="append_row",
        append_row_file_name="lengths.txt",
        mini_batch_size="2",
        error_threshold=0,
        compute_target=target,
        node_count=2,
        process_count_per_node=1,
        run_invocation_timeout=60,
    ),
    inputs=[pages.as_input("pages").as_mount()],
    output=lengths,
    allow_reuse=True,
)
total = PipelineData("total", datastore=store)
add = EstimatorStep(
    name="add",
    estimator=Estimator(source_directory="scripts", entry_script="add.py", compute_target=target),
    estimator_entry_script_arguments=["--lengths", lengths, "--total", total],
    inputs=[lengths],
    outputs=[total],
    compute_target=target,
)
show = CommandStep(
    name="show",
    command=["cat", total.as_download(), "&& ls", pages.as_input().as_download(), "| wc -l"],
    inputs=[total.as_download()],
    compute_target=target,
    source_directory="scripts",
)

pipeline = Pipeline(workspace=ws, steps=[show])
run = Experiment(ws, "pipeline-data").submit(pipeline)
print("status", run.wait_for_completion(show_output=False))
print("steps", [step.name for step in run.get_steps()])
output = run.find_step_run("measure")[0].get_output_data("lengths")
output.download("got")
with open(os.path.join("got", output.path_on_datastore, "lengths.txt")) as f:
    print("lengths", f.read().split())
print("show", run.find_step_run("show")[0].get_stdout_log().split())

published = pipeline.publish(name="nightly", description="", version="1")
soon = (datetime.utcnow() + timedelta(seconds=5)).isoformat(timespec="seconds")
schedule = Schedule.create(
    ws,
    name="every-day",
    pipeline_id=published.id,
    experiment_name="scheduled",
    recurrence=ScheduleRecurrence(
        frequency="Day",
        interval=1,
        start_time=soon,
        time_zone=TimeZone.UTC,
    ),
    wait_for_provisioning=True,
)
print("schedule", schedule.name, schedule.status, schedule.recurrence.frequency)
while (last := schedule.get_last_pipeline_run()) is None:
    time.sleep(0.2)
print("scheduled", last.wait_for_completion(show_output=False))
print("reused", sorted(step.name for step in last.get_steps() if step.is_reused))
print("listed", [one.id == schedule.id for one in Schedule.list(ws, pipeline_id=published.id)])
schedule.disable(wait_for_provisioning=True)
print("now", schedule.status, Schedule.list(ws))
