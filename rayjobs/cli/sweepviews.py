"""Sweeps as JSON and as text: what `rayjobs sweep` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.cli.naming import newest_named
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.cli.outlook import Outlook
    from rayjobs.cli.settings import Settings
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store
    from rayjobs.tuning.spec import SweepSpec
    from rayjobs.tuning.state import SweepState
    from rayjobs.tuning.trials import TrialRecord
    from rayjobs.workspace.folder import OpenWorkspace


def find_sweep(settings: Settings, store: Store, text: str, *, strict: bool = False) -> str:
    """Return the id of the sweep that `text` names, looking only among sweeps.

    Args:
        strict: Refuse a name that several sweeps have; otherwise take the newest, with a note.

    Raises:
        NotFoundError: no such sweep, or `text` names a job that is not a sweep.
        UsageError: `text` names several.
    """
    try:
        if strict:
            found = store.find(text, kind="sweep")
        else:
            found = newest_named(settings, store, text, kind="sweep")
    except NotFoundError as error:
        try:
            found = store.find(text)  # a single job: `sweep` refuses it if it is not a sweep
        except (NotFoundError, UsageError):
            raise error from None
    return store.sweep(found.id).job.id


def read_sweep(store: Store, sweep_id: str) -> tuple[SweepSpec, SweepState]:
    """Return a sweep's definition and its current trial table."""
    from rayjobs.core.clock import SystemClock
    from rayjobs.tuning.spec import parse_sweep
    from rayjobs.tuning.table import load_state

    found = store.sweep(sweep_id)
    state = load_state(store, found.job, now=SystemClock().now())
    return parse_sweep(found.spec, where=f"sweep {sweep_id}"), state


def warm_start_text(store: Store, sweep_id: str) -> str:
    """Return what a sweep took over from earlier ones, as its driver recorded it; may be empty."""
    from rayjobs.tuning.warm_start import EVENT

    return next((one.message for one in store.events(sweep_id) if one.kind == EVENT), "")


def stands(workspace: OpenWorkspace, job: Job, state: SweepState) -> tuple[Outlook, dict[int, str]]:
    """Return the state of a sweep, and of each unfinished trial by number, as `ls` shows them."""
    from rayjobs.cli.outlook import outlooks

    numbers = {one.job_id: one.number for one in state.trials if not one.is_final and one.job_id}
    lines = workspace.store.job_lines(JobFilter(parent=job.id)) if numbers else []
    jobs = [line for line in lines if line.id in numbers]
    seen = outlooks(workspace.path, [job, *jobs])
    return seen[job.id], {numbers[one.id]: seen[one.id].state for one in jobs}


def counts(spec: SweepSpec, state: SweepState) -> dict[str, Any]:
    """Return a sweep's counts and its best trial as JSON data."""
    from rayjobs.core.clock import SystemClock
    from rayjobs.tuning.results import summary
    from rayjobs.tuning.state import metric_missing

    found = summary(state, spec, now=SystemClock().now())
    notice = metric_missing(state.trials, spec.metric)
    best_found = None
    if found.best is not None:
        best_found = {
            "trial": found.best.number,
            "job": found.best.job_id,
            "value": found.best_value,
            "parameters": dict(found.best.parameters),
        }
    return {
        "metric": spec.metric,
        "goal": str(spec.goal),
        "total": found.total,
        "ended": found.completed + found.stopped + found.failed,
        "completed": found.completed,
        "stopped": found.stopped,
        "failed": found.failed,
        "running": found.running,
        "eta_s": found.eta_s,
        "warning": notice.text if notice is not None and notice.near else None,
        "note": notice.text if notice is not None and not notice.near else None,
        "best": best_found,
    }


def trial_json(trial: TrialRecord, spec: SweepSpec, shown: Mapping[int, str]) -> dict[str, Any]:
    """Return a trial as JSON data.

    Args:
        shown: See `stands`.
    """
    import json

    from rayjobs.store.sweeps import reports_text

    return {
        "number": trial.number,
        "job": trial.job_id,
        "state": str(trial.state),
        "shown_state": shown.get(trial.number, str(trial.state)),
        "parameters": dict(trial.parameters),
        "best": trial.best(spec.goal),
        # Texts for values that JSON cannot represent as numbers.
        "reports": json.loads(reports_text(trial.values)),
        "diverged": trial.diverged,
        "reason": trial.reason,
        "cause": trial.cause,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def kind_text(data: dict[str, Any]) -> str:
    """Return a sampling or policy on one line: its kind, then its settings."""
    flat = {**data, **data.get("properties", {})} if "properties" in data else data
    rest = [
        f"{key}={value}"
        for key, value in flat.items()
        if key not in ("type", "parameters", "properties") and value is not None
    ]
    return f"{data.get('type', '')} {', '.join(rest)}".strip()
