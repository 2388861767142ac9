"""All details of a run, under Azure ML's keys: ``Run.get_details()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import to_text
from rayjobs.data import pins
from rayjobs.jobs.records import Job
from rayjobs.results.logs import Logs

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


def details_of(opened: OpenWorkspace, job: Job) -> dict[str, Any]:
    """Return the details of a run as plain JSON data."""
    store = opened.store
    stored = {one.name for one in store.files(job.id)}
    spec = job.spec
    found: dict[str, Any] = {
        "runId": job.id,
        "target": job.target,
        "status": str(job.state),
        "startTimeUtc": None if job.started_at is None else to_text(job.started_at),
        "endTimeUtc": None if job.ended_at is None else to_text(job.ended_at),
        "properties": {"ContentSnapshotId": job.snapshot or "", **job.properties},
        "inputDatasets": pins.input_datasets(store, job),
        "outputDatasets": pins.output_datasets(store, job),
        "runDefinition": {
            "script": spec.script,
            "command": spec.command,
            "arguments": list(spec.arguments),
            "target": job.target,
            "nodeCount": spec.distribution.nodes,
            "environmentVariables": dict(spec.environment_variables),
            "maxRunDurationSeconds": spec.max_duration_s,
        },
        "logFiles": {
            name: f"rayjobs://{opened.name}/{job.id}/{name}" if name in stored else ""
            for name in Logs(opened, job.id).names()
        },
        "submittedBy": job.user,
        "tags": dict(job.tags),
        "attempt": job.attempt,
    }
    if job.failure is not None:
        found["error"] = {
            "error": {
                "code": str(job.failure.failure_class),
                "message": job.failure.message,
                "details": [*job.failure.lines],
                "rank": job.failure.rank,
                "exitCode": job.failure.exit_code,
                "signal": job.failure.signal,
            }
        }
    return found
