"""Which class is the handle on a run, by its job's kind."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.run import JobRun
    from rayjobs.jobs.records import Job

# ``module:class``, imported when first needed: this package is below those that define the other
# kinds, and a workspace is asked for its sweeps before anybody has imported them.
_CLASSES: dict[str, str] = {"sweep": "rayjobs.tuning.runs:HyperDriveRun"}


def class_of(kind: str) -> type[JobRun]:
    """Return the class of a kind's handles."""
    from rayjobs.api.run import JobRun

    where = _CLASSES.get(kind)
    if where is None:
        return JobRun
    module, _, name = where.partition(":")
    found: type[JobRun] = getattr(importlib.import_module(module), name)
    return found


def run_of(experiment: Experiment, job: Job) -> JobRun:
    """Return the handle on a job."""
    return class_of(job.kind)(experiment, job.id)
