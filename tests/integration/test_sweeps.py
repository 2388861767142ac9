"""Sweeps on real Ray: submitted, driven by an actor, stopped early, ended; and through the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Experiment, ScriptRunConfig, Workspace
from rayjobs.jobs.states import JobState
from rayjobs.tuning import (
    BanditPolicy,
    GridParameterSampling,
    HyperDriveConfig,
    PrimaryMetricGoal,
    RandomParameterSampling,
    choice,
    uniform,
)
from rayjobs.tuning.runs import HyperDriveRun
from rayjobs.tuning.table import load_trials
from rayjobs.tuning.trials import TrialState
from tests.support import registering as models
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

SCRIPT = """
import argparse, os, time
from rayjobs import Run
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, default=0.0)
parser.add_argument("--mode", default="good")
arguments = parser.parse_args()
run = Run.get_context()
if arguments.mode == "crash":
    raise ValueError("this trial crashes")
while arguments.mode == "hang" and arguments.x < 0.5 and not os.path.exists({go!r}):
    time.sleep(0.05)
for step in range(3):
    value = float("nan") if arguments.mode == "nan" else arguments.x * (step + 1)
    run.log("misspelt" if arguments.mode == "typo" else "accuracy", value, step=step)
with open("outputs/model.txt", "w") as file:
    file.write(str(arguments.x))
while arguments.mode == "hang":
    time.sleep(0.05)
"""


def config(folder: Path, **changes: Any) -> HyperDriveConfig:
    source = folder / "sweep-source"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(SCRIPT.replace("{go!r}", repr(str(folder / "go"))))
    values: dict[str, Any] = {
        "hyperparameter_sampling": RandomParameterSampling(
            {"--x": uniform(0, 1)}, properties={"seed": 3}
        ),
        "primary_metric_name": "accuracy",
        "primary_metric_goal": PrimaryMetricGoal.MAXIMIZE,
        "max_total_runs": 4,
        "max_concurrent_runs": 2,
        "run_config": ScriptRunConfig(str(source), "train.py"),
    }
    return HyperDriveConfig(**{**values, **changes})


@pytest.fixture
def experiment(jobs: Jobs) -> Experiment:
    return Experiment(Workspace(path=jobs.workspace.path), "sweeps")


def test_a_config_becomes_a_run_with_a_best_child(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = experiment.submit(config(tmp_path), tags={"team": "blue"})
    assert isinstance(run, HyperDriveRun)
    details = run.wait_for_completion(show_output=True)
    assert details["status"] == "Completed"
    assert run.get_tags() == {"team": "blue"}
    children = list(run.get_children())
    assert [child.status for child in children] == ["Completed"] * 4
    parameters = run.get_hyperparameters()
    assert set(parameters) == {child.id for child in children}
    best = run.get_best_run_by_primary_metric()
    assert best is not None and best.parent is not None and best.parent.id == run.id
    ranked = run.get_children_sorted_by_primary_metric()
    assert ranked[0]["run_id"] == best.id
    values = [one["best_primary_metric"] for one in ranked]
    assert values == sorted(values, reverse=True)
    assert run.get_metrics()[best.id]["accuracy"][-1] == values[0]
    printed = capsys.readouterr().out
    assert printed.count("submitted: x=") == 4
    assert f"best so far: trial {run.get_properties()['best_trial']}" in printed
    again = HyperDriveRun(experiment, run.id)
    assert again.get_best_run_by_primary_metric().id == best.id  # type: ignore[union-attr]


def test_crashed_nan_and_misspelled_trials_never_win_or_end_the_sweep(
    experiment: Experiment, jobs: Jobs, tmp_path: Path
) -> None:
    modes = GridParameterSampling({"mode": choice("crash", "nan", "typo", "good")})
    run = experiment.submit(config(tmp_path, hyperparameter_sampling=modes))
    assert run.wait_for_completion()["status"] == "Completed"
    crash, diverged, typo, good = load_trials(jobs.store, run.id)
    assert crash.state is TrialState.FAILED
    assert "ValueError: this trial crashes" in crash.reason
    assert diverged.state is TrialState.COMPLETED and diverged.diverged
    assert typo.state is TrialState.FAILED and "it reported: misspelt." in typo.reason
    assert run.get_best_run_by_primary_metric().id == good.job_id


def test_policy_stops_a_real_trial_and_reports_the_reason(
    experiment: Experiment, jobs: Jobs, tmp_path: Path
) -> None:
    run = experiment.submit(
        config(
            tmp_path,
            hyperparameter_sampling=GridParameterSampling(
                {"--x": choice(0.9, 0.1), "--mode": choice("hang")}
            ),
            policy=BanditPolicy(slack_factor=0.1),
            max_total_runs=2,
        )
    )

    # The good trial never ends by itself, and leads before the other one reports anything.
    until(lambda: any(trial.values for trial in load_trials(jobs.store, run.id)), "a trial leads")
    (tmp_path / "go").write_text("")

    def stopped() -> Any:
        trials = load_trials(jobs.store, run.id)
        return len(trials) == 2 and trials[1].state is TrialState.CANCELED

    until(stopped, "the second trial is stopped")
    _, second = load_trials(jobs.store, run.id)
    assert "stopped trial 1 at interval" in second.reason and "/(1+0.1)" in second.reason
    assert jobs.store.job(str(second.job_id)).state is JobState.CANCELED
    run.cancel()
    assert run.wait_for_completion()["status"] == "Canceled"
    assert "canceled" in jobs.store.job(run.id).reason
    assert {child.status for child in run.get_children()} == {"Canceled"}
    assert len(list(run.get_children())) == 2


def test_the_best_trial_becomes_a_model(experiment: Experiment, jobs: Jobs, tmp_path: Path) -> None:
    run = experiment.submit(config(tmp_path, max_total_runs=2), register_as="sweep-best")
    run.wait_for_completion()
    label = run.get_properties().get("model")
    assert label == "sweep-best:1", jobs.store.job(run.id).reason
    best = run.get_best_run_by_primary_metric()
    model = models.find(jobs.workspace, label)
    files = model.download(str(tmp_path / "model"))
    x = json.loads(run.get_hyperparameters()[best.id])["--x"]
    texts = [path.read_text() for path in Path(files).rglob("model.txt")]
    assert texts == [str(x)]
