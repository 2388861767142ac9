"""Pipelines: steps that pass data to each other, each a job in the queue.

`pipeline_file` reads a file, `planning` makes the rows of a run, `reuse` decides which steps take
earlier results, `submitter` writes the run, `scheduling` starts runs of schedules.

Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# name → module that defines it
_LAZY = {
    "InputPortBinding": "rayjobs.pipelines.data",
    "MpiStep": "rayjobs.pipelines.mpi_step",
    "CommandStep": "rayjobs.pipelines.script_steps",
    "EstimatorStep": "rayjobs.pipelines.script_steps",
    "HyperDriveStep": "rayjobs.pipelines.script_steps",
    "ModuleStep": "rayjobs.pipelines.script_steps",
    "HyperDriveStepRun": "rayjobs.pipelines.runs",
    "PublishedPipeline": "rayjobs.pipelines.published",
    "ParallelRunConfig": "rayjobs.pipelines.parallel_step",
    "ParallelRunStep": "rayjobs.pipelines.parallel_step",
    "PipelineEndpoint": "rayjobs.pipelines.published",
    "Pipeline": "rayjobs.pipelines.pipeline",
    "PipelineData": "rayjobs.pipelines.data",
    "PipelineDataset": "rayjobs.pipelines.data",
    "PipelineParameter": "rayjobs.pipelines.data",
    "PipelineRun": "rayjobs.pipelines.runs",
    "PipelineStep": "rayjobs.pipelines.steps",
    "PortDataReference": "rayjobs.pipelines.runs",
    "PythonScriptStep": "rayjobs.pipelines.script_steps",
    "Schedule": "rayjobs.pipelines.schedule",
    "ScheduleRecurrence": "rayjobs.pipelines.recurrence",
    "TimeZone": "rayjobs.pipelines.recurrence",
    "StepRun": "rayjobs.pipelines.runs",
    "StepRunOutput": "rayjobs.pipelines.runs",
    "StepSequence": "rayjobs.pipelines.steps",
    "TrainingOutput": "rayjobs.pipelines.data",
}

__all__ = list(_LAZY)

if TYPE_CHECKING:
    from rayjobs.pipelines.data import InputPortBinding as InputPortBinding
    from rayjobs.pipelines.data import PipelineData as PipelineData
    from rayjobs.pipelines.data import PipelineDataset as PipelineDataset
    from rayjobs.pipelines.data import PipelineParameter as PipelineParameter
    from rayjobs.pipelines.data import TrainingOutput as TrainingOutput
    from rayjobs.pipelines.mpi_step import MpiStep as MpiStep
    from rayjobs.pipelines.parallel_step import ParallelRunConfig as ParallelRunConfig
    from rayjobs.pipelines.parallel_step import ParallelRunStep as ParallelRunStep
    from rayjobs.pipelines.pipeline import Pipeline as Pipeline
    from rayjobs.pipelines.published import PipelineEndpoint as PipelineEndpoint
    from rayjobs.pipelines.published import PublishedPipeline as PublishedPipeline
    from rayjobs.pipelines.recurrence import ScheduleRecurrence as ScheduleRecurrence
    from rayjobs.pipelines.recurrence import TimeZone as TimeZone
    from rayjobs.pipelines.runs import HyperDriveStepRun as HyperDriveStepRun
    from rayjobs.pipelines.runs import PipelineRun as PipelineRun
    from rayjobs.pipelines.runs import PortDataReference as PortDataReference
    from rayjobs.pipelines.runs import StepRun as StepRun
    from rayjobs.pipelines.runs import StepRunOutput as StepRunOutput
    from rayjobs.pipelines.schedule import Schedule as Schedule
    from rayjobs.pipelines.script_steps import CommandStep as CommandStep
    from rayjobs.pipelines.script_steps import EstimatorStep as EstimatorStep
    from rayjobs.pipelines.script_steps import HyperDriveStep as HyperDriveStep
    from rayjobs.pipelines.script_steps import ModuleStep as ModuleStep
    from rayjobs.pipelines.script_steps import PythonScriptStep as PythonScriptStep
    from rayjobs.pipelines.steps import PipelineStep as PipelineStep
    from rayjobs.pipelines.steps import StepSequence as StepSequence


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
