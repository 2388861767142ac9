"""The one place where a sweep hands its best trial to the model registry."""

from __future__ import annotations

import logging

from rayjobs.core.errors import RayjobsError
from rayjobs.jobs.records import Job
from rayjobs.models import registry
from rayjobs.results.metrics import number_text
from rayjobs.store.requests import JobChanges
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.trials import TrialRecord
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

PROPERTY = "model"


def register_best(workspace: OpenWorkspace, sweep: Job, spec: SweepSpec, trial: TrialRecord) -> str:
    """Register the best trial's files as a model; return what became of it, for people.

    A refusal never takes the sweep's result away: it is said in the sweep's reason and history.
    Done at most once for a sweep, whatever driver asks: the model's name and version are kept
    as the sweep's property ``model``.
    """
    known = sweep.properties.get(PROPERTY)
    if known is not None:
        return f"registered as model {known}{worse_at_its_end(spec, trial)}"
    wanted = f"trial {trial.number} was not registered as model {spec.register_as!r}"
    value = trial.best(spec.goal)
    assert spec.register_as is not None and trial.job_id is not None and value is not None
    try:
        model = registry.register_best(
            workspace,
            name=spec.register_as,
            run_id=trial.job_id,
            metric_name=spec.metric,
            value=value,
            configuration=dict(trial.parameters),
            sweep_id=sweep.id,
            path=spec.model_path,
            tags={"sweep": sweep.id, "trial": str(trial.number)},
        )
        label = f"{model.name}:{model.version}"
        workspace.store.update(sweep.id, JobChanges(properties={PROPERTY: label}))
        return f"registered as model {label}{worse_at_its_end(spec, trial)}"
    except (RayjobsError, OSError) as error:
        text = f"{wanted}: {error}"
    log.warning("%s: %s", sweep.id, text)
    workspace.store.add_event(sweep.id, "not_registered", text, attempt=sweep.attempt)
    return text


def worse_at_its_end(spec: SweepSpec, trial: TrialRecord) -> str:
    """Return what to know of a model whose trial was better before its end; empty otherwise.

    Only the script knows which weights it stored: those of its best, or those of its end.
    """
    best, last = trial.best(spec.goal), trial.values[-1]
    if best is None or not spec.goal.is_better(best, last):
        return ""
    return (
        f"; trial {trial.number} had {spec.metric} = {number_text(best)} at its best and "
        f"{number_text(last)} at its end: a script that does not store its best weights has left "
        f"those of the end"
    )
