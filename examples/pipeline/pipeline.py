"""The pipeline of pipeline.yaml, in Python: ``python examples/pipeline/pipeline.py``."""

from pathlib import Path

from rayjobs import (
    Experiment,
    Pipeline,
    PipelineData,
    PipelineParameter,
    PythonScriptStep,
    Workspace,
)

source = Path(__file__).parent / "src"
ws = Workspace.from_config()
points = PipelineData("points", is_directory=True)
model = PipelineData("model", is_directory=True)
prepare = PythonScriptStep(
    "prepare.py",
    "prepare",
    arguments=["--out", points],
    outputs=[points],
    source_directory=source,
)
train = PythonScriptStep(
    "train.py",
    "train",
    arguments=[
        "--data",
        points,
        "--model",
        model,
        "--epochs",
        PipelineParameter("epochs", 3),
    ],
    inputs=[points],
    outputs=[model],
    source_directory=source,
)
run = Experiment(ws, "line").submit(Pipeline(ws, [train]), pipeline_parameters={"epochs": 5})
run.wait_for_completion()
run.find_step_run("train")[0].get_output_data("model").download("here")
