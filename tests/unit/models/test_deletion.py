"""Models and dataset versions are deleted only when nothing refers to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import models
from rayjobs.cli.main import run
from rayjobs.datastore import Dataset
from rayjobs.datastore.errors import DatasetNotFound
from rayjobs.errors import NotFoundError
from rayjobs.housekeeping.deletion import StillUsedError, delete_dataset, delete_model
from rayjobs.records import Job
from rayjobs.spec import Input
from tests.unit.models.conftest import Runs


@pytest.fixture
def digits(runs: Runs, tmp_path: Path) -> Path:
    """Two versions of the dataset `digits`; returns the file that both have."""
    store = runs.workspace.get_default_datastore()
    (tmp_path / "a.txt").write_text("a")
    store.upload_files([str(tmp_path / "a.txt")], show_progress=False)
    for _ in range(2):
        files = Dataset.File.from_files((store, "a.txt"))
        files.register(runs.workspace, "digits", create_new_version=True)
    [found] = Path(runs.workspace.opened.path).rglob("a.txt")
    return found


def reading(runs: Runs) -> Job:
    """Return a running job that reads digits:1."""
    job = runs.begin(inputs={"digits": Input(source="dataset:digits:1")})
    runs.workspace.store.add_event(
        job.id,
        "input",
        "input digits: mounted",
        attempt=1,
        data={"name": "digits", "version": "digits:1", "dataset": "digits", "files": 1},
    )
    return job


def test_a_dataset_that_an_unfinished_job_reads_stays(runs: Runs, digits: Path) -> None:
    job = reading(runs)
    with pytest.raises(StillUsedError, match=job.id):
        delete_dataset(runs.workspace.opened, "digits", 1, force=True)
    delete_dataset(runs.workspace.opened, "digits", 2)
    assert [one.version for one in runs.workspace.catalogue.dataset_versions("digits")] == [1]


def test_a_dataset_in_the_lineage_of_a_model_stays_unless_forced(runs: Runs, digits: Path) -> None:
    job = reading(runs)
    runs.write(job, model__pt=b"weights")
    runs.end(job)
    models.register(runs.workspace, name="best", run=job.id, path="outputs/model.pt")
    with pytest.raises(StillUsedError, match="best:1"):
        delete_dataset(runs.workspace.opened, "digits", 1)
    assert delete_dataset(runs.workspace.opened, "digits", 1, force=True).models == ("best:1",)
    with pytest.raises(DatasetNotFound):
        runs.workspace.catalogue.dataset("digits", 1)
    assert digits.read_text() == "a"


def test_a_model_that_an_alias_points_to_stays_unless_forced(runs: Runs) -> None:
    job = runs.trained()
    for _ in range(2):
        models.register(runs.workspace, name="best", run=job.id, path="outputs/model.pt")
    opened = runs.workspace.opened
    opened.store.set_model_alias("best", "live", 1)
    with pytest.raises(StillUsedError, match="best@live"):
        delete_model(opened, "best", 1)
    assert opened.store.model("best", alias="live").version == 1
    assert delete_model(opened, "best", 1, force=True) == ("live",)
    with pytest.raises(NotFoundError):
        opened.store.model("best", version=1)


def test_the_commands_need_a_version(
    runs: Runs, digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = runs.trained()
    models.register(runs.workspace, name="best", run=job.id, path="outputs/model.pt")
    at = ("--workspace", str(runs.workspace.opened.path))
    assert run(["data", "rm", "digits", *at]) == 2
    assert "digits:2" in capsys.readouterr().err
    assert run(["data", "rm", "digits:9", *at]) == 3
    assert run(["data", "rm", "dataset:digits:2", *at]) == 0
    assert run(["model", "rm", "best", *at]) == 2
    assert run(["model", "rm", "best:1", "--json", *at]) == 0
    assert '"deleted": "best:1"' in capsys.readouterr().out
    assert run(["model", "rm", "best:1", *at]) == 3


def test_a_datastore_that_an_unfinished_job_uses_stays(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--workspace", str(runs.workspace.opened.path))
    (tmp_path / "files").mkdir()
    assert run(["datastore", "add", "mine", str(tmp_path / "files"), *at]) == 0
    job = runs.begin(inputs={"a": Input(source="mine/x")})
    assert run(["datastore", "rm", "mine", "--force", *at]) == 2
    assert job.id in " ".join(capsys.readouterr().err.split())
    runs.end(job)
    assert run(["datastore", "rm", "mine", *at]) == 0
