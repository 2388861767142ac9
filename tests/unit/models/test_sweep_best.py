"""A sweep registers its best trial once, and reports the result."""

from __future__ import annotations

import math

import pytest

from rayjobs.core.errors import StoreBusyError, StoreUnreachableError, UsageError
from rayjobs.jobs.records import Job
from rayjobs.models import registry
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob, NewSweep
from rayjobs.tuning.registering import register_best
from rayjobs.tuning.spec import SweepSpec
from rayjobs.tuning.trials import TrialRecord, TrialState
from tests.support import registering as models
from tests.unit.models.conftest import SNAPSHOT, Runs

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


def a_sweep(runs: Runs, **definition: str) -> Job:
    sweep, _ = runs.workspace.store.put_sweep(
        NewSweep(
            base=JobSpec(script="train.py"),
            definition=definition,
            driver="rayjobs.tuning:none",
            experiment="digits",
            snapshot=None,
            user="ada",
        )
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
    outcome = register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.5, 0.9, 0.8))
    assert outcome == (
        "registered as model digits-best:1; trial 3 had accuracy = 0.9 at its best and 0.8 at its "
        "end: a script that does not store its best weights has left its last ones"
    )
    model = models.find(runs.workspace, "digits-best")
    assert model.lineage["primary_metric"] == {"name": "accuracy", "value": 0.9}
    assert model.lineage["configuration"]["parameters"] == {"--lr": 0.25}
    assert model.lineage["sweep"] == sweep.id
    assert model.tags == {"sweep": sweep.id, "trial": "3"}
    assert [one.name for one in model.record.files] == ["model.pt"]
    assert model.record.created_by == "ada"  # who submitted it: the driver is the target's user
    known = runs.workspace.store.job(sweep.id)
    again = register_best(runs.workspace.opened, known, SPEC, trial(job, 0.9))
    assert again == "registered as model digits-best:1"
    assert len(runs.workspace.store.models()) == 1


@pytest.mark.parametrize("error", [StoreUnreachableError, StoreBusyError])
def test_model_is_registered_once_the_storage_answers_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    sweep, job = a_sweep(runs), runs.trained((0.5, 0.9))

    def away(*_: object, **__: object) -> None:
        raise error("it does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(registry, "register", away)
        with pytest.raises(error):
            register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.5, 0.9))
    assert register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.5, 0.9)) == (
        "registered as model digits-best:1"
    )
    kinds = [event.kind for event in runs.workspace.store.events(sweep.id)]
    assert "not_registered" not in kinds


def test_refusal_is_reported_and_changes_nothing(runs: Runs) -> None:
    sweep, job = a_sweep(runs), runs.begin()
    outcome = register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.9))
    assert "trial 3 was not registered as model 'digits-best'" in outcome
    assert "has not completed" in outcome or "only a completed run can become a model" in outcome
    assert runs.workspace.store.models() == []


def child(runs: Runs, sweep: Job, *values: float, name: str = "accuracy") -> Job:
    """Return a completed run of a sweep that logged `values`."""
    store = runs.workspace.store
    spec = JobSpec(script="train.py")
    job, _ = store.submit(
        NewJob(spec=spec, experiment="digits", snapshot=SNAPSHOT, user="ada", parent=sweep.id)
    )
    runs.attempt(job)
    runs.write(job, model__pt=b"weights")
    runs.log(job, name, values)
    return runs.end(job)


def test_diverged_trial_cannot_be_registered_by_any_user(runs: Runs) -> None:
    sweep = a_sweep(runs, metric="accuracy")
    diverged, healthy = child(runs, sweep, 0.9, 0.9, math.nan), child(runs, sweep, 0.5, 0.8, 0.7)
    run = runs.workspace.get_run(diverged.id)
    with pytest.raises(UsageError, match=r"accuracy of run .* is nan"):
        run.register_model("m", "outputs/model.pt")
    with pytest.raises(UsageError, match=r"accuracy of run .* is nan"):
        models.register(runs.workspace, name="m", run=diverged.id, path="outputs/model.pt")
    assert runs.workspace.store.models() == []
    model = runs.workspace.get_run(healthy.id).register_model("m", "outputs/model.pt")
    assert model.lineage["primary_metric"] == {"name": "accuracy", "value": 0.7}
    assert {name: one.version for name, one in runs.workspace.models.items()} == {"m": 1}


def test_naming_another_metric_keeps_the_sweep_metric(runs: Runs) -> None:
    diverged = child(runs, a_sweep(runs, metric="accuracy"), 0.9, math.inf)
    runs.log(diverged, "loss", (0.1,))
    with pytest.raises(UsageError, match="accuracy"):
        models.register(
            runs.workspace, name="m", run=diverged.id, path="model.pt", primary_metric="loss"
        )
    assert runs.workspace.store.models() == []


def test_child_without_the_sweep_metric_may_be_registered(runs: Runs) -> None:
    job = child(runs, a_sweep(runs, metric="accuracy"), 0.9, name="acuracy")
    model = models.register(runs.workspace, name="m", run=job.id, path="model.pt")
    assert model.lineage["primary_metric"] is None


def test_the_newest_version_of_each_model_is_found_by_its_name(runs: Runs) -> None:
    for data in (b"first", b"second"):
        run = runs.workspace.get_run(runs.trained(data=data).id)
        run.register_model("m", "outputs/model.pt")
    assert {name: one.version for name, one in runs.workspace.models.items()} == {"m": 2}


def test_a_folder_means_its_files_without_the_checkpoints(runs: Runs) -> None:
    sweep, job = a_sweep(runs), runs.begin()
    runs.write(job, model__pt=b"weights")
    for step in (1, 2):
        runs.save(job, step)
    runs.log(job, "accuracy", (0.9,))
    job = runs.end(job)
    outcome = register_best(runs.workspace.opened, sweep, SPEC, trial(job, 0.9))
    assert outcome == "registered as model digits-best:1"
    model = models.find(runs.workspace, "digits-best")
    assert [one.name for one in model.record.files] == ["model.pt"]
    assert model.lineage["left_out"] == []
    newest = "outputs/checkpoints/step-000000000001"
    named = models.register(runs.workspace, name="m", run=job.id, path=newest)
    assert sorted(one.name for one in named.record.files) == ["manifest.json", "model.pt"]


def test_a_run_that_left_checkpoints_alone_gives_its_newest_whole_one(runs: Runs) -> None:
    job = runs.begin()
    for step in (1, 2):
        runs.save(job, step)
    job = runs.end(job)
    model = models.register(runs.workspace, name="m", run=job.id, path="outputs")
    folder = "checkpoints/step-000000000002"
    assert [one.name for one in model.record.files] == [
        f"{folder}/manifest.json",
        f"{folder}/model.pt",
    ]
