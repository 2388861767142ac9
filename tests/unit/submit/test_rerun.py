"""A job run again: what stays, and what a setting changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import SpecError, UsageError
from rayjobs.jobs.records import Job
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewPipeline, NewStep
from rayjobs.submit.rerun import rerun, with_argument
from rayjobs.submit.submitting import resume, submit
from rayjobs.workspace.folder import OpenWorkspace, open_workspace


@pytest.fixture
def workspace(own_home: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(own_home / "w") as opened:
        yield opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text("print('first')\n")
    return folder


def first(workspace: OpenWorkspace, source: Path, **values: Any) -> Job:
    spec = JobSpec(
        name="train",
        script="train.py",
        source_directory=str(source),
        arguments=("--lr", "0.1", "--mode=a"),
        priority=3,
        **values,
    )
    return submit(workspace, spec, source=source, experiment="digits", wake=False).job


@pytest.mark.parametrize("command", [rerun, resume])
def test_pipeline_run_is_refused_with_the_command_that_continues_it(
    workspace: OpenWorkspace, command: Callable[..., object]
) -> None:
    base = JobSpec(name="digits", command="pipeline of 1 step")
    step = NewStep(number=0, name="a", job="j-a", spec=JobSpec(script="a.py"), reuse_key="a")
    new = NewPipeline(
        steps=(step,),
        name="digits",
        base=base,
        definition={},
        parameters={},
        experiment="e",
        user="ada",
    )
    run = workspace.store.put_pipeline(new)[0].job
    with pytest.raises(UsageError, match=f"is a pipeline run.*`rayjobs pipeline resume {run.id}`"):
        command(workspace, run.id)


def test_the_same_code_and_spec(workspace: OpenWorkspace, source: Path) -> None:
    job = first(workspace, source)
    (source / "train.py").write_text("print('second')\n")
    again = rerun(workspace, job.id, wake=False).job
    assert again.id != job.id
    assert again.spec == job.spec
    assert again.display_name == "train-1"
    assert (again.snapshot, again.experiment) == (job.snapshot, "digits")
    newer = rerun(workspace, job.id, new_code=True, wake=False).job
    assert newer.snapshot != job.snapshot


def test_settings_change_the_spec_and_the_scripts_options(
    workspace: OpenWorkspace, source: Path
) -> None:
    job = first(workspace, source)
    settings = ["resources.cpus=2", "max_duration=2h", "--lr=0.5", "--mode=b", "--new=1"]
    again = rerun(workspace, job.id, settings=settings, wake=False).job
    assert again.spec.resources.cpus == 2
    assert again.spec.max_duration_s == 7200
    assert again.spec.arguments == ("--lr", "0.5", "--mode=b", "--new", "1")
    assert again.spec.priority == 3


def test_wrong_settings_suggest_the_correct_form(workspace: OpenWorkspace, source: Path) -> None:
    job = first(workspace, source)
    with pytest.raises(SpecError) as raised:
        rerun(workspace, job.id, settings=["lr=1", "nothing"], wake=False)
    text = str(raised.value)
    assert "Write --set --lr=1." in text
    assert "'nothing' has no KEY=" in text
    assert len(workspace.store.jobs()) == 1


def test_a_setting_that_cannot_be_read_is_one_problem(
    workspace: OpenWorkspace, source: Path
) -> None:
    job = first(workspace, source, max_duration_s=60.0)
    with pytest.raises(SpecError) as raised:
        rerun(workspace, job.id, settings=["max_duration=12hh"], wake=False)
    assert [one.path for one in raised.value.problems] == ["max_duration"]


def test_array_member_is_rerun_alone(workspace: OpenWorkspace, source: Path) -> None:
    array = first(workspace, source, array={"indices": "0-3"})
    again = rerun(workspace, f"{array.id}[2]", wake=False).job
    assert again.spec.array is not None
    assert again.spec.array.expand() == (2,)
    assert again.spec.array.count == 4


def test_new_code_needs_a_source_directory(workspace: OpenWorkspace) -> None:
    job = submit(workspace, JobSpec(name="c", command="true"), wake=False).job
    with pytest.raises(UsageError, match="no source directory"):
        rerun(workspace, job.id, new_code=True, wake=False)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--lr", "1"], ["--lr", "9"]),
        (["--lr=1", "x"], ["--lr=9", "x"]),
        (["--lr", "1", "--lr", "2"], ["--lr", "1", "--lr", "9"]),
        (["--lrate", "1"], ["--lrate", "1", "--lr", "9"]),
        ([], ["--lr", "9"]),
    ],
)
def test_an_option_is_replaced_or_added(arguments: list[str], changed: list[str]) -> None:
    assert with_argument(arguments, "--lr", "9") == changed
