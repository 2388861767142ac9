"""`rayjobs azureml check` lists what a program uses, line by line, before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.azureml.checking import State, check, check_file
from rayjobs.azureml.reports import lines, runs, table
from rayjobs.core.errors import NotFoundError

DRIVER = """\
from azureml.core import Workspace, Experiment, ScriptRunConfig
from azureml.core.webservice import AciWebservice
from azureml.pipeline.wrapper import dsl
from azureml.telemetry import set_diagnostics_collection

ws = Workspace.from_config()
store = ws.get_default_datastore()
store.upload(src_dir="data", target_path="x")
run = Experiment(ws, "one").submit(ScriptRunConfig("src", "a.py"))
run.wait_for_completion(show_output=True)
ws.linked_services
from azureml.core import Nonsense
"""


def states(path: Path) -> dict[str, tuple[State, int]]:
    return {use.name: (use.state, use.line) for use in check_file(path).uses}


def test_each_use_has_its_state_and_line(tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(DRIVER)
    found = states(program)
    assert found["azureml.core.Workspace"] == (State.SUPPORTED, 1)
    assert found["azureml.core.webservice.AciWebservice"] == (State.REFUSED, 2)
    assert found["azureml.pipeline.wrapper.dsl"] == (State.PIPELINES, 3)
    assert found["azureml.telemetry.set_diagnostics_collection"][0] is State.SUBSTITUTED
    assert found["Datastore.upload"] == (State.SUPPORTED, 8)
    assert found["Run.wait_for_completion"] == (State.SUPPORTED, 10)
    assert found["Workspace.linked_services"] == (State.REFUSED, 11)
    assert found["azureml.core.Nonsense"] == (State.MISSING, 12)
    assert "serve it with the tool of your choice" in lines(check_file(program))


def test_unsupported_keyword_is_reported_missing(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text(
        "from azureml.core import Workspace\nws = Workspace.from_config(nonsense=1)\n"
    )
    assert states(program)["Workspace.from_config(nonsense=)"] == (State.MISSING, 2)


def test_names_in_a_function_stay_local(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text(
        "from azureml.core import Model, Workspace\n"
        "def f(ws):\n    model = Model(ws, 'm')\n    return model.version\n"
        "model = load()\nmodel.webservices\n"
    )
    assert set(states(program)) == {
        "azureml.core.Model",
        "azureml.core.Workspace",
        "Model.version",
    }


def test_cells_of_notebooks_and_the_scripts_they_write(tmp_path: Path) -> None:
    cells = [
        ("markdown", "# text"),
        ("code", "%matplotlib inline\nfrom azureml.core import Workspace\nws = Workspace.create("),
        ("code", " from azureml.core import Workspace\n ws = Workspace.from_config()"),
        ("code", "%%writefile train.py\nfrom azureml.core.run import Run\nRun.get_context().log"),
        ("code", "??ws\n!echo azureml \\\n  more\nws.name"),
        ("code", "%%prun\nws.location"),
    ]
    notebook = tmp_path / "n.ipynb"
    notebook.write_text(
        json.dumps({"cells": [{"cell_type": kind, "source": text} for kind, text in cells]})
    )
    report = check_file(notebook)
    assert [(use.name, use.cell, use.line) for use in report.uses] == [
        ("azureml.core.Workspace", 3, 1),
        ("Workspace.from_config", 3, 2),
        ("Workspace.name", 5, 4),
        ("Workspace.location", 6, 2),
        ("azureml.core.run.Run", 4, 2),
        ("Run.get_context", 4, 3),
        ("Run.log", 4, 3),
    ]
    assert [cell for cell, _why in report.unread] == [2]


def test_programs_of_the_same_name_have_separate_lines(tmp_path: Path) -> None:
    for name, text in (("a", "import azureml.core"), ("b", "from azureml.core import Nope")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.py").write_text(text)
    (tmp_path / "plain.py").write_text("print(1)")
    found = check([tmp_path])
    shown = table(found, root=tmp_path).splitlines()
    assert shown[1].split() == ["a/job.py", "1", "0", "0", "0", "0"]
    assert shown[2].split() == ["b/job.py", "0", "0", "0", "0", "1"]
    assert [runs(one) for one in found] == [True, False]


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no"):
        check([tmp_path / "nothing"])
