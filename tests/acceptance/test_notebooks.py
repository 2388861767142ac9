"""The example notebooks run from top to bottom in a real kernel."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.local_target import LocalTarget

EXAMPLES = Path(__file__).parents[2] / "examples" / "notebooks"
CONFIG = {"subscription_id": "s-1", "resource_group": "group-1", "workspace_name": "team-ws"}

pytestmark = pytest.mark.timeout(300)


class CellFailed(Exception):
    """A cell of a notebook failed; the message names it."""


def execute(path: Path) -> list[str]:
    """Run a notebook in a kernel of this interpreter; return what its cells wrote.

    Raises:
        CellFailed: one failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": path.parent}})
    try:
        client.execute()
    except CellExecutionError as error:
        failed = next(
            number
            for number, cell in enumerate(notebook.cells, 1)
            if any(one.output_type == "error" for one in cell.get("outputs", ()))
        )
        raise CellFailed(
            f"cell {failed} of {path.name} failed: {error.ename}: {error.evalue}"
        ) from error
    return [
        one.get("text") or one.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        for one in cell.get("outputs", ())
    ]


@pytest.fixture
def folder(own_home: Path) -> Path:
    (own_home / "config.json").write_text(json.dumps(CONFIG))
    return Path(shutil.copytree(EXAMPLES, own_home / "notebooks"))


@pytest.mark.ray
def test_notebook_follows_a_run_and_registers_its_model(
    local_target: LocalTarget, folder: Path
) -> None:
    output = "\n".join(execute(folder / "first-run.ipynb"))
    assert "Completed" in output
    assert "name=points, version=1" in output


@pytest.mark.ray
def test_azure_ml_notebook_runs_a_sweep(local_target: LocalTarget, folder: Path) -> None:
    output = "\n".join(execute(folder / "azureml-sweep.ipynb"))
    assert "team-ws" in output
    assert "points 1" in output


def test_failing_cell_is_named(folder: Path) -> None:
    notebook = json.loads((folder / "azureml-sweep.ipynb").read_text())
    notebook["cells"][2]["source"] = ["from azureml.core import Workspace\n", "Workspace.missing"]
    (folder / "broken.ipynb").write_text(json.dumps(notebook))
    with pytest.raises(CellFailed, match=r"cell 3 of broken\.ipynb failed: AttributeError"):
        execute(folder / "broken.ipynb")


def test_notebooks_are_stored_without_results() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name
