"""Registers the best trial of a sweep as a model."""

from __future__ import annotations

import logging

from rayjobs.core.errors import (
    RayjobsError,
    StoreBusyError,
    StoreFullError,
    StoreUnreachableError,
)
from rayjobs.jobs.records import Job
from rayjobs.models import registry
from rayjobs.models.facts import ModelFacts, RunChoice
from rayjobs.results.metrics import number_text
from rayjobs.store.requests import JobChanges
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.trials import TrialRecord
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

PROPERTY = "model"


def register_best(workspace: OpenWorkspace, sweep: Job, spec: SweepSpec, trial: TrialRecord) -> str:
    """Register the best trial's files as a model; return the outcome as text for people.

    A refusal never invalidates the sweep's result: the sweep's reason and history report it. Each
    sweep registers at most once, whichever driver asks: the sweep's property ``model`` keeps the
    model's name and version.

    Raises:
        StoreBusyError, StoreFullError, StoreUnreachableError: the store or the files cannot be used
            now; try again.
    """
    known = sweep.properties.get(PROPERTY)
    if known is not None:
        return _registered(known, spec, trial)
    wanted = f"trial {trial.number} was not registered as model {spec.register_as!r}"
    value = trial.best(spec.goal)
    assert spec.register_as is not None and trial.job_id is not None and value is not None
    try:
        model = registry.register(
            workspace,
            name=spec.register_as,
            run=trial.job_id,
            path=spec.model_path,
            facts=ModelFacts(tags={"sweep": sweep.id, "trial": str(trial.number)}),
            choice=RunChoice(
                metric=spec.metric,
                value=value,
                configuration=dict(trial.parameters),
                sweep=sweep.id,
            ),
        )
        label = f"{model.name}:{model.version}"
        workspace.store.update(sweep.id, JobChanges(properties={PROPERTY: label}))
        return _registered(label, spec, trial)
    except (StoreBusyError, StoreFullError, StoreUnreachableError):
        raise  # the driver waits for the store, and tries again
    except (RayjobsError, OSError) as error:
        text = f"{wanted}: {error}"
    log.warning("%s: %s", sweep.id, text)
    workspace.store.add_event(sweep.id, "not_registered", text, attempt=sweep.attempt)
    return text


def _registered(label: str, spec: SweepSpec, trial: TrialRecord) -> str:
    text, warning = f"registered as model {label}", worse_at_its_end(spec, trial)
    return f"{text}; {warning}" if warning else text


def worse_at_its_end(spec: SweepSpec, trial: TrialRecord) -> str:
    """Return a note for a model whose trial was better before its end; empty otherwise.

    Only the script knows whether it stored its best or its last weights.
    """
    best, last = trial.best(spec.goal), trial.values[-1]
    if best is None or not spec.goal.is_better(best, last):
        return ""
    return (
        f"trial {trial.number} had {spec.metric} = {number_text(best)} at its best and "
        f"{number_text(last)} at its end: a script that does not store its best weights has left "
        "its last ones"
    )
