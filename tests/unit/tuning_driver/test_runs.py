"""HyperDriveConfig submitted through an experiment, and the handle on the sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs import Estimator, Experiment, Run, ScriptRunConfig, Workspace
from rayjobs.core.errors import JobFailedError, NotFoundError, SpecError, UsageError
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline import Pipeline
from rayjobs.pipelines.script_steps import PythonScriptStep
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewSweep
from rayjobs.tuning import (
    HyperDriveConfig,
    HyperDriveRun,
    PrimaryMetricGoal,
    RandomParameterSampling,
    uniform,
)
from rayjobs.tuning.errors import SweepUsageError
from tests.unit.tuning_driver.world import World, good, parameters_of


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("print('never run here')\n")
    monkeypatch.setattr("rayjobs.submit.submitting.wake_or_start", lambda *_: False)
    monkeypatch.setattr("rayjobs.target.starting.ensure_target", lambda *_, **__: None)
    yield world
    world.close()


@pytest.fixture
def experiment(world: World) -> Experiment:
    return Experiment(Workspace(path=world.workspace.path), "große Zahlen")


def config(world: World, **changes: Any) -> HyperDriveConfig:
    values: dict[str, Any] = {
        "hyperparameter_sampling": RandomParameterSampling({"x": uniform(0, 1)}, {"seed": 1}),
        "primary_metric_name": "accuracy",
        "primary_metric_goal": PrimaryMetricGoal.MAXIMIZE,
        "max_total_runs": 4,
    }
    if not {"run_config", "estimator"} & set(changes):
        script = ScriptRunConfig(str(world.folder / "source"), "train.py", ["--x", 9])
        values["run_config"] = script
    return HyperDriveConfig(**{**values, **changes})


def submit(world: World, experiment: Experiment, **changes: Any) -> HyperDriveRun:
    run = experiment.submit(config(world, **changes), tags={"team": "blue"})
    assert isinstance(run, HyperDriveRun)
    world.driver(run.id).turn()  # its first trials are submitted
    return run


def test_names_of_azure_are_found_where_its_programs_import_them() -> None:
    for name in ("HyperDriveConfig", "BanditPolicy", "choice", "PrimaryMetricGoal"):
        assert getattr(rayjobs, name) is getattr(__import__("tuning"), name)


def test_a_config_is_submitted_under_its_experiment(world: World, experiment: Experiment) -> None:
    run = submit(world, experiment)
    job = world.store.job(run.id)
    assert (job.experiment, job.kind, job.state) == ("große Zahlen", "sweep", JobState.RUNNING)
    assert run.sweep_spec.name == "gro-e-Zahlen"
    assert (run.type, run.get_tags()) == ("hyperdrive", {"team": "blue"})
    assert run.get_status() == "Running"
    assert run.hyperdrive_config is not None
    world.finish(world.driver(run.id))
    assert run.get_status() == "Completed"


def test_a_sweep_of_a_pipeline_is_refused(world: World, experiment: Experiment) -> None:
    step = PythonScriptStep("train.py", source_directory=str(world.folder / "source"))
    pipeline = Pipeline(experiment.workspace, [step])
    with pytest.raises(SweepUsageError, match="a sweep's trials are single jobs"):
        submit(world, experiment, run_config=None, pipeline=pipeline)


def test_an_estimators_parameters_are_put_over_its_own(
    world: World, experiment: Experiment
) -> None:
    estimator = Estimator(
        source_directory=str(world.folder / "source"),
        entry_script="train.py",
        script_params={"--x": 9, "--epochs": 2},
        compute_target="local",
    )
    run = submit(world, experiment, estimator=estimator)
    first = parameters_of(world.jobs(run.id)[0])
    assert first["--epochs"] == "2"
    assert 0 <= float(first["--x"]) < 1


@pytest.mark.long
def test_run_returns_best_order_parameters_and_metrics(
    world: World, experiment: Experiment
) -> None:
    def script(parameters: Any) -> Any:
        values, _, name = good(parameters)
        end = JobState.FAILED if float(parameters["--x"]) > 0.6 else JobState.COMPLETED
        return values, end, name

    world.script = script
    run = submit(world, experiment)
    assert run.get_best_run_by_primary_metric() is None  # nothing has completed yet
    world.finish(world.driver(run.id))
    by_id = {key: json.loads(text)["x"] for key, text in run.get_hyperparameters().items()}
    assert max(by_id.values()) > 0.6  # the largest one failed
    completed = {key: x for key, x in by_id.items() if x <= 0.6}
    best = run.get_best_run_by_primary_metric()
    assert isinstance(best, Run)
    assert best.id == max(completed, key=lambda key: completed[key])
    unchecked = run.get_best_run_by_primary_metric(include_failed=True)
    assert unchecked is not None
    assert unchecked.id == max(by_id, key=lambda key: by_id[key])
    ranked = run.get_children_sorted_by_primary_metric(top=2)
    assert [one["run_id"] for one in ranked] == sorted(by_id, key=lambda key: -by_id[key])[:2]
    metrics = run.get_metrics()
    assert set(metrics) == set(by_id)
    assert metrics[best.id]["accuracy"][-1] == pytest.approx(by_id[best.id])
    assert {child.id for child in run.get_children()} == set(by_id)


def test_metrics_of_a_sweep_are_those_of_its_trials_or_of_all_runs_below_it(
    world: World, experiment: Experiment
) -> None:
    run = submit(world, experiment, max_total_runs=2, max_concurrent_runs=2)
    world.play()
    trial, other = (
        experiment.workspace.get_run(one.job_id) for one in run.state.trials if one.job_id
    )
    fold = trial.child_run("fold")
    fold.log("loss", 0.5)
    run.log("tried", 2)
    trial.log("loss", 0.25)
    (world.folder / "curve.png").write_bytes(b"pixels")
    trial.log_image("curve", str(world.folder / "curve.png"))
    of_trials = run.get_metrics()
    assert set(of_trials) == {trial.id, other.id}
    assert run.get_metrics(run_type="azureml.scriptrun") == of_trials
    assert run.get_metrics(run_type="hyperdrive") == {}
    below = run.get_metrics(recursive=True)
    assert below == {run.id: {"tried": 2}, fold.id: {"loss": 0.5}, **of_trials}
    assert run.get_metrics(recursive=True, run_type="hyperdrive") == {run.id: {"tried": 2}}
    assert run.get_metrics(recursive=True, run_type=fold.type) == {fold.id: {"loss": 0.5}}
    found = run.get_metrics("loss", recursive=True)
    assert found == {
        run.id: {},
        trial.id: {"loss": 0.25},
        other.id: {},
        fold.id: {"loss": 0.5},
    }
    assert run.get_metrics("curve", populate=True)[trial.id] == {"curve": b"pixels"}


@pytest.mark.long
def test_waiting_shows_what_happens_and_raises_for_a_failed_sweep(
    world: World, experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submit(world, experiment)
    world.finish(world.driver(run.id))
    assert run.wait_for_completion(show_output=True)["status"] == "Completed"
    printed = capsys.readouterr().out
    assert printed.startswith(f"RunId: {run.id}\n")
    assert printed.count(" completed: accuracy = ") == 4
    world.script = lambda parameters: ([0.5], JobState.FAILED, "accuracy")
    failed = submit(world, experiment)
    world.finish(world.driver(failed.id))
    with pytest.raises(JobFailedError, match="trial 0: ValueError: no"):
        failed.wait_for_completion()
    details = failed.wait_for_completion(raise_on_error=False)
    assert details["error"]["error"]["code"] == "user"


def test_cancel_ends_the_trials_and_the_sweep(world: World, experiment: Experiment) -> None:
    run = submit(world, experiment)
    world.play()
    run.cancel()
    world.finish(world.driver(run.id))
    assert run.get_status() == "Canceled"
    assert {child.status for child in run.get_children()} == {"Canceled"}


def test_unsupported_sweep_base_is_refused(world: World, experiment: Experiment) -> None:
    with pytest.raises(SpecError, match="exactly one of estimator, run_config and pipeline"):
        config(world, run_config=None)
    with pytest.raises(UsageError, match="colour"):
        experiment.submit(config(world), colour="red")
    with pytest.raises(UsageError, match="a dict cannot be swept"):
        experiment.submit(config(world, run_config={"script": "train.py"}))
    assert world.store.sweeps() == []


def test_job_id_is_not_a_sweep_and_sweep_cannot_be_failed_externally(
    world: World, experiment: Experiment
) -> None:
    run = submit(world, experiment)
    with pytest.raises(NotFoundError, match="is a job, not a sweep"):
        HyperDriveRun(experiment, world.jobs(run.id)[0].id)
    with pytest.raises(UsageError, match="cancel"):
        run.fail("no")
    with pytest.raises(UsageError, match="get_children"):
        run.get_diagnostics()


def test_sweep_is_found_with_its_type(world: World, experiment: Experiment) -> None:
    sweep = submit(world, experiment, max_total_runs=1, max_concurrent_runs=1)
    world.finish(world.driver(sweep.id))
    found = experiment.workspace.get_run(sweep.id)
    assert isinstance(found, HyperDriveRun)
    assert found.get_best_run_by_primary_metric() is not None
    assert isinstance(Run.get(experiment.workspace, sweep.id), HyperDriveRun)
    assert [type(one) for one in experiment.get_runs()] == [HyperDriveRun]
    assert [one.id for one in experiment.get_runs(type="hyperdrive")] == [sweep.id]
    [child] = experiment.get_runs(type="azureml.scriptrun", include_children=True)
    assert isinstance(child.parent, HyperDriveRun)
    assert not isinstance(experiment.workspace.get_run(child.id), HyperDriveRun)


def test_a_sweep_of_a_later_version_does_not_hide_the_other_runs(
    world: World, experiment: Experiment
) -> None:
    store = world.store
    later, _ = store.put_sweep(
        NewSweep(
            base=JobSpec(script="train.py"),
            definition={"of": "a later version"},
            driver="rayjobs.tuning.driver_actor:start",
            experiment=experiment.name,
            snapshot=None,
            user="ada",
        )
    )
    sweep = submit(world, experiment)
    assert [one.id for one in experiment.get_runs()] == [sweep.id, later.job.id]
    unread = experiment.workspace.get_run(later.job.id)
    assert unread.get_status() == "Running"
    with pytest.raises(SpecError):
        assert isinstance(unread, HyperDriveRun) and unread.sweep_spec


def test_a_sweep_gets_the_id_that_it_is_given_once(world: World, experiment: Experiment) -> None:
    assert experiment.submit(config(world, custom_run_id="HD_mine")).id == "HD_mine"
    with pytest.raises(UsageError, match="HD_mine"):
        experiment.submit(config(world, custom_run_id="HD_mine"))


@pytest.mark.long
def test_the_best_run_may_be_one_of_the_sweeps_that_informed(
    world: World, experiment: Experiment
) -> None:
    first = submit(world, experiment, max_total_runs=4)
    world.finish(world.driver(first.id))
    best = first.get_best_run_by_primary_metric()
    assert best is not None
    world.script = lambda _parameters: ([0.0], JobState.COMPLETED, "accuracy")
    second = submit(world, experiment, max_total_runs=1, resume_from=first)
    world.finish(world.driver(second.id))
    found = second.get_best_run_by_primary_metric()
    own = second.get_best_run_by_primary_metric(include_resume_from_runs=False)
    assert found is not None
    assert own is not None
    assert found.id == best.id
    assert own.id == world.jobs(second.id)[0].id
