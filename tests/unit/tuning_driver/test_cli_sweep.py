"""The sweep commands on a workspace whose jobs are simulated: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.main import run
from rayjobs.core.errors import UsageError
from rayjobs.core.paths import home
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Dependency, JobSpec
from rayjobs.store.requests import JobFilter, NewJob, NewPipeline, NewStep
from rayjobs.target import starting, stop_record
from rayjobs.target.stopping import TargetLocation
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.spec import parse_sweep
from tests.unit.tuning_driver.world import World

GOAL = PrimaryMetricGoal.MAXIMIZE
Call = Callable[..., tuple[int, str, str]]

FILE = """
name: digits
job: {script: train.py, source_directory: source, arguments: [--x, "9"]}
sampling: {type: random, seed: 1, parameters: {--x: {uniform: [0, 1]}}}
metric: accuracy
goal: maximize
limits: {total: 6, concurrent: 2}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(world.workspace.path))
    # Nothing is started here: `world.finish` simulates the target.
    monkeypatch.setattr("rayjobs.submit.submitting.wake_or_start", lambda *_: False)
    yield world
    world.close()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["sweep", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def finished(world: World, **changes: Any) -> str:
    sweep = world.submit(**changes)
    world.finish(world.driver(sweep))
    return sweep


@pytest.mark.long
def test_create_prints_the_id_and_next_commands(world: World, call: Call, tmp_path: Path) -> None:
    finished(world)  # makes the source folder too
    (tmp_path / "sweep.yaml").write_text(FILE)
    code, out, err = call("create", "-f", str(tmp_path / "sweep.yaml"))
    assert code == 0
    assert world.store.sweep(out.strip()).job.state is JobState.RUNNING
    assert f"rayjobs sweep best {out.strip()[-8:]}" in err
    code, out, _ = call("create", "-f", str(tmp_path / "sweep.yaml"), "--json")
    assert (code, json.loads(out)["kind"]) == (0, "sweep")
    code, out, err = call("create", "-f", str(tmp_path / "sweep.yaml"), "-q")
    assert (code, len(out.split()), err) == (0, 1, "")


@pytest.mark.long
def test_a_sweep_is_submitted_without_ray_and_without_a_trial(world: World, tmp_path: Path) -> None:
    finished(world)
    (tmp_path / "sweep.yaml").write_text(FILE)
    code = (
        "import sys, rayjobs.submit.submitting, tuning\n"
        "rayjobs.submit.submitting.wake_or_start = lambda *_: False\n"
        "from rayjobs.cli.main import run\n"
        f"code = run(['sweep', 'create', '-q', '-f', {str(tmp_path / 'sweep.yaml')!r}])\n"
        "heavy = [name for name in ('ray', 'torch', 'optuna', 'numpy') if name in sys.modules]\n"
        "raise SystemExit(code or ' '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    assert not world.store.trials(done.stdout.strip())


@pytest.mark.long
def test_a_dry_run_shows_the_first_commands_and_submits_nothing(
    world: World, call: Call, tmp_path: Path
) -> None:
    finished(world)
    (tmp_path / "sweep.yaml").write_text(FILE)
    code, out, err = call("create", "-f", str(tmp_path / "sweep.yaml"), "--dry-run")
    assert code == 0
    assert "the file sets seed 1" in err
    assert "6 trials, 2 at a time" in out
    assert "train.py --x 0." in out
    code, out, _ = call("create", "-f", str(tmp_path / "sweep.yaml"), "--dry-run", "--json")
    shown = json.loads(out)
    assert len(shown["first_commands"]) == 5
    assert (shown["seed"], shown["sweep"]["sampling"]["seed"]) == (1, 1)
    assert len(world.store.sweeps()) == 1
    _, sweep_id, _ = call("create", "-q", "-f", str(tmp_path / "sweep.yaml"))
    sampler = parse_sweep(world.store.sweep(sweep_id.strip()).spec).sampling.sampler(GOAL)
    assert [sampler.suggest(number) for number in range(5)] == shown["first_trials"]


@pytest.mark.long
def test_a_dry_run_shows_no_seed_that_a_submit_would_not_use(
    world: World, call: Call, tmp_path: Path
) -> None:
    finished(world)
    (tmp_path / "sweep.yaml").write_text(FILE.replace("seed: 1, ", ""))
    _, _, err = call("create", "-f", str(tmp_path / "sweep.yaml"), "--dry-run")
    assert "the file sets no seed" in err
    _, out, _ = call("create", "-f", str(tmp_path / "sweep.yaml"), "--dry-run", "--json")
    shown = json.loads(out)
    assert (shown["seed"], "seed" in shown["sweep"]["sampling"]) == (None, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{--x: {uniform: [0, 1]}}", "{}"), "the search space is empty"),
        (("goal: maximize", "goal: up"), "Write maximize or minimize."),
        (("total: 6", "totl: 6"), "Did you mean 'total'?"),
        (("script: train.py", "script: absent.py"), "absent.py"),
        (("[0, 1]", "[1, 0]"), "sampling"),
    ],
)
@pytest.mark.long
def test_a_wrong_file_is_refused_before_anything_is_submitted(
    world: World, call: Call, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    finished(world)
    (tmp_path / "sweep.yaml").write_text(FILE.replace(*change))
    code, out, err = call("create", "-f", str(tmp_path / "sweep.yaml"))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert len(world.store.sweeps()) == 1


@pytest.mark.long
def test_all_problems_of_a_sweep_file_are_reported_together(
    world: World, call: Call, tmp_path: Path
) -> None:
    finished(world)
    wrong = FILE.replace("train.py", "absent.py").replace("goal: maximize", "goal: up")
    wrong = wrong.replace("type: random", "type: bayesian") + "policy: {type: bandit, slack: 1}\n"
    (tmp_path / "sweep.yaml").write_text(wrong)
    code, out, err = call("create", "-f", str(tmp_path / "sweep.yaml"))
    assert (code, out) == (2, "")
    for words in (
        "job.script",
        "absent.py",
        "Write maximize or minimize.",
        "slack",
        "Bayesian sampling takes no early termination policy",
    ):
        assert words in err, err
    assert err.count("Bayesian sampling takes no") == 1


@pytest.mark.long
def test_ls_show_and_best_agree(world: World, call: Call) -> None:
    sweep = finished(world)
    best = world.store.job(sweep).properties
    code, out, _ = call("ls")
    assert code == 0
    assert "6/6" in out and "Completed" in out and sweep[-8:] in out
    [listed] = json.loads(call("ls", "--json")[1])
    assert listed["best"]["job"] == best["best_run"]
    code, out, _ = call("show", sweep[-8:])
    assert code == 0
    assert f"{best['best_trial']}*" in out
    assert out.count("Completed") == 7
    shown = json.loads(call("show", "--json", sweep)[1])
    assert [trial["number"] for trial in shown["trials"]] == list(range(6))
    code, out, err = call("best", sweep)
    assert (code, best["best_run"] in out) == (0, True)
    assert "rayjobs download" in err
    top = json.loads(call("best", sweep, "-n", "3", "--json")[1])
    values = [trial["best"] for trial in top]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3


def test_non_numeric_reports_are_text_in_json(world: World, call: Call) -> None:
    world.script = lambda parameters: (["NaN"], JobState.COMPLETED, "accuracy")
    sweep = finished(world, limits={"total": 1})
    code, out, _ = call("show", "--json", sweep)

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not a JSON")

    shown = json.loads(out, parse_constant=refuse)
    assert (code, shown["trials"][0]["reports"]) == (0, ["NaN"])
    code, _, err = call("best", sweep)
    assert code == 3
    assert "no trial of" in err


@pytest.mark.long
def test_watch_prints_events_and_exits_with_the_sweep_outcome(world: World, call: Call) -> None:
    sweep = finished(world)
    code, out, err = call("watch", sweep)
    assert code == 0
    assert out.count(" submitted: x=") == 6
    assert out.count(" completed: accuracy = ") == 6
    assert "best so far: trial" in out
    assert "Completed" in err
    world.script = lambda parameters: ([0.5], JobState.COMPLETED, "acuracy")
    failed = finished(world, limits={"total": 1})
    code, out, err = call("watch", failed)
    assert code == 1
    assert "it reported: acuracy. Did you mean 'acuracy'?" in out
    assert "Failed" in err


def test_unregistered_requested_model_is_a_failure(
    world: World,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_given: Any, **_more: Any) -> None:
        raise UsageError("its weights are torn")

    monkeypatch.setattr("rayjobs.models.registry.register", refuse)
    sweep = finished(world, limits={"total": 1}, register_as="digits-best")
    code, _, err = call("watch", sweep)
    assert code == 1
    assert "was not registered as model 'digits-best'" in err
    assert run(["show", sweep]) == 0
    models = capsys.readouterr().out.partition("\nModels\n")[2]
    assert "was not registered as model 'digits-best': its weights are torn" in models


def test_cancel_requests_once_and_reports_a_finished_sweep(world: World, call: Call) -> None:
    sweep = world.submit()
    code, out, err = call("cancel", sweep)
    assert (code, out) == (0, f"{sweep}: cancel requested (still Running)\n")
    assert "does not run" in err
    assert world.finish(world.driver(sweep)) is JobState.CANCELED
    code, out, err = call("cancel", sweep, "none-such")
    assert (code, out) != (0, "")
    assert "none-such" in err
    code, out, _ = call("cancel", sweep, sweep)
    assert (code, out) == (0, f"{sweep} has already ended (Canceled)\n")


def test_cancel_reports_a_sweep_that_ends_at_once(world: World, call: Call) -> None:
    base = JobSpec(name="search", script="t.py")
    before = NewStep(number=0, name="prepare", job="prepare_1_0000000a", spec=base)
    step = NewStep(
        number=1,
        name="search",
        job="search_1_0000000b",
        spec=JobSpec(name="search", script="t.py", depends_on=(Dependency(job=before.job),)),
        after=("prepare",),
        driver="m:f",
        sweep={},
    )
    world.workspace.store.put_pipeline(
        NewPipeline(
            name="p",
            base=base,
            definition={},
            parameters={},
            steps=(before, step),
            experiment="p",
            user="ada",
        )
    )
    code, out, _ = call("cancel", step.job)
    assert (code, out) == (0, f"{step.job}: Canceled\n")


@pytest.mark.long
def test_plot_writes_pngs_and_a_page(world: World, call: Call, tmp_path: Path) -> None:
    sweep = finished(world)
    code, out, _ = call("plot", sweep, "-o", str(tmp_path / "plots"))
    assert code == 0
    paths = [Path(line) for line in out.split()]
    assert [path.suffix for path in paths] == [".png", ".png", ".png", ".html"]
    assert all(path.stat().st_size > 5000 for path in paths)


def test_plot_of_a_sweep_without_reports_leaves_no_folder(
    world: World, call: Call, tmp_path: Path
) -> None:
    sweep = world.submit()
    code, out, err = call("plot", sweep, "-o", str(tmp_path / "plots"))
    assert (code, out) == (2, "")
    assert "nothing to draw. Wait for the first report." in err
    assert not (tmp_path / "plots").exists()


@pytest.mark.long
def test_job_is_not_a_sweep_and_unknown_sweep_is_not_found(world: World, call: Call) -> None:
    sweep = finished(world)
    job = world.jobs(sweep)[0].id
    code, _, err = call("show", job)
    assert (code, "is a job, not a sweep" in err) == (3, True)
    assert call("best", "nothing")[0] == 3


@pytest.mark.long
def test_best_excludes_trials_that_diverged_later(world: World, call: Call) -> None:
    def script(parameters: Any) -> Any:
        x = float(parameters["--x"])
        return ([0.2, 0.3] if x < 0.5 else [0.9, 0.9, "NaN"]), JobState.COMPLETED, "accuracy"

    world.script = script
    both = {"type": "grid", "parameters": {"--x": ["choice", [0.9, 0.2]]}}
    sweep = finished(world, sampling=both, limits={"total": 2})
    code, out, _ = call("best", sweep, "--json")
    assert (code, json.loads(out)["number"]) == (0, 1)
    [listed] = json.loads(call("best", sweep, "-n", "2", "--json")[1])
    assert listed["number"] == 1
    alone = {"type": "grid", "parameters": {"--x": ["choice", [0.9]]}}
    code, _, err = call("best", finished(world, sampling=alone, limits={"total": 1}))
    assert code == 3
    assert "a finite last value of 'accuracy'" in err


@pytest.mark.long
def test_name_selects_the_sweep_and_never_its_trials(world: World, call: Call) -> None:
    sweep = finished(world)
    name = world.store.job(sweep).display_name
    assert name is not None
    assert {job.spec.name for job in world.store.jobs(JobFilter(parent=sweep))} == {name}
    assert world.store.find(name).id == sweep
    for command in ("show", "best", "cancel"):
        code, _, err = call(command, name)
        assert (code, "several" in err) == (0, False), (command, err)


@pytest.mark.long
def test_newest_sweep_of_a_name_is_read_but_none_is_canceled(world: World, call: Call) -> None:
    older, newer = finished(world), finished(world)
    name = world.store.job(newer).display_name
    assert name is not None
    world.store.submit(
        NewJob(  # a job of that name too: sweep commands look among sweeps alone
            spec=JobSpec(name=name, script="train.py"), experiment=name, snapshot=None, user="ada"
        )
    )
    code, out, err = call("show", "--json", name)
    assert (code, json.loads(out)["id"]) == (0, newer)
    assert f"{name}: the newest of 2 is {newer}, Completed" in err
    code, out, err = call("cancel", name)
    assert (code, out) == (2, "")
    assert f"{name!r} names 2 sweeps; give the id of one, its last part, or a name that" in err
    assert older in err and newer in err
    code, _, err = call("show", "no-such-sweep")
    assert (code, "no sweep 'no-such-sweep'" in err) == (3, True)


def test_all_lists_show_a_stopped_target_alike(
    world: World, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = world.submit()
    world.driver(sweep).turn()
    world.play()
    first = world.jobs(sweep)[0]
    assert first.state is JobState.RUNNING
    location = TargetLocation("local", home())
    starting.register_workspace(location.paths, world.workspace.path)
    with starting.start_lock(location.paths):
        stop_record.note(location.paths)
    assert run(["ls", "--expand", "--json"]) == 0
    listed = {row["id"]: row["shown_state"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {sweep: "Queued", **{job.id: "Queued" for job in world.jobs(sweep)}}
    shown = json.loads(call("show", "--json", sweep)[1])
    trials = {one["job"]: one["shown_state"] for one in shown["trials"] if one["job"]}
    assert {sweep: shown["shown_state"], **trials} == listed
    _, text, _ = call("show", sweep)
    assert "was stopped" in text
    assert "2 queued" in text
    assert "Running" not in text
    (row,) = json.loads(call("ls", "--json")[1])
    assert row["shown_state"] == "Queued"
    assert "Running" not in call("ls")[1]


@pytest.mark.long
def test_ls_shows_a_sweep_as_one_line_and_its_trials_in_their_order(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = finished(world)
    trials = [job.id for job in sorted(world.jobs(sweep), key=lambda job: job.serial)]

    def listed(*options: str) -> list[str]:
        capsys.readouterr()
        assert run(["ls", "--json", *options]) == 0
        return [row["id"] for row in json.loads(capsys.readouterr().out)]

    assert len(trials) == 6
    assert listed() == listed("-a") == [sweep]
    assert listed("-a", "--expand") == [sweep, *trials]
    assert listed("--parent", sweep) == trials
    assert listed("--parent", sweep, "-n", "2") == trials[:2]
    running = world.submit()
    world.driver(running).turn()
    capsys.readouterr()
    assert run(["ls"]) == 0
    assert "2 trials: 2 queued" in capsys.readouterr().out


@pytest.mark.long
def test_ls_counts_a_trial_without_the_metric_as_the_sweep_does(
    world: World, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    world.script = lambda parameters: ([0.5], JobState.COMPLETED, "acuracy")
    sweep = world.submit(limits={"total": 3, "concurrent": 2})
    driver = world.driver(sweep)
    while not all(job.state.is_final for job in world.jobs(sweep)) or not world.jobs(sweep):
        driver.turn()
        world.play()
    driver.turn()
    assert {job.state for job in world.jobs(sweep)[:2]} == {JobState.COMPLETED}
    assert not world.store.job(sweep).state.is_final
    _, text, _ = call("show", sweep)
    assert "1 of 3 trials ended" not in text
    assert "(0 completed, 0 stopped, 2 failed)" in text
    assert text.count("Correct the sweep's metric") == 2  # once for each trial
    _, text, _ = call("show", sweep, "--json")
    assert [one["cause"] for one in json.loads(text)["trials"]] == ["no_metric", "no_metric", None]
    capsys.readouterr()
    assert run(["ls"]) == 0
    listed = capsys.readouterr().out
    assert "3 trials: 2 failed, 1 queued" in listed
    trial = world.jobs(sweep)[0].id
    for command in (["ls", "--parent", sweep], ["show", trial]):
        capsys.readouterr()
        assert run(command) == 0
        output = " ".join(capsys.readouterr().out.split())
        assert "failed as a trial: trial 0 never reported the metric 'accuracy'" in output
    world.finish(driver)
    assert world.store.job(sweep).state is JobState.FAILED
    _, text, _ = call("show", sweep)
    assert text.count("Correct the sweep's metric") == 3
