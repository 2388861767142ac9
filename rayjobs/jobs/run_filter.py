"""Filters a list of runs by type, tags, properties and state, as Azure ML does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.run_calls import conditions_of
from rayjobs.jobs.records import Job

# Azure ML's names of the kinds of runs.
RUN_TYPES = {
    "job": "azureml.scriptrun",
    "sweep": "hyperdrive",
    "interactive": "azureml.interactive",
    "pipeline": "azureml.PipelineRun",
}
# Azure ML's name for steps of pipelines, which are jobs or sweeps with this property.
STEP_TYPE = "azureml.StepRun"
STEP_OF = "azureml.pipelinerunid"


def type_of(kind: str) -> str:
    """Return the ``Run.type`` of a kind of job."""
    return RUN_TYPES.get(kind, RUN_TYPES["job"])


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Conditions, all of which a run must meet.

    Attributes:
        type: A kind of job (``job``, ``sweep``, ``array``, ``pipeline``, ``interactive``), or Azure
            ML's name for it (``azureml.scriptrun``, ``hyperdrive``), or ``azureml.StepRun`` for
            steps.
        tags: Tags that the run must have; a value of None accepts any value.
        properties: The same for properties.
        status: The run's state.
    """

    type: str | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict)
    properties: Mapping[str, str | None] = field(default_factory=dict)
    status: str | None = None

    @classmethod
    def of(
        cls, type: str | None = None, tags: Any = None, properties: Any = None, status: Any = None
    ) -> RunFilter:
        """Return a filter; `tags` and `properties` are a key, or a mapping of keys to values."""
        return cls(
            type=type,
            tags=conditions_of(tags),
            properties=conditions_of(properties),
            status=None if status is None else str(status),
        )

    def accepts(self, job: Job) -> bool:
        """Whether a run meets all conditions."""
        return (
            self.type in (None, *_types_of(job))
            and self.status in (None, str(job.state))
            and _has(job.tags, self.tags)
            and _has(job.properties, self.properties)
        )


def _types_of(job: Job) -> tuple[str, ...]:
    names = (job.kind, type_of(job.kind))
    return (*names, STEP_TYPE) if STEP_OF in job.properties else names


def _has(known: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(key in known and value in (None, known[key]) for key, value in wanted.items())
