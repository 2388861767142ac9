"""The class of a run's handle for each kind of job."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.run_filter import STEP_OF

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.run import JobRun
    from rayjobs.jobs.records import Job

# ``module:class``, imported on first use: higher packages define the other kinds, and a program
# may ask a workspace for its sweeps before it has imported those packages.
_CLASSES: dict[str, str] = {
    "sweep": "rayjobs.tuning.runs:HyperDriveRun",
    "interactive": "rayjobs.api.interactive:InteractiveRun",
    "pipeline": "rayjobs.pipelines.runs:PipelineRun",
}
STEP = "rayjobs.pipelines.runs:StepRun"


@dataclass(frozen=True)
class RunDto:
    """The record of a run, as a run factory gets it. Source: azureml-core 1.61, ``RunDto``."""

    run_id: str
    run_type: str
    status: str
    parent_run_id: str | None
    tags: Mapping[str, str]
    properties: Mapping[str, str]


RunFactory = Callable[["Experiment", RunDto], "JobRun"]
_factories: dict[str, RunFactory] = {}


def add_factory(run_type: str, factory: RunFactory) -> None:
    """Register a factory for the handles of all runs of a type.

    Raises:
        ValueError: the type already has one.
    """
    if run_type in _factories:
        raise ValueError(f"the type {run_type!r} already has a run factory")
    _factories[run_type] = factory


def class_of(kind: str) -> type[JobRun]:
    """Return the class of handles for a kind."""
    from rayjobs.api.run import JobRun

    where = _CLASSES.get(kind)
    return JobRun if where is None else _found(where)


def _found(where: str) -> type[JobRun]:
    module, _, name = where.partition(":")
    found: type[JobRun] = getattr(importlib.import_module(module), name)
    return found


def run_of(experiment: Experiment, job: Job) -> JobRun:
    """Return the handle of a job."""
    is_step = job.kind == "job" and STEP_OF in job.properties
    kind = _found(STEP) if is_step else class_of(job.kind)
    factory = _factories.get(kind.type)
    if factory is None:
        return kind(experiment, job.id)
    dto = RunDto(
        run_id=job.id,
        run_type=kind.type,
        status=str(job.state),
        parent_run_id=job.parent,
        tags=job.tags,
        properties=job.properties,
    )
    return factory(experiment, dto)
