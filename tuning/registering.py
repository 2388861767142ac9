"""The one place where a sweep hands its best trial to the model registry."""

from __future__ import annotations

import importlib
import importlib.util
import logging

from rayjobs.errors import RayjobsError
from rayjobs.records import Job
from rayjobs.workspace_files import OpenWorkspace
from tuning.spec import SweepSpec
from tuning.trials import TrialRecord

log = logging.getLogger(__name__)

REGISTRY = "rayjobs.models"
PROPERTY = "model"


def register_best(workspace: OpenWorkspace, sweep: Job, spec: SweepSpec, trial: TrialRecord) -> str:
    """Register the best trial's files as a model; return what became of it, for people.

    A refusal never takes the sweep's result away: it is said in the sweep's reason and history.
    Done at most once for a sweep, whatever driver asks: the model's name and version are kept
    as the sweep's property ``model``.
    """
    known = sweep.properties.get(PROPERTY)
    if known is not None:
        return f"registered as model {known}"
    wanted = f"trial {trial.number} was not registered as model {spec.register_as!r}"
    if importlib.util.find_spec(REGISTRY) is None:
        told = f"{wanted}: this version of rayjobs has no model registry"
    else:
        try:
            model = importlib.import_module(REGISTRY).register_best(
                workspace,
                name=spec.register_as,
                run_id=trial.job_id,
                metric_name=spec.metric,
                value=trial.best(spec.goal),
                configuration=dict(trial.parameters),
                sweep_id=sweep.id,
                path=spec.model_path,
                tags={"sweep": sweep.id, "trial": str(trial.number)},
            )
            label = f"{model.name}:{model.version}"
            workspace.store.update(sweep.id, properties={PROPERTY: label})
            return f"registered as model {label}"
        except (RayjobsError, OSError) as error:
            told = f"{wanted}: {error}"
    log.warning("%s: %s", sweep.id, told)
    workspace.store.add_event(sweep.id, "not_registered", told, attempt=sweep.attempt)
    return told
