"""Files and folders that a job installs travel with it, and are kept as long as the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import snapshots
from rayjobs.core.errors import SpecError
from rayjobs.housekeeping import prune
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.submit.submitting import submit
from rayjobs.workspace.folder import open_workspace
from tests.support.wheels import make_project, make_wheel


def test_local_packages_are_packed_and_stored(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "tiny-tool")
    project = make_project(tmp_path / "project", "own-package")
    (project / "__pycache__").mkdir()
    asked = Packages(pip=(str(wheel), f"{project}[x] ; python_version > '3'", "/nowhere/a.whl"))
    with open_workspace(tmp_path / "w", create=True) as workspace:
        spec = JobSpec(command="true", environment=asked)
        job = submit(workspace, spec, experiment="e", wake=False).job
        assert isinstance(job.spec.environment, Packages)
        sources = job.spec.environment.sources
        assert set(sources) == {str(wheel), str(project)}
        again = submit(workspace, spec, experiment="e", wake=False).job
        assert isinstance(again.spec.environment, Packages)
        assert again.spec.environment.sources == sources
        (project / "own_package.py").write_text("VALUE = 'changed'\n")
        other = submit(workspace, spec, experiment="e", wake=False).job
        assert isinstance(other.spec.environment, Packages)
        assert other.spec.environment.sources != sources
        view = workspace.store.prune_view()
        assert set(view.jobs[0].sources) == set(sources.values())
        (unit, *_) = prune._units(view, workspace.blobs)
        assert {snapshots.blob_key(one) for one in sources.values()} <= set(unit.files)


def test_folder_that_is_not_a_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with open_workspace(tmp_path / "w", create=True) as workspace:
        spec = JobSpec(command="true", environment=Packages(pip=(f"{tmp_path}/folder",)))
        with pytest.raises(SpecError, match="a folder without pyproject"):
            submit(workspace, spec, experiment="e", wake=False)
