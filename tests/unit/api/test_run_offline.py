"""A script that is started manually gets the same API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from rayjobs import Run
from rayjobs.injob import run as injob_run
from rayjobs.injob.azureml.exceptions import UserErrorException
from rayjobs.injob.offline import OfflineRun
from rayjobs.injob.run import RunNotSupportedError


@pytest.fixture(autouse=True)
def own_context() -> Iterator[None]:
    injob_run._contexts.clear()
    yield
    injob_run._contexts.clear()


def test_outside_of_jobs_the_run_is_offline() -> None:
    run = Run.get_context()
    assert isinstance(run, OfflineRun)
    assert run.id.startswith("OfflineRun_")
    assert Run.get_context() is run
    assert run.experiment.name == "offline"
    with pytest.raises(RunNotSupportedError, match="does not belong to a job"):
        Run.get_context(allow_offline=False)


def test_offline_run_prints_and_remembers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Run.get_context()
    assert isinstance(run, OfflineRun)
    run.log("loss", 0.5, step=1)
    run.log("loss", 0.25, step=2)
    run.log_row("fit", x=1)
    run.tag("kind", "test")
    assert run.get_metrics() == {"loss": [0.5, 0.25], "fit": {"x": 1}}
    assert run.get_tags() == {"kind": "test"}
    assert "loss: 0.5 (step 1)" in capsys.readouterr().out
    (tmp_path / "a.txt").write_text("a")
    run.upload_file("outputs/a.txt", str(tmp_path / "a.txt"))
    assert run.get_file_names() == ["outputs/a.txt"]
    run.download_file("outputs/a.txt", str(tmp_path / "b.txt"))
    assert (tmp_path / "b.txt").read_text() == "a"


def test_wrong_values_are_refused_as_in_a_job() -> None:
    with pytest.raises(TypeError, match="log_list") as caught:
        Run.get_context().log("m", [1])
    assert isinstance(caught.value, UserErrorException)  # which programs of Azure ML catch


def test_every_uploaded_file_needs_its_name(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.touch()
    run = OfflineRun()
    with pytest.raises(ValueError, match="1 names for 2 paths; give one name per path"):
        run.upload_files(["a"], map(str, paths))
    assert run.get_file_names() == []
    assert run.upload_files(["a", "b"], map(str, paths)) == ["a", "b"]


def test_with_statement_sets_the_status() -> None:
    with OfflineRun() as run:
        run.log("m", 1)
    assert run.get_status() == "Completed"
    with pytest.raises(ValueError, match="x"), OfflineRun() as failed:
        raise ValueError("x")
    assert failed.get_status() == "Failed"
    with pytest.raises(SystemExit), OfflineRun() as left:
        raise SystemExit(0)
    assert left.get_status() == "Completed"


def test_children_belong_to_their_parent() -> None:
    run = OfflineRun()
    child = run.child_run("first")
    assert child.parent is run
    assert run.get_children() == [child]


def test_run_cannot_be_constructed_directly() -> None:
    with pytest.raises(TypeError, match="get_context"):
        Run()


def test_type_checkers_find_what_a_context_can_log() -> None:
    annotated = get_type_hints(Run.get_context)["return"]
    assert all(hasattr(annotated, name) for name in ("log", "log_row", "tag", "complete"))
    assert isinstance(Run.get_context(), annotated)
