"""Runs, experiments, workspaces and models as a notebook shows them."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Experiment, Model, Run, RunDetails, Workspace
from rayjobs.api import html, widgets
from rayjobs.core.errors import StoreBusyError
from rayjobs.jobs.states import JobState
from tests.unit.models.conftest import Runs


@pytest.fixture
def runs(own_home: Path, tmp_path: Path) -> Iterator[Runs]:
    workspace = Workspace.create("w", path=own_home / "w")
    yield Runs(workspace, tmp_path / "node")
    workspace.close()


class Notebook:
    """Stands in for IPython in a kernel: records displays and their updates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, with_widgets: bool) -> None:
        self.shown: list[str] = []
        notebook = self

        class Handle:
            def update(self, content: Any) -> None:
                notebook.shown.append(content)

        class Widget:
            def __setattr__(self, name: str, value: str) -> None:
                notebook.shown.append(value)

        def display(content: Any, display_id: bool = False) -> Any:
            return Handle() if display_id else None

        ipython = types.ModuleType("IPython")
        shell = types.SimpleNamespace(kernel=object())
        ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
        shower = types.ModuleType("IPython.display")
        shower.HTML = lambda text: text  # type: ignore[attr-defined]
        shower.display = display  # type: ignore[attr-defined]
        package = types.ModuleType("ipywidgets")
        package.HTML = Widget  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", shower)
        monkeypatch.setitem(sys.modules, "ipywidgets", package if with_widgets else None)


def test_run_is_shown_with_its_state_and_all_text_is_escaped(runs: Runs) -> None:
    job = runs.begin()
    run = runs.workspace.get_run(job.id)
    run.display_name = "<b>bold</b>"
    shown = run._repr_html_()
    assert job.id in shown and "Running" in shown and "mnist" in shown
    assert "<script" not in shown
    listed = Experiment(runs.workspace, "mnist")._repr_html_()
    assert job.id in listed and "&lt;b&gt;bold" in listed and "<b>bold" not in listed


def test_a_workspace_and_a_model_are_shown(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"w")
    model = Model.register(runs.workspace, tmp_path / "m.pt", "m", tags={"a": "<i>"})
    assert "uploaded by" in model._repr_html_() and "a=&lt;i&gt;" in model._repr_html_()
    shown = runs.workspace._repr_html_()
    assert "workspaceblobstore, workspacefilestore" in shown and "Models" in shown


@pytest.mark.parametrize("with_widgets", [True, False])
def test_a_notebook_follows_a_run_until_its_end(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, with_widgets: bool
) -> None:
    monkeypatch.setattr(widgets, "POLL_S", 0.01)
    notebook = Notebook(monkeypatch, with_widgets=with_widgets)
    job = runs.begin()
    details = RunDetails(runs.workspace.get_run(job.id))
    details.show()
    assert "Running" in notebook.shown[-1]
    runs.log(job, "loss", [0.5, 0.25])
    runs.end(job)
    assert details.wait(60)
    assert "Completed" in notebook.shown[-1] and "<polyline" in notebook.shown[-1]
    shown = len(notebook.shown)
    details.show()  # of a run that has ended: once more, and no thread
    assert len(notebook.shown) == shown + 1


def test_the_end_of_the_output_is_shown(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch, with_widgets=True)
    job = runs.begin()
    log = runs.paths(job).driver_log(0)
    log.parent.mkdir(exist_ok=True)
    log.write_text("".join(f"epoch {number} <done>\n" for number in range(100)))
    runs.end(job)
    RunDetails(runs.workspace.get_run(job.id)).show()
    assert "azureml-logs/70_driver_log.txt" in notebook.shown[-1]
    assert "epoch 99 &lt;done&gt;" in notebook.shown[-1]
    assert "epoch 84 " not in notebook.shown[-1]  # only the last lines


def test_view_survives_a_busy_store(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "POLL_S", 0.01)
    notebook = Notebook(monkeypatch, with_widgets=True)
    job = runs.begin()
    run = runs.workspace.get_run(job.id)
    details = RunDetails(run)
    details.show()
    errors = iter([StoreBusyError("busy"), StoreBusyError("busy")])
    status = run.get_status

    def get_status() -> str:
        error = next(errors, None)
        if error is not None:
            raise error
        return status()

    monkeypatch.setattr(run, "get_status", get_status)
    runs.end(job)
    assert details.wait(60)
    assert "Completed" in notebook.shown[-1] and next(errors, None) is None


def test_close_ends_the_updates(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    Notebook(monkeypatch, with_widgets=True)
    details = RunDetails(runs.workspace.get_run(runs.begin().id))
    details.show()
    details.close()
    assert details.wait(0)


def test_outside_a_notebook_the_run_is_printed(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    job = runs.begin()
    runs.log(job, "loss", [0.5, 0.25])
    run: Run = runs.workspace.get_run(job.id)
    RunDetails(run).show()
    out = capsys.readouterr().out
    assert f"Run {job.id} of experiment mnist: Running" in out and "loss: 0.25" in out
    assert "wait_for_completion(show_output=True)" in out
    assert runs.workspace.store.job(job.id).state is JobState.RUNNING


def test_curves_skip_non_numeric_values_and_long_series_stay_small() -> None:
    series = html.numbers_of({"a": [1.0, float("nan"), 3], "b": "text", "t": {"x": [1, 2]}})
    assert list(series) == ["a", "t/x"]
    drawn = html.curves_html({"long": [float(n) for n in range(100_000)]})
    assert len(drawn) < 20_000 and "100,000 values" in drawn
    assert "nan" not in html.curves_html(series).split("points=")[1].split('"')[1]
