"""Submit, and the handle of the submitted job, in a workspace with a simulated target."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs import (
    CondaDependencies,
    Environment,
    Experiment,
    JobSpec,
    PyTorch,
    Run,
    ScriptRunConfig,
    Workspace,
)
from rayjobs.api.run import JobRun
from rayjobs.api.submitters import register
from rayjobs.core.errors import (
    CannotBePlacedError,
    JobFailedError,
    NotFoundError,
    Problem,
    SpecError,
    UsageError,
)
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Dependency, Distribution, Resources
from rayjobs.submit import checks
from rayjobs.submit.submitting import Entry, submit
from rayjobs.target import revive, starting
from rayjobs.workspace.folder import open_workspace
from tests.unit.results.played import begin, end


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that would have been started."""
    names: list[str] = []
    monkeypatch.setattr(revive, "in_background", lambda target, **_more: names.append(target))
    monkeypatch.setattr(starting, "ensure_target", lambda name, **options: names.append(name))
    return names


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, started: list[str]) -> Iterator[Workspace]:
    made = Workspace.create("team", path=tmp_path / "team")
    yield made
    made.close()


@pytest.fixture
def experiment(workspace: Workspace) -> Experiment:
    return Experiment(workspace, "mnist")


@pytest.fixture
def run(experiment: Experiment, source: Path) -> JobRun:
    config = ScriptRunConfig(str(source), "train.py", ["--lr", 0.5])
    submitted = experiment.submit(config, tags={"kind": "test"})
    assert isinstance(submitted, JobRun)
    return submitted


# -- submit ---------------------------------------------------------------------------------------


def test_a_submitted_script_is_queued_with_its_snapshot(
    run: JobRun, workspace: Workspace, started: list[str]
) -> None:
    job = workspace.store.job(run.id)
    assert (job.state, job.experiment, job.kind) == (JobState.QUEUED, "mnist", "job")
    assert job.spec.arguments == ("--lr", "0.5")
    assert job.snapshot is not None
    assert dict(job.tags) == {"kind": "test"}
    assert started == ["local"]
    assert isinstance(run, Run)
    assert run.get_status() == "Queued"


def test_the_same_key_gives_the_same_job(workspace: Workspace, source: Path) -> None:
    spec = JobSpec(script="train.py")
    entry = Entry(idempotency_key="k")
    first = submit(workspace.opened, spec, source=source, entry=entry)
    again = submit(workspace.opened, spec, source=source, entry=entry)
    assert (first.created, again.created) == (True, False)
    assert first.job.id == again.job.id
    assert first.starting


def test_without_wake_nothing_is_started(
    workspace: Workspace, source: Path, started: list[str]
) -> None:
    done = submit(workspace.opened, JobSpec(script="train.py"), source=source, wake=False)
    assert not done.starting
    assert started == []


def test_a_target_that_cannot_start_does_not_lose_the_job(
    workspace: Workspace, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_target: str, **_more: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(revive, "in_background", refuse)
    done = submit(workspace.opened, JobSpec(script="train.py"), source=source)
    assert done.job.state is JobState.QUEUED
    assert "could not be started" in done.warnings[-1]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (JobSpec(script="trian.py"), "script"),
        (
            JobSpec(
                script="train.py",
                distribution=Distribution(nodes=2, processes_per_node=2, backend="none"),
            ),
            "distribution.backend",
        ),
        (JobSpec(script="train.py", resume_from="other"), "resume_from"),
        (JobSpec(script="train.py", target="nowhere"), "target"),
        (JobSpec(script="train.py", depends_on=(Dependency(job="no"),)), "depends_on[0].job"),
    ],
)
def test_a_wrong_spec_is_refused_and_writes_nothing(
    workspace: Workspace, source: Path, spec: JobSpec, path: str, started: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        submit(workspace.opened, spec, source=source)
    assert path in [problem.path for problem in caught.value.problems]
    assert workspace.store.jobs() == []
    assert started == []


def test_a_submit_checks_its_spec_once(
    workspace: Workspace, source: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[JobSpec] = []
    real = checks.check

    def check(spec: JobSpec, **options: Any) -> list[Problem]:
        checked.append(spec)
        return real(spec, **options)

    monkeypatch.setattr(checks, "check", check)
    submit(workspace.opened, JobSpec(script="train.py"), source=source)
    assert len(checked) == 1


def test_unsatisfiable_job_is_refused(workspace: Workspace, source: Path) -> None:
    spec = JobSpec(script="train.py", resources=Resources(gpus=1000))
    with pytest.raises(CannotBePlacedError, match="1000 GPUs"):
        submit(workspace.opened, spec, source=source)
    assert workspace.store.jobs() == []


def test_dependencies_are_written_in_full(workspace: Workspace, source: Path, run: JobRun) -> None:
    spec = JobSpec(script="train.py", depends_on=(Dependency(job=run.id[-8:]),))
    done = submit(workspace.opened, spec, source=source)
    assert done.job.spec.depends_on[0].job == run.id


def test_a_spec_and_an_estimator_can_be_submitted(experiment: Experiment, source: Path) -> None:
    spec = JobSpec(script="train.py", source_directory=str(source))
    first = experiment.submit(spec, tags={"a": "b"}, idempotency_key="one")
    assert experiment.submit(spec, tags={"a": "b"}, idempotency_key="one").id == first.id
    estimator = PyTorch(str(source), compute_target="local", entry_script="train.py")
    second = experiment.submit(estimator, script_params={"--n": 1})
    assert second.get_details()["runDefinition"]["arguments"] == ["--n", "1"]
    with pytest.raises(UsageError, match="does not accept pipeline_parameters"):
        experiment.submit(spec, pipeline_parameters={})
    with pytest.raises(UsageError, match=r"does not accept tag\. Did you mean `tags`\?"):
        experiment.submit(spec, tag={})


def test_other_packages_register_their_own_kinds(experiment: Experiment, run: JobRun) -> None:
    class Sweep:
        pass

    class Special(Sweep):
        pass

    with pytest.raises(UsageError, match="a Special cannot be submitted"):
        experiment.submit(Special())

    def submitter(experiment: Experiment, config: Any, *, tags: Any = None, **kwargs: Any) -> Run:
        assert isinstance(config, Special)
        return run

    register(Sweep, submitter)
    assert experiment.submit(Special()) is run


# -- workspaces and experiments -------------------------------------------------------------------


def test_workspaces_are_found_again(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    workspace.write_config(tmp_path / "project")
    for found in (Workspace.from_config(project), Workspace.from_config(tmp_path / "project")):
        assert (found.name, found.id) == ("team", workspace.id)
        found.close()
    monkeypatch.chdir(project)
    (project / "config.json").write_text('["a config of something else"]')
    assert Workspace.from_config().id == workspace.id
    with pytest.raises(UsageError, match="is not a valid workspace config"):
        Workspace.from_config(project / "config.json")
    (project / "config.json").unlink()
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        Workspace.from_config("/proc")
    named = Workspace.create("other")
    assert Workspace.get("other").id == named.id
    assert Workspace.create("other", exist_ok=True).id == named.id
    with pytest.raises(UsageError, match="already"):
        Workspace.create("other")
    with pytest.raises(NotFoundError, match="no workspace called 'third'"):
        Workspace.get("third")
    with pytest.raises(UsageError, match="cannot be called"):
        Workspace.create("a/b")


def test_azure_workspace_arguments_have_no_effect_and_warn(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Workspace.create("tagged", tags={"team": "a"}, sku="basic", key_vault=None).close()
    assert "Workspace.create: sku, tags: no effect" in capsys.readouterr().err


def test_without_a_config_the_command_lines_workspace_is_used(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Workspace.from_config()
    assert found.get_details()["path"] == str(own_home / "w")


def test_runs_are_listed_newest_first(
    workspace: Workspace, experiment: Experiment, source: Path, run: JobRun
) -> None:
    second = experiment.submit(ScriptRunConfig(str(source), "train.py"))
    Experiment(workspace, "else").submit(ScriptRunConfig(str(source), "train.py"))
    assert [one.id for one in experiment.get_runs()] == [second.id, run.id]
    assert [one.id for one in experiment.get_runs(tags="kind")] == [run.id]
    assert [one.id for one in experiment.get_runs(tags={"kind": "other"})] == []
    assert [one.id for one in Run.list(experiment, status="Queued")] == [second.id, run.id]
    assert list(workspace.experiments) == ["else", "mnist"]
    assert [one.name for one in Experiment.list(workspace)] == ["else", "mnist"]
    assert "local" in workspace.compute_targets
    for wrong in ("", " ", "x" * 300, "a\nb"):
        with pytest.raises(UsageError, match="experiment"):
            Experiment(workspace, wrong)


def test_run_is_found_by_id_and_its_prefix(
    workspace: Workspace, experiment: Experiment, run: JobRun
) -> None:
    assert workspace.get_run(run.id[-8:]).id == run.id
    assert Run.get(workspace, run.id).experiment.name == "mnist"
    assert Run(experiment, run.id).id == run.id
    with pytest.raises(NotFoundError):
        Run(experiment, "nothing_1_00000000")


# -- the handle -----------------------------------------------------------------------------------


def test_waiting_shows_stages_and_output_to_the_end(
    workspace: Workspace, run: JobRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = workspace.store.job(run.id)
    root = tmp_path / "a1"

    def act() -> None:
        # A separate store, as the target has.
        with open_workspace(workspace.opened.path) as opened:
            paths = begin(opened, job, root)
            paths.driver_log(0).write_bytes(b"epoch 1\x1b]0;title\x07\nlast line")
            (paths.work / "outputs").mkdir()
            (paths.work / "outputs" / "model.pt").write_bytes(b"weights")
            end(opened, job, root)

    thread = threading.Thread(target=act)
    thread.start()
    details = run.wait_for_completion(show_output=True)
    thread.join(150)
    assert details["status"] == "Completed"
    assert details["logFiles"].keys() == {"azureml-logs/70_driver_log.txt"}
    shown = capsys.readouterr().out
    assert shown.startswith(f"RunId: {run.id}\n")
    assert "epoch 1\nlast line\n" in shown
    assert shown.endswith(f"job {run.id} is Completed\n")


def test_failed_job_raises_an_error_with_its_log_lines(
    workspace: Workspace, run: JobRun, tmp_path: Path
) -> None:
    job = workspace.store.job(run.id)
    begin(workspace.opened, job, tmp_path / "a1")
    failure = Failure(
        FailureClass.USER,
        "rank 0 exited with code 1: ValueError: x (train.py:3)",
        rank=0,
        exit_code=1,
        lines=("ValueError: x",),
    )
    end(workspace.opened, job, tmp_path / "a1", state=JobState.FAILED, failure=failure)
    with pytest.raises(JobFailedError, match=r"failed \(user\): rank 0 exited") as caught:
        run.wait_for_completion()
    assert "    ValueError: x" in str(caught.value)
    details = run.wait_for_completion(raise_on_error=False)
    assert details["error"]["error"]["exitCode"] == 1


def test_ctrl_c_leaves_the_job(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    for show_output in (True, False):
        with pytest.raises(KeyboardInterrupt):
            run.wait_for_completion(show_output=show_output)
        assert f"rayjobs cancel {run.id}" in capsys.readouterr().out
    assert run.get_status() == "Queued"


def test_a_cancel_is_idempotent(run: JobRun) -> None:
    run.cancel()
    run.cancel()
    assert run.get_status() == "Canceled"
    details = run.wait_for_completion()  # as in Azure ML v1: a canceled run is not an error
    assert details["status"] == "Canceled"


def test_files_are_listed_and_downloaded(
    workspace: Workspace, run: JobRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, root = workspace.store.job(run.id), tmp_path / "a1"
    paths = begin(workspace.opened, job, root)
    paths.driver_log(0).write_bytes(b"printed")
    (paths.work / "outputs" / "sub").mkdir(parents=True)
    (paths.work / "outputs" / "sub" / "model.pt").write_bytes(b"weights")
    end(workspace.opened, job, root)
    assert run.get_file_names() == ["azureml-logs/70_driver_log.txt", "outputs/sub/model.pt"]
    monkeypatch.chdir(tmp_path)
    run.download_file("outputs/sub/model.pt")
    assert (tmp_path / "model.pt").read_bytes() == b"weights"
    run.download_file("user_logs/std_log.txt", "logs/mine.txt")
    assert (tmp_path / "logs" / "mine.txt").read_bytes() == b"printed"
    run.download_files("outputs/", "all")
    assert (tmp_path / "all" / "outputs" / "sub" / "model.pt").exists()
    run.download_files("outputs/", "cut", append_prefix=False)
    assert (tmp_path / "cut" / "sub" / "model.pt").exists()
    run.download_files("outputs/", output_paths=["one.pt"])
    assert (tmp_path / "one.pt").read_bytes() == b"weights"
    for name in ("outputs/none", "../x"):
        with pytest.raises(NotFoundError, match="it has: azureml-logs"):
            run.download_file(name)
    with pytest.raises(NotFoundError, match="begins with 'none'"):
        run.download_files("none")
    with pytest.raises(UsageError, match="2 output_paths for 1 files"):
        run.download_files("outputs/", output_paths=["a", "b"])
    assert run.get_all_logs("logs2") == ["logs2/azureml-logs/70_driver_log.txt"]
    with_logs = run.get_details_with_logs()["logFiles"]
    assert with_logs == {"azureml-logs/70_driver_log.txt": "printed"}


def test_the_snapshot_can_be_restored(run: JobRun, tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    path = Path(run.restore_snapshot(path=str(tmp_path / "restored")))
    assert path.suffix == ".zip" and path.parent == tmp_path / "restored"
    with zipfile.ZipFile(path) as file:
        assert file.read("train.py") == b"print('hello')\n"


def test_tags_metrics_and_properties_from_outside(run: JobRun) -> None:
    run.tag("best")
    run.set_tags({"lr": 0.5})
    assert run.get_tags() == {"kind": "test", "best": None, "lr": "0.5"}
    assert run.remove_tags(["best"]) == {"kind": "test", "lr": "0.5"}
    run.add_properties({"author": "me"})
    assert run.properties["author"] == "me"
    with pytest.raises(UsageError):
        run.add_properties({"author": "you"})
    run.log("score", 0.5)
    run.log("score", 0.75)
    run.log_row("fit", x=1)
    assert run.get_metrics() == {"score": [0.5, 0.75], "fit": {"x": 1}}
    assert run.get_metrics("fit") == {"fit": {"x": 1}}
    assert run.get_metrics(recursive=True) == {run.id: run.get_metrics()}
    run.display_name = "my best"
    assert run.display_name == "my best"
    assert run.parent is None
    assert list(run.get_children()) == []
    with pytest.raises(UsageError, match="only a completed run can become a model"):
        run.register_model("m")


@pytest.mark.long
def test_submitting_imports_nothing_heavy(tmp_path: Path, source: Path) -> None:
    code = (
        "import sys\n"
        "from rayjobs import Experiment, ScriptRunConfig, Workspace\n"
        "from rayjobs.submit import submitting\n"
        "from rayjobs.target import revive\nrevive.in_background = lambda *a, **more: None\n"
        "ws = Workspace.create('w', path=sys.argv[1])\n"
        "run = Experiment(ws, 'e').submit(ScriptRunConfig(sys.argv[2], 'train.py'))\n"
        "run.get_details(), run.get_metrics()\n"
        "heavy = {'ray', 'torch', 'numpy', 'pandas', 'pyarrow', 'matplotlib', 'sqlalchemy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w"), str(source)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_environment_substitutes_are_printed_once(
    experiment: Experiment, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = Environment("old")
    environment.python.conda_dependencies = CondaDependencies.create(
        pip_packages=["azureml-defaults", "torch==1.6.0"]
    )
    for seed in ("1", "2"):
        experiment.submit(ScriptRunConfig(str(source), "train.py", [seed], environment=environment))
    stderr = capsys.readouterr().err
    assert stderr.count("rayjobs: instead of torch==1.6.0: torch==") == 1
