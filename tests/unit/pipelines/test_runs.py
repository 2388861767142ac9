"""The handles of a pipeline and its steps: which children, how long they wait, which metrics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from rayjobs import Workspace
from rayjobs.core.paths import driver_log_name
from rayjobs.jobs.records import MetricPoint
from rayjobs.pipelines.runs import PipelineRun, StepRun
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.target import starting
from tests.unit.pipelines.played import Played


@pytest.fixture
def workspace(played: Played) -> Iterator[Workspace]:
    opened = Workspace(path=played.workspace.path)
    yield opened
    opened.close()


@pytest.fixture
def queued(played: Played, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> PipelineRun:
    """Return a pipeline whose steps never start."""
    monkeypatch.setattr(starting, "ensure_target", lambda *_given, **_options: None)
    return PipelineRun.get(workspace, played.submit().id)


def step_of(run: PipelineRun, name: str) -> StepRun:
    (found,) = run.find_step_run(name)
    return found


def child_of(played: Played, step: StepRun, **tags: str) -> str:
    """Return the id of a new child of a step."""
    spec = JobSpec(command="true", tags=tags)
    new = NewJob(spec=spec, experiment="digits", snapshot=None, user="ada", parent=step.id)
    return played.store.submit(new)[0].id


def log(step: StepRun, name: str, value: Any, sequence: int = 1) -> None:
    point = MetricPoint(
        attempt=1,
        rank=0,
        sequence=sequence,
        name=name,
        value=value,
        step=None,
        at=datetime.now(UTC),
    )
    assert step._store.add_metrics(step.id, [point])


def names_of(run: PipelineRun, **conditions: Any) -> list[str]:
    return [one.name for one in run.get_children(**conditions)]


def test_children_are_filtered_by_all_conditions(queued: PipelineRun) -> None:
    prep, train = step_of(queued, "prep"), step_of(queued, "train")
    prep.tag("stage", "dev")
    train.tag("stage", "live")
    train.add_properties({"checked": "yes"})
    assert names_of(queued) == ["prep", "train", "test"]
    assert names_of(queued, tags="stage") == ["prep", "train"]
    assert names_of(queued, tags={"stage": "live"}) == ["train"]
    assert names_of(queued, properties={"checked": "yes"}) == ["train"]
    assert names_of(queued, tags="stage", properties={"checked": "no"}) == []
    assert names_of(queued, type="sweep") == []
    for of_steps in ("azureml.StepRun", "job", "azureml.scriptrun"):
        assert names_of(queued, type=of_steps) == ["prep", "train", "test"]


def test_children_of_steps_meet_the_same_conditions(queued: PipelineRun, played: Played) -> None:
    prep = step_of(queued, "prep")
    prep.tag("seed", "1")
    same, other = child_of(played, prep, seed="1"), child_of(played, prep, seed="2")
    ids = [one.id for one in queued.get_children(recursive=True)]
    assert {same, other} < {*ids} and len(ids) == 5
    found = queued.get_children(recursive=True, tags={"seed": "1"})
    assert {one.id for one in found} == {prep.id, same}
    found = queued.get_children(recursive=True, type="azureml.StepRun")
    assert {one.name for one in found} == {"prep", "train", "test"}


def test_children_that_completed_are_also_finished(played: Played, workspace: Workspace) -> None:
    run = PipelineRun.get(workspace, played.submit().id)
    played.complete_all(run.id, fails="train")
    for state in ("Finished", "Completed"):
        assert names_of(run, status=state) == ["prep"]
    assert names_of(run, status="Failed") == ["train"]


@pytest.mark.parametrize("show_output", [True, False])
def test_a_wait_for_a_step_ends_after_its_timeout(queued: PipelineRun, show_output: bool) -> None:
    step = step_of(queued, "prep")
    with pytest.raises(TimeoutError, match=rf"{step.id} is Queued after 0\.1s; it continues"):
        step.wait_for_completion(show_output=show_output, timeout_seconds=0.1)


def test_a_step_that_has_ended_needs_no_time(played: Played, workspace: Workspace) -> None:
    run = PipelineRun.get(workspace, played.run().id)
    assert step_of(run, "prep").wait_for_completion(timeout_seconds=0) == "Finished"


def test_metrics_of_a_step_are_filtered_by_type(queued: PipelineRun, played: Played) -> None:
    step = step_of(queued, "prep")
    log(step, "loss", 0.5)
    assert step.get_metrics() == {"loss": 0.5}
    for of_steps in ("azureml.StepRun", "job"):
        assert step.get_metrics(run_type=of_steps) == {"loss": 0.5}
    assert step.get_metrics(run_type="sweep") == {}
    child = child_of(played, step)
    assert step.get_metrics(recursive=True) == {step.id: {"loss": 0.5}, child: {}}
    found = step.get_metrics(recursive=True, run_type="azureml.StepRun")
    assert found == {step.id: {"loss": 0.5}}


def test_images_of_a_step_are_returned_as_bytes(played: Played, workspace: Workspace) -> None:
    first = PipelineRun.get(workspace, played.submit().id)
    step, file = step_of(first, "prep"), driver_log_name(0, 1)  # the file that each step stores
    log(step, "picture", {"kind": "image", "value": file})
    played.complete_all(first.id)
    reused = step_of(PipelineRun.get(workspace, played.run().id), "prep")
    assert reused.is_reused
    for one in (step, reused):
        assert one.get_metrics() == {"picture": file}
        assert one.get_metrics(populate=True) == {"picture": b"prep.py says 0\n"}
