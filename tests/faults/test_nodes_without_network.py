"""Environments on nodes that reach no index: their files travel with the job."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from rayjobs import snapshots
from rayjobs.core.errors import PrepareError, UsageError
from rayjobs.environments.cache import Cache
from rayjobs.environments.realise import Realised
from rayjobs.spec import requirements
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.submit.submitting import submit
from rayjobs.submit.vendoring import vendor
from rayjobs.workspace.folder import open_workspace
from tests.unit.environments.conftest import Builder
from tests.wheels import make_project, make_wheel

pytestmark = pytest.mark.timeout(300)
CODE = "import tiny_tool, its_need, own_package; print(tiny_tool.VALUE, own_package.VALUE)"


@pytest.fixture
def index(tmp_path: Path) -> list[str]:
    """The lines that ask for packages where there is an index."""
    make_wheel(tmp_path / "index", "tiny-tool", needs=["its-need>=1"])
    make_wheel(tmp_path / "index", "its-need", "1.5")
    project = make_project(tmp_path / "project", "own-package")
    return ["--no-index", f"--find-links {tmp_path}/index", "tiny-tool", str(project)]


def on_a_node(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Realised:
    """Submit a job with a requirements file, and make its environment where no index answers."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    asked = Packages(pip=tuple(requirements.read(file)))
    builder = Builder(folder / "node")
    with open_workspace(folder / "w", create=True) as workspace:
        spec = JobSpec(command="true", environment=asked)
        stored = submit(workspace, spec, experiment="e", wake=False).job.spec.environment
        assert isinstance(stored, Packages)
        for digest in stored.sources.values():
            shared = snapshots.NodeSnapshots(builder.node.snapshots)
            shared.ensure(digest, partial(workspace.blobs.open, snapshots.blob_key(digest)))
            place = Cache(builder.node.environments).source(digest)
            place.parent.mkdir(parents=True, exist_ok=True)
            shared.copy_into(digest, place)
    file.parent.rename(folder / "gone")
    found, _ = builder.build(*stored.pip, sources=stored.sources)
    return found


def test_what_was_put_into_a_folder_is_installed_where_no_index_answers(
    tmp_path: Path, index: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "offline"
    names = vendor(Packages(pip=tuple(index)), folder)
    assert [name.split("-")[0] for name in names] == ["its_need", "own_package", "tiny_tool"]
    shutil.rmtree(tmp_path / "index")
    shutil.rmtree(tmp_path / "project")
    moved = folder.rename(tmp_path / "elsewhere")
    found = on_a_node(tmp_path, moved / "requirements.txt", monkeypatch)
    said = subprocess.check_output([found.python, "-c", CODE], text=True)
    assert said == "tiny own\n"
    pinned = {line.split(" ")[0] for line in found.lock.splitlines()}
    assert {"tiny-tool==1.0", "its-need==1.5"} <= pinned


def test_any_other_folder_of_wheels_is_one_of_the_node(
    tmp_path: Path, index: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "index" / "requirements.txt"
    file.write_text("\n".join(index[:3]))
    with pytest.raises(PrepareError, match="cannot be resolved"):
        on_a_node(tmp_path, file, monkeypatch)


def test_what_cannot_be_fetched_leaves_no_folder(tmp_path: Path, index: list[str]) -> None:
    with pytest.raises(PrepareError, match="not-there"):
        vendor(Packages(pip=(*index, "not-there")), tmp_path / "offline")
    with pytest.raises(UsageError, match="packages of conda cannot be put"):
        vendor(Packages(conda=("zlib",), channels=("conda-forge",)), tmp_path / "offline")
    assert not (tmp_path / "offline").exists()
    assert not list(tmp_path.glob(".vendor-*"))
    (tmp_path / "offline").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        vendor(Packages(pip=tuple(index)), tmp_path / "offline")
