"""HyperDriveConfig, SweepSpec and sweep.yaml: what they take and what they refuse."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

from rayjobs.tuning import (
    BanditPolicy,
    BayesianParameterSampling,
    HyperDriveConfig,
    HyperDriveRunConfig,
    PrimaryMetricGoal,
    RandomParameterSampling,
    loguniform,
    uniform,
)
from rayjobs.tuning.errors import SweepError, SweepUsageError
from rayjobs.tuning.policies import NoTerminationPolicy
from rayjobs.tuning.spec import parse_sweep
from rayjobs.tuning.sweep_file import load_sweep, read_yaml, write_yaml
from tests.unit.tuning.simulation import sweep

SAMPLING = RandomParameterSampling({"--lr": loguniform(-9, -2)}, {"seed": 7})
MAX = PrimaryMetricGoal.MAXIMIZE

YAML = """\
name: mnist
job:
  script: train.py
  arguments: [--epochs, "3"]
sampling:
  type: random
  seed: 7
  parameters:
    --lr: {loguniform: [-9, -2]}
    --batch: [choice, [[32, 64]]]
    decay: {uniform: [1e-5, 1e-3]}
policy: {type: bandit, slack_factor: 0.1}
metric: accuracy
goal: maximize
limits: {total: 12, concurrent: 4}
register_as: mnist-best
"""


def config(**changes: Any) -> HyperDriveConfig:
    return HyperDriveConfig(
        **{
            "hyperparameter_sampling": SAMPLING,
            "primary_metric_name": "accuracy",
            "primary_metric_goal": MAX,
            "max_total_runs": 20,
            "run_config": object(),
            **changes,
        }
    )


def test_the_defaults_are_azure_mls() -> None:
    found = config()
    assert found.max_concurrent_runs == 20
    assert found.max_duration_minutes == 10_080
    assert found.policy == NoTerminationPolicy()
    assert found.base is found.run_config


def test_a_config_becomes_a_sweep_of_the_given_job() -> None:
    found = config(policy=BanditPolicy(2, 0.1), max_concurrent_runs=4, max_duration_minutes=60)
    spec = found.sweep_spec({"script": "t.py"}, name="mnist", register_as="m")
    assert spec.limits.model_dump() == {
        "total": 20,
        "concurrent": 4,
        "max_duration_s": 3600.0,
        "max_failures": None,
    }
    assert (spec.policy, spec.sampling, spec.register_as) == (BanditPolicy(2, 0.1), SAMPLING, "m")


def test_older_name_accepts_the_estimator_first() -> None:
    estimator = object()
    found = HyperDriveRunConfig(estimator, SAMPLING, "accuracy", MAX, 5, 2)
    assert isinstance(found, HyperDriveConfig)
    assert (found.base, found.max_concurrent_runs) == (estimator, 2)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"run_config": None}, "run_config"),
        ({"estimator": object()}, "run_config"),
        ({"hyperparameter_sampling": {"--lr": 1}}, "hyperparameter_sampling"),
        ({"primary_metric_name": ""}, "primary_metric_name"),
        ({"primary_metric_goal": "upward"}, "primary_metric_goal"),
        ({"max_total_runs": 0}, "max_total_runs"),
        ({"max_total_runs": 1001}, "max_total_runs"),
        ({"max_concurrent_runs": 0}, "max_concurrent_runs"),
        ({"max_concurrent_runs": 101}, "max_concurrent_runs"),
        ({"max_duration_minutes": 0}, "max_duration_minutes"),
        ({"policy": "bandit"}, "policy"),
        ({"resume_from": list("abcdef")}, "resume_from"),
        ({"resume_from": [1]}, "resume_from"),
        ({"custom_run_id": "a/b"}, "custom_run_id"),
        ({"debug_flag": {}}, "debug_flag"),
        ({"resume_child_runs": ["a", "a"]}, "resume_child_runs"),
        ({"resume_child_runs": list("abcdefghijklmnopqrstu")}, "resume_child_runs"),
        (
            {
                "hyperparameter_sampling": BayesianParameterSampling({"x": uniform(0, 1)}),
                "policy": BanditPolicy(slack_factor=0.1),
            },
            "policy",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(changes: Any, path: str) -> None:
    with pytest.raises(SweepError) as caught:
        config(**changes)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert caught.value.problems[0].remedy
    assert caught.value.exit_code == 2


def test_all_wrong_arguments_are_listed_at_once() -> None:
    with pytest.raises(SweepError) as caught:
        config(run_config=None, max_total_runs=-1, primary_metric_name=None)
    assert len(caught.value.problems) == 3
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_excessive_limits_are_reduced_with_a_warning() -> None:
    with pytest.warns(UserWarning) as warned:
        found = config(max_duration_minutes=20_000, max_concurrent_runs=50)
    assert (found.max_duration_minutes, found.max_concurrent_runs) == (10_080, 20)
    assert len(warned) == len(found.advice) == 2


def test_bayesian_advice_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="20 for each parameter"):
        config(
            hyperparameter_sampling=BayesianParameterSampling({"x": uniform(0, 1)}),
            max_total_runs=5,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config()


def test_a_warm_start_names_earlier_sweeps_and_trials() -> None:
    class AnyRun:
        id = "trial_1"

    found = config(resume_from="HD_1", resume_child_runs=[AnyRun()])
    spec = found.sweep_spec({"script": "t.py"})
    assert (spec.resume_from, spec.resume_trials) == (("HD_1",), ("trial_1",))


def test_a_sweep_of_a_pipeline_is_refused_by_name() -> None:
    with pytest.raises(SweepUsageError, match="HyperDriveStep"):
        config(run_config=None, pipeline=object()).sweep_spec({"script": "t.py"})


def test_a_sweep_file_is_read_and_written(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(YAML, encoding="utf-8")
    spec = load_sweep(file)
    assert spec.sampling.space.to_wire() == {
        "--lr": ["loguniform", [-9, -2]],
        "--batch": ["choice", [[32, 64]]],
        "decay": ["uniform", [1e-5, 1e-3]],  # YAML 1.1 would read text
    }
    assert spec.job["source_directory"] == str(tmp_path)
    assert spec.policy == BanditPolicy(slack_factor=0.1)
    assert (spec.goal, spec.limits.at_a_time, spec.register_as) == (MAX, 4, "mnist-best")
    again = tmp_path / "again.yaml"
    again.write_text(write_yaml(spec), encoding="utf-8")
    assert load_sweep(again) == spec
    assert parse_sweep(json.loads(spec.to_json())) == spec


def test_a_wrong_sampling_does_not_hide_what_is_wrong_in_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    (tmp_path / "train.py").touch()
    file.write_text(
        "job: {script: train.py}\nmetric: acc\ngoal: max\nlimits: {total: 4, concurent: 2}\n"
        "sampling: {type: rondom, parameters: {--lr: [logunif, [-9, -2]], --bs: [chioce, [1]]}}\n"
    )
    with pytest.raises(SweepError) as found:
        load_sweep(file)
    assert sorted(one.path for one in found.value.problems) == [
        "limits.concurent",
        "sampling.parameters.--bs",
        "sampling.parameters.--lr",
        "sampling.type",
    ]


def test_all_problems_in_a_file_are_listed_with_path_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        textwrap.dedent(
            """\
            name: mnist sweep
            sampling:
              parameters:
                --lr: {logunifrm: [-9, -2]}
                --batch: [32, 64]
                lr: 3
            polcy: none
            policy: {type: bandit}
            goal: upward
            limits: {total: 0, concurent: 4}
            """
        ),
        encoding="utf-8",
    )
    with pytest.raises(SweepError) as caught:
        load_sweep(file)
    problems = {problem.path: str(problem) for problem in caught.value.problems}
    assert set(problems) == {
        "name",
        "job",
        "sampling.parameters.--lr",
        "sampling.parameters.--batch",
        "sampling.parameters.lr",
        "policy.slack_factor",
        "metric",
        "goal",
        "limits.total",
        "limits.concurent",
        "polcy",
    }
    assert "Did you mean 'loguniform'" in problems["sampling.parameters.--lr"]
    assert "Did you mean 'concurrent'" in problems["limits.concurent"]
    assert "Did you mean 'policy'" in problems["polcy"]
    assert "metric: accuracy" in problems["metric"]
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "^sweep.yaml, line 2, column 1 is not YAML: [^\n]*$"),
        ("a: 1\na: 2\n", "line 2, column 1: the key 'a' appears twice"),
        ("- 1\n", "contains list data"),
        ("", "contains NoneType data"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1, column 4: the tag"),
    ],
)
def test_text_that_is_not_a_sweep_is_refused(text: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        read_yaml(text, where="sweep.yaml")


def test_missing_sweep_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no such file"):
        load_sweep(tmp_path / "none.yaml")


def test_an_empty_search_space_is_refused() -> None:
    with pytest.raises(SweepError, match="the search space is empty"):
        sweep(sampling={"type": "random", "parameters": {}})


def test_bayesian_sampling_takes_no_policy() -> None:
    with pytest.raises(SweepError, match="takes no early termination policy"):
        sweep(
            sampling={"type": "bayesian", "parameters": {"x": ["uniform", [0, 1]]}},
            policy={"type": "median"},
        )


def test_a_spec_is_frozen_and_its_version_is_known() -> None:
    spec = sweep()
    with pytest.raises(ValueError, match="frozen"):
        spec.metric = "loss"  # type: ignore[misc]
    with pytest.raises(SweepError, match="version"):
        sweep(version=2)


def test_old_sweeps_load() -> None:
    old = Path(__file__).parent / "specs" / "sweep-1.json"
    spec = parse_sweep(json.loads(old.read_text(encoding="utf-8")))
    assert (spec.version, spec.metric, spec.total) == (1, "accuracy", 12)


@pytest.mark.long
def test_importing_the_public_names_imports_no_heavy_library() -> None:
    code = (
        "import sys, tuning, tuning.state, tuning.results, tuning.plots, tuning.pages;"
        "from rayjobs.tuning import HyperDriveConfig, SweepSpec, load_sweep, choice, BanditPolicy,"
        " BayesianParameterSampling;"
        "heavy = {'ray', 'torch', 'optuna', 'matplotlib', 'pandas', 'numpy', 'pyarrow'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    ).stdout
    assert printed.strip() == "[]"


def test_every_public_name_exists() -> None:
    from rayjobs import tuning

    assert all(getattr(tuning, name) for name in tuning._LAZY)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tuning.nothing


@pytest.mark.long
def test_a_star_import_brings_every_public_name() -> None:
    code = "from rayjobs.tuning import *; print(choice, HyperDriveConfig)"
    # A new interpreter: here, other tests may have loaded these names already.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


def test_the_guides_sweep_file_loads() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "sweeps.md"
    text = guide.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    assert parse_sweep(read_yaml(text)).register_as == "mnist-best"
