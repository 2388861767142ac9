"""A sweep hands its best trial to the registry, once, and says what became of it."""

from __future__ import annotations

from rayjobs import models
from rayjobs.records import Job
from rayjobs.spec import JobSpec
from tests.unit.models.conftest import Runs
from tuning.registering import register_best
from tuning.spec import SweepSpec
from tuning.trials import TrialRecord, TrialState

SPEC = SweepSpec.model_validate(
    {
        "name": "digits",
        "job": {"script": "train.py"},
        "sampling": {"type": "random", "seed": 1, "parameters": {"--lr": {"uniform": [0, 1]}}},
        "metric": "accuracy",
        "goal": "maximize",
        "limits": {"total": 1},
        "register_as": "digits-best",
    }
)


def a_sweep(runs: Runs) -> Job:
    sweep, _ = runs.workspace.store.put_sweep(
        JobSpec(script="train.py"),
        sweep={},
        driver="tuning:none",
        experiment="digits",
        snapshot=None,
        user="ada",
    )
    return sweep.job


def trial(job: Job, *values: float) -> TrialRecord:
    return TrialRecord(
        number=3,
        parameters={"--lr": 0.25},
        state=TrialState.COMPLETED,
        values=values,
        job_id=job.id,
    )


def test_the_best_trial_becomes_a_model_with_its_lineage(runs: Runs) -> None:
    sweep, job = a_sweep(runs), runs.trained((0.5, 0.9, 0.8))
    told = register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.5, 0.9, 0.8))
    assert told == "registered as model digits-best:1"
    model = models.find(runs.workspace, "digits-best")
    assert model.lineage["primary_metric"] == {"name": "accuracy", "value": 0.9}
    assert model.lineage["configuration"]["parameters"] == {"--lr": 0.25}
    assert model.lineage["sweep"] == sweep.id
    assert model.tags == {"sweep": sweep.id, "trial": "3"}
    assert [one.name for one in model.record.files] == ["model.pt"]
    known = runs.workspace.store.job(sweep.id)
    assert register_best(runs.workspace.opened, known, SPEC, trial(job, 0.9)) == told


def test_a_refusal_is_told_and_takes_nothing_away(runs: Runs) -> None:
    sweep, job = a_sweep(runs), runs.begin()
    told = register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.9))
    assert "trial 3 was not registered as model 'digits-best'" in told
    assert "has not completed" in told or "only what a completed run left" in told
    assert runs.workspace.store.models() == []
