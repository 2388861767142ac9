"""Workspaces are found by name, variable, folder, else in the user's data folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rayjobs.core import paths
from rayjobs.core.errors import NotFoundError, StoreError, StoreVersionError, UsageError
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.workspace.folder import WorkspaceFiles, locate, open_workspace, record_of
from tests.contract.store_contract import submit


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder that is the working directory, with no variable set."""
    monkeypatch.delenv("RAYJOBS_WORKSPACE")
    folder = tmp_path / "digits"
    (folder / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(folder / "src" / "deep")
    return folder


def test_the_order_is_argument_variable_folder_home(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locate() == paths.home() / "workspace"
    (project / ".rayjobs").mkdir()
    assert locate() == project / ".rayjobs"
    (project / "src" / ".rayjobs").mkdir()
    assert locate() == project / "src" / ".rayjobs"
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(tmp_path / "named"))
    assert locate() == tmp_path / "named"
    assert locate(str(tmp_path / "argument")) == tmp_path / "argument"
    assert locate("here") == project / "src" / "deep" / "here"


def test_project_folder_selects_its_workspace(project: Path) -> None:
    (project / ".rayjobs").mkdir()
    assert locate(str(project)) == project / ".rayjobs"
    assert locate(str(project / ".rayjobs")) == project / ".rayjobs"


def test_a_file_of_that_name_is_not_a_workspace(project: Path) -> None:
    (project / ".rayjobs").write_text("")
    assert locate() == paths.home() / "workspace"


def test_a_folder_of_another_user_is_not_taken_up(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".rayjobs").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert locate() == paths.home() / "workspace"


@pytest.mark.parametrize("text", ["", "  ", "postgresql://host/db", "s3://bucket"])
def test_name_that_is_not_a_folder_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--workspace"):
        locate(text)


def test_a_workspace_is_made_once_and_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "digits" / ".rayjobs"
    with open_workspace(folder) as made:
        job = submit(made.store)
        made.blobs.put_bytes(b"x", "a")
        assert made.name == "digits"
        assert len(made.id) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == [
        ".gitignore",
        "blobs",
        "store.db",
        "store.db-serial",
        "workspace.json",
    ]
    with open_workspace(folder, create=False) as again:
        assert (again.id, again.name, again.path) == (made.id, made.name, folder)
        assert again.store.job(job.id) == job
        assert again.blobs.exists("a")


def _untracked(project: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(listed.stdout.split())


@pytest.mark.parametrize("ignored", [None, "*.log\n"])
def test_a_workspace_in_a_project_hides_no_file_of_it_from_git(
    tmp_path: Path, ignored: str | None
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "train.py").write_text("")
    if ignored is not None:
        (tmp_path / ".gitignore").write_text(ignored)
    with open_workspace(tmp_path) as made:
        submit(made.store)
        made.blobs.put_bytes(b"x", "a")
        assert made.catalogue.datastores()
        seen = _untracked(tmp_path)
    assert "train.py" in seen
    if ignored is None:
        assert seen == ["train.py"]
    else:
        assert (tmp_path / ".gitignore").read_text() == ignored


@pytest.mark.parametrize(
    "moves",
    [["b"], ["a/b", "a"], ["c", "a/b", "a/b/c", "a/b"], ["b/a", "b"]],
    ids=" ".join,
)
def test_the_datastores_of_a_moved_workspace_move_with_it(tmp_path: Path, moves: list[str]) -> None:
    """A new place may be below or above one that the workspace had before."""
    folder = tmp_path / "a"
    with open_workspace(folder) as made:
        assert made.catalogue.datastores()
    for place in moves:
        shutil.move(folder, tmp_path / "between")
        folder = tmp_path / place
        if folder.exists():
            shutil.rmtree(folder)  # what the moves left there
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "between", folder)
        with open_workspace(folder) as moved:
            roots = {Path(one.settings["root"]) for one in moved.catalogue.datastores()}
            assert {root.parent for root in roots} == {folder / "datastores"}


def test_external_folder_stays_after_a_workspace_move(tmp_path: Path) -> None:
    inner, folder = tmp_path / "w" / "inner", tmp_path / "w"
    with open_workspace(inner) as made:
        assert made.catalogue.datastores()
    inner.rename(tmp_path / "between")
    folder.rmdir()
    (tmp_path / "between").rename(folder)
    (inner / "photos").mkdir(parents=True)
    with open_workspace(folder) as moved:
        record = DatastoreRecord("photos", "local", {"root": str(inner / "photos")})
        moved.catalogue.add_datastore(record)
        assert moved.catalogue.datastore("photos") == record


def test_without_create_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no workspace in"):
        open_workspace(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_concurrent_creation_makes_one_workspace(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    opened: list[str] = []

    def one() -> None:
        barrier.wait()
        with open_workspace(tmp_path / "w", busy_timeout_s=60) as workspace:
            submit(workspace.store)
            opened.append(workspace.id)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    assert len(set(opened)) == 1
    with open_workspace(tmp_path / "w") as workspace:
        assert len(workspace.store.jobs()) == 8


def test_a_newer_workspace_is_refused(tmp_path: Path) -> None:
    open_workspace(tmp_path / "w").close()
    record = WorkspaceFiles(tmp_path / "w").record
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": 2}))
    with pytest.raises(StoreVersionError, match="upgrade rayjobs"):
        open_workspace(tmp_path / "w")


def test_entries_of_other_versions_are_read_and_stay_after_a_move(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    open_workspace(old).close()
    old.rename(new)
    # The record of an early version, with an entry of a later one.
    early = {"version": 1, "id": "a1", "name": "w", "path": str(old), "of_a_later_version": 3}
    WorkspaceFiles(new).record.write_text(json.dumps(early))
    created = WorkspaceFiles(new).record.stat().st_mtime
    open_workspace(new).close()
    record = record_of(new)
    assert record is not None and record.id == "a1"
    assert (record.path, record.earlier, record.formerly) == (str(new), (str(old),), (str(old),))
    assert record.created_s == created
    assert json.loads(WorkspaceFiles(new).record.read_text())["of_a_later_version"] == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1, "id": "", "name": "x"}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    open_workspace(tmp_path / "w").close()
    WorkspaceFiles(tmp_path / "w").record.write_text(text)
    with pytest.raises(StoreError, match=r"workspace\.json is damaged"):
        open_workspace(tmp_path / "w")


def test_unusable_location_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="no workspace can be created"):
        open_workspace(tmp_path / "file")
    with pytest.raises(StoreError, match="no workspace can be created"):
        open_workspace(tmp_path / "file" / "w")


@pytest.mark.long
def test_finding_a_workspace_costs_no_heavy_import() -> None:
    program = (
        "import sys; from rayjobs.workspace.folder import locate; locate();"
        "print(sorted({'sqlite3', 'pydantic', 'sqlalchemy', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "[]"
