"""Models and dataset versions are deleted only when nothing refers to them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.errors import DatasetInUse, DatasetNotFound, DatastoreInUse
from rayjobs.jobs.records import Job
from rayjobs.spec.model import Array, Input, JobSpec
from rayjobs.store.requests import NewJob, NewSweep
from rayjobs.store.sql import SqlStore
from rayjobs.workspace.folder import WorkspaceFiles
from tests.support import registering as models
from tests.unit.models.conftest import Runs


@pytest.fixture
def digits(runs: Runs, tmp_path: Path) -> Path:
    """Two versions of the dataset `digits`; returns the file that both have."""
    store = runs.workspace.get_default_datastore()
    (tmp_path / "a.txt").write_text("a")
    store.upload_files([str(tmp_path / "a.txt")], show_progress=False)
    for path in ("a.txt", "*.txt"):
        files = Dataset.File.from_files((store, path))
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
    with pytest.raises(DatasetInUse, match=job.id):
        runs.workspace.catalogue.remove_dataset("digits", 1, force=True)
    with pytest.raises(DatasetInUse, match=job.id):
        Dataset.get_by_name(runs.workspace, "digits").unregister_all_versions()
    runs.workspace.catalogue.remove_dataset("digits", 2)
    assert [one.version for one in runs.workspace.catalogue.dataset_versions("digits")] == [1]


def test_a_dataset_in_the_lineage_of_a_model_stays_unless_forced(runs: Runs, digits: Path) -> None:
    job = reading(runs)
    runs.write(job, model__pt=b"weights")
    runs.end(job)
    models.register(runs.workspace, name="best", run=job.id, path="outputs/model.pt")
    with pytest.raises(DatasetInUse, match="best:1"):
        runs.workspace.catalogue.remove_dataset("digits", 1)
    assert runs.workspace.catalogue.remove_dataset("digits", 1, force=True) == ("best:1",)
    with pytest.raises(DatasetNotFound):
        runs.workspace.catalogue.dataset("digits", 1)
    assert digits.read_text() == "a"


def test_a_model_that_an_alias_points_to_stays_unless_forced(runs: Runs) -> None:
    job = runs.trained()
    for _ in range(2):
        models.register(runs.workspace, name="best", run=job.id, path="outputs/model.pt")
    store = runs.workspace.opened.store
    store.set_model_alias("best", "live", 1)
    with pytest.raises(UsageError, match="best@live"):
        store.delete_model("best", 1)
    assert store.model("best", alias="live").version == 1
    assert store.delete_model("best", 1, force=True) == ("live",)
    with pytest.raises(NotFoundError):
        store.model("best", version=1)


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


@pytest.mark.parametrize("what", ["dataset", "datastore", "model"])
def test_data_referenced_just_before_the_deletion_stays(
    runs: Runs, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another process refers to the data between the checks of a deletion and its write."""
    store = runs.workspace.opened.store
    assert isinstance(store, SqlStore)
    (tmp_path / "files").mkdir()
    mine = Datastore.register_folder(runs.workspace, "mine", tmp_path / "files")
    models.register(runs.workspace, name="best", run=runs.trained().id, path="outputs/model.pt")
    source = "dataset:digits:1" if what == "dataset" else "mine/x"
    spec = JobSpec(script="train.py", inputs={"data": Input(source=source)})
    write, file = store._database.write, WorkspaceFiles(runs.workspace.opened.path).store

    @contextlib.contextmanager
    def late(*, durable: bool = False) -> Iterator[sqlite3.Connection]:
        monkeypatch.setattr(store._database, "write", write)
        with contextlib.closing(SqlStore(file)) as other:
            if what == "model":
                other.set_model_alias("best", "live", 1)
            else:
                other.submit(NewJob(spec=spec, experiment="e", snapshot=None, user="eve"))
        with write(durable=durable) as connection:
            yield connection

    monkeypatch.setattr(store._database, "write", late)
    with pytest.raises((DatasetInUse, DatastoreInUse, UsageError)):
        if what == "dataset":
            runs.workspace.catalogue.remove_dataset("digits", 1)
        elif what == "datastore":
            mine.unregister()
        else:
            store.delete_model("best", 1)
    assert store.model("best").version == 1
    assert runs.workspace.catalogue.dataset("digits", 1).version == 1
    assert runs.workspace.catalogue.datastore("mine").name == "mine"


def test_a_job_cannot_be_submitted_with_a_dataset_that_was_deleted_since_its_check(
    runs: Runs, digits: Path
) -> None:
    spec = JobSpec(script="train.py", inputs={"data": Input(source="dataset:digits:1")})
    runs.workspace.catalogue.remove_dataset("digits", 1)
    store = runs.workspace.opened.store
    values = {"experiment": "e", "snapshot": None, "user": "eve"}
    with pytest.raises(UsageError, match="digits:1, the input 'data' of the job, was deleted"):
        store.submit(NewJob(spec=spec, **values))  # type: ignore[arg-type]
    several = spec.model_copy(update={"array": Array(indices="0-1")})
    with pytest.raises(UsageError, match="was deleted"):
        store.submit_array(NewJob(spec=several, **values))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="was deleted"):
        store.put_sweep(NewSweep(base=spec, definition={}, driver="a:b", **values))  # type: ignore[arg-type]
    assert store.jobs() == []
