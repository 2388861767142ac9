"""The lineage of a model as plain data: its run, and all that determined its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.core.clock import to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.version import __version__
from rayjobs.data import pins
from rayjobs.jobs.records import INTERACTIVE, Job, MetricPoint
from rayjobs.jobs.states import JobState
from rayjobs.models.files import ChosenFiles
from rayjobs.results import metrics
from rayjobs.snapshots import git
from rayjobs.store.base import Store

RUNS_SHOWN = 10
VERSION = 1
DATA_KEYS = ("name", "source", "mode", "version", "dataset", "dataset_id", "files", "bytes")

FACT_KEYS = (
    *("python", "implementation", "packages", "package_count", "torch", "torch_built_for"),
    *("machine", "system", "cpu", "cpus", "memory_bytes", "gpus"),
)


def find_run(store: Store, text: str) -> Job:
    """Return the run that `text` names, for a registration.

    Raises:
        NotFoundError: there is none.
        UsageError: several have this name; the message lists those that have completed.
    """
    try:
        return store.find(text)
    except UsageError as error:
        matches = error.values.get("matches", ())
        named = [store.job(one) for one in matches]
        completed = [one for one in named if one.state is JobState.COMPLETED]
        if not completed:
            raise
    shown = "\n".join(
        f"  {one.id}  {one.display_name or one.spec.name}" for one in completed[:RUNS_SHOWN]
    )
    more = "\n  …" if len(completed) > RUNS_SHOWN else ""
    raise UsageError(
        f"{text!r} names {len(named)} runs; a model comes from one that has completed. "
        f"Give its id:\n{shown}{more}",
        matches=matches,
    )


def refuse_without(job: Job, *, at_its_end: bool = False) -> None:
    """Refuse a run from which no model can be registered.

    Args:
        at_its_end: The run is about to end: its files are stored, and it becomes Completed next.

    Raises:
        UsageError: it has not completed, or its code is unknown.
    """
    if job.kind == "sweep":
        raise UsageError(
            f"{job.id} is a sweep, which runs nothing itself; register one of its runs, the best "
            f"by `rayjobs sweep best`"
        )
    if job.kind == "array":
        raise UsageError(
            f"{job.id} is an array, which runs nothing itself; register one of its members, such "
            f"as '{job.id}[0]'"
        )
    is_written = job.kind == INTERACTIVE and job.state is JobState.RUNNING
    expected = JobState.FINALIZING if at_its_end else JobState.COMPLETED
    if job.state is not expected and not is_written:
        ended = "has ended as" if job.state.is_final else "is"
        raise UsageError(
            f"run {job.id} {ended} {job.state}: only a completed run can become a model",
            run=job.id,
        )
    if job.snapshot is None:
        instead = (
            "start it with Experiment.start_logging(snapshot_directory=...), or register a "
            "downloaded copy of the file with Model.register"
            if job.kind == INTERACTIVE
            else "submit it with its source directory (--source)"
        )
        raise UsageError(
            f"run {job.id} has no snapshot of its code, so a model of it would have no "
            f"lineage; {instead}",
            run=job.id,
        )


def primary_metric(
    store: Store,
    points: Sequence[MetricPoint],
    run: str,
    name: str,
    value: float | None = None,
) -> float:
    """Return the value of the metric by which a model is chosen: `value`, else the last one.

    Raises:
        UsageError: the run has not logged the value, or it or the last value is not finite.
    """
    logged = metrics.series(points).get(name)
    if logged is None or not logged.values:
        known = ", ".join(sorted(metrics.series(points))) or "none"
        raise UsageError(f"run {run} has not logged the metric {name!r}; it has: {known}")
    chosen = logged.last if value is None else value
    if not math.isfinite(chosen):
        raise UsageError(f"{name} of run {run} is {chosen}: only a finite value makes a model")
    if not math.isfinite(logged.last):
        raise UsageError(
            f"the last {name} of run {run} is {logged.last}: it diverged after its best "
            f"value, so its files cannot become a model"
        )
    # A sweep may have chosen by a point that the points of a retry have since replaced.
    ever = metrics.series(store.metrics(run, name=name, all_attempts=True))[name]
    if chosen not in ever.values:
        raise UsageError(
            f"run {run} has not logged {name} = {chosen:g}; its last is {logged.last:g}"
        )
    return chosen


def primary_of(
    store: Store,
    job: Job,
    points: Sequence[MetricPoint],
    name: str | None,
    value: float | None = None,
) -> dict[str, Any] | None:
    """Return the metric by which a model is chosen, with its value; None if there is none.

    For a trial, the sweep's own metric is always checked too, however the trial is registered.

    Args:
        name: The metric that was named; None takes the sweep's, if the run logged it.

    Raises:
        UsageError: see `primary_metric`.
    """
    swept = _metric_of_sweep(store, job)
    if swept is not None and swept != name and swept in metrics.series(points):
        found = primary_metric(store, points, job.id, swept)
        if name is None:
            return {"name": swept, "value": found}
    if name is None:
        return None
    return {"name": name, "value": primary_metric(store, points, job.id, name, value)}


def _metric_of_sweep(store: Store, job: Job) -> str | None:
    if job.parent is None:
        return None
    try:
        # The rest of a sweep's definition is known only to `rayjobs.tuning`, a higher layer.
        metric = store.sweep(job.parent).spec.get("metric")
    except NotFoundError:
        return None  # pruned, or a parent of another kind
    return metric if isinstance(metric, str) else None


def lineage_of(
    store: Store,
    job: Job,
    chosen: ChosenFiles,
    points: Sequence[MetricPoint],
    *,
    primary: Mapping[str, Any] | None = None,
    configuration: Mapping[str, Any] | None = None,
    sweep: str | None = None,
) -> dict[str, Any]:
    """Return a model's lineage as JSON data; docs/guides/models.md says what each part means."""
    spec = job.spec
    return {
        "version": VERSION,
        "run": job.id,
        "attempt": job.attempt,
        "experiment": job.experiment,
        "sweep": sweep or job.parent,
        "snapshot": job.snapshot,
        "git": git.of_properties(job.properties),
        "entry": spec.entry,
        "environment": {
            "interpreter": spec.environment_text or "the target's own",
            "target": job.target,
            "variables": dict(spec.environment_variables),
            "rayjobs": __version__,
            **_ran_with(store, job),
        },
        "data": data_of(store, job),
        "resume_from": spec.resume_from,
        "configuration": {
            "arguments": list(spec.arguments),
            **({"parameters": dict(configuration)} if configuration else {}),
        },
        "distribution": spec.distribution.model_dump(mode="json"),
        "metrics": {
            name: _json_number(found.last) for name, found in metrics.series(points).items()
        },
        "primary_metric": dict(primary) if primary else None,
        "path": chosen.path,
        "files": {one.name: one.digest for one in chosen.files},
        "left_out": list(chosen.left_out),
        "started_at": None if job.started_at is None else to_text(job.started_at),
        "ended_at": None if job.ended_at is None else to_text(job.ended_at),
    }


def _ran_with(store: Store, job: Job) -> dict[str, Any]:
    """Return the facts about the last attempt's environment, of the first node that has any."""
    for attempt in reversed(store.attempts(job.id)):
        for host in attempt.hosts:
            facts = {} if host.facts is None else host.facts.known()
            if attempt.number == job.attempt and facts:
                return {key: facts[key] for key in FACT_KEYS if facts.get(key)}
    return {}


def data_of(store: Store, job: Job) -> list[dict[str, Any]]:
    """Return what a completed run read: its inputs, each with the version that it got.

    Raises:
        UsageError: the version of an input is unknown.
    """
    found = pins.inputs_read(store, job)
    for one in found:
        if one.attempt != job.attempt:
            raise UsageError(
                f"it is not known which version of its input {one.name!r} run {job.id} read, "
                f"so a model of it would have no lineage",
                run=job.id,
            )
    facts = [one.to_json() for one in found]
    return [{key: one[key] for key in DATA_KEYS if one.get(key)} for one in facts]


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
