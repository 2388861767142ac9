"""Compares several jobs: arguments, code, packages, data, settings, metrics."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import NotFoundError, SnapshotError
from rayjobs.data.pins import inputs_read
from rayjobs.datastore.errors import DatastoreError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results.metrics import Series, series, summaries
from rayjobs.results.values import named_arguments
from rayjobs.snapshots import git
from rayjobs.snapshots.listing import files_of

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.workspace.folder import OpenWorkspace

GIT = {
    "commit": "azureml.git.commit",
    "branch": "azureml.git.branch",
    "repository": "azureml.git.repository_uri",
    "dirty": "azureml.git.dirty",
}
SECTIONS = ("Job", "Arguments", "Code", "Packages", "Environment", "Data", "Resources", "Metrics")


@dataclass(frozen=True)
class Row:
    """One row of a comparison.

    Attributes:
        section: One of `SECTIONS`.
        values: One value per job, in order; None if a job has none.
    """

    section: str
    name: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        """Whether the jobs' values differ."""
        return any(value != self.values[0] for value in self.values[1:])


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison, and what could not be compared.

    Attributes:
        notes: Sentences about missing facts of a job.
    """

    jobs: tuple[Job, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def compare(workspace: OpenWorkspace, jobs: Sequence[Job]) -> Comparison:
    """Compare the jobs row by row, in the order of `SECTIONS`."""
    notes: list[str] = []
    facts = [_facts(workspace, job) for job in jobs]
    parts: Mapping[str, list[dict[str, Any]]] = {
        "Job": [_job(job) for job in jobs],
        "Arguments": [_arguments(job) for job in jobs],
        "Code": _code(workspace, jobs, notes),
        "Packages": [_packages(one) for one in facts],
        "Environment": [_environment(job, one) for job, one in zip(jobs, facts, strict=True)],
        "Data": [_data(workspace, job) for job in jobs],
        "Resources": [_resources(job) for job in jobs],
        "Metrics": [
            {one.name: one.last for one in summaries(workspace.store.metrics(job.id))}
            for job in jobs
        ],
    }
    rows = [
        Row(section, name, tuple(one.get(name) for one in parts[section]))
        for section in SECTIONS
        for name in dict.fromkeys(name for one in parts[section] for name in one)
    ]
    return Comparison(tuple(jobs), tuple(rows), tuple(notes))


def common_series(workspace: OpenWorkspace, jobs: Sequence[Job]) -> list[dict[str, Series]]:
    """Return each job's numeric series, of the metrics that at least two of them have."""
    found = [series(workspace.store.metrics(job.id)) for job in jobs]
    counts: dict[str, int] = {}
    for one in found:
        for name, values in one.items():
            counts[name] = counts.get(name, 0) + bool(values.finite)
    wanted = 2 if len(jobs) > 1 else 1
    return [
        {name: values for name, values in one.items() if counts[name] >= wanted} for one in found
    ]


def _job(job: Job) -> dict[str, Any]:
    ran_s = None
    if job.started_at is not None and job.ended_at is not None:
        ran_s = round((job.ended_at - job.started_at).total_seconds(), 3)
    return {
        "state": str(job.state),
        "failure": job.failure.message if job.failure else None,
        "experiment": job.experiment,
        "target": job.target,
        "user": job.user,
        "attempts": job.attempt,
        "ran (s)": ran_s,
        **{f"tag {key}": value for key, value in job.tags.items()},
    }


def _arguments(job: Job) -> dict[str, Any]:
    arguments = job.spec.arguments
    found: dict[str, Any] = dict(named_arguments(arguments))
    if job.spec.command:
        found["command"] = job.spec.command
    if arguments and not found:
        found["all"] = shlex.join(arguments)
    return found


def _facts(workspace: OpenWorkspace, job: Job) -> dict[str, Any]:
    """Return what the newest attempt recorded about its code and machine, or an empty mapping.

    Older records have none.
    """
    for attempt in reversed(workspace.store.attempts(job.id)):
        for host in attempt.hosts:
            if host.facts is None or not (found := host.facts.known()):
                continue
            if host.facts.packages is not None:
                found["packages"] = _stored_packages(workspace, host.facts.packages)
            return found
    return {}


def _stored_packages(workspace: OpenWorkspace, digest: str) -> dict[str, str]:
    try:
        listed = json.loads(workspace.store.catalogue.manifest(digest))
        return {str(name): str(version) for name, version in listed}
    except (DatastoreError, ValueError, TypeError):
        return {}  # pruned, or written by a later version


def _code(
    workspace: OpenWorkspace,
    jobs: Sequence[Job],
    notes: list[str],
) -> list[dict[str, Any]]:
    listings = _listings(workspace, jobs, notes)
    found: list[dict[str, Any]] = []
    for job, files in zip(jobs, listings, strict=True):
        one: dict[str, Any] = {"script": job.spec.script}
        one |= {
            f"git {name}": job.properties[key] for name, key in GIT.items() if key in job.properties
        }
        if diff := (git.of_properties(job.properties) or {}).get("diff"):
            one["git uncommitted changes"] = _short(str(diff))
        one["snapshot"] = _short(job.snapshot)
        one |= {path: _short(digest) for path, digest in sorted(files.items())}
        found.append(one)
    return found


def _listings(
    workspace: OpenWorkspace, jobs: Sequence[Job], notes: list[str]
) -> list[dict[str, str]]:
    """Return the files of each job's snapshot; each snapshot is read once."""
    known: dict[str, dict[str, str]] = {}
    for job in jobs:
        if job.snapshot is None or job.snapshot in known:
            continue
        try:
            known[job.snapshot] = files_of(job.snapshot, workspace.blobs.open)
        except (NotFoundError, SnapshotError) as error:
            known[job.snapshot] = {}
            notes.append(f"the files of {job.id} cannot be compared: {error}")
    return [known.get(job.snapshot or "", {}) for job in jobs]


def _short(digest: str | None) -> str | None:
    if digest is None or not digest.startswith("sha256:"):
        return digest
    return digest.partition(":")[2][:12]


def _packages(facts: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted((facts.get("packages") or {}).items()))


def _environment(job: Job, facts: Mapping[str, Any]) -> dict[str, Any]:
    spec = job.spec
    plain = {
        name: facts[name]
        for name in ("python", "torch", "machine", "cpu")
        if isinstance(facts.get(name), (str, int, float))
    }
    gpus = facts.get("gpus")
    if isinstance(gpus, Sequence) and not isinstance(gpus, str):
        models = [str(one.get("name")) for one in gpus if isinstance(one, Mapping)]
        plain |= {"GPUs": ", ".join(models)} if models else {}
    return {
        "interpreter": spec.environment_text or "the target's own",
        **{f"variable {name}": value for name, value in spec.environment_variables.items()},
        **plain,
    }


def _data(workspace: OpenWorkspace, job: Job) -> dict[str, Any]:
    found = {}
    for one in inputs_read(workspace.store, job):
        found[one.name] = f"{one.version or one.source} ({one.mode})"
    if job.spec.resume_from:
        found["resumes from"] = job.spec.resume_from
    return found


def _resources(job: Job) -> dict[str, Any]:
    shape, each = job.spec.distribution, job.spec.resources
    return {
        "nodes": shape.nodes,
        "processes per node": shape.processes_per_node,
        "backend": shape.backend,
        "CPUs per process": each.cpus,
        "GPUs per process": each.gpus,
        "memory per process (GiB)": each.memory_gib,
        "limit (s)": job.spec.max_duration_s,
    }
