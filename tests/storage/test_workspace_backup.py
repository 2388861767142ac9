"""Backup and restore of whole workspaces: in a folder, and in PostgreSQL and S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, StoreError, UsageError
from rayjobs.housekeeping.workspace_backup import backup, restore
from rayjobs.target import elsewhere
from rayjobs.workspace import shared
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.contract.store_contract import submit
from tests.storage.blobs import address_in, given_keys
from tests.storage.postgres import Postgres

__all__ = ["given_keys"]
pytestmark = [
    pytest.mark.storage,
    pytest.mark.xdist_group("storage"),
    pytest.mark.usefixtures("given_keys"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture(params=["folder", "postgres and s3"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenWorkspace]:
    root = tmp_path / "team"
    if request.param == "folder":
        with open_workspace(root) as opened:
            yield opened
        return
    server: Postgres = request.getfixturevalue("server")
    blobs = address_in(request.getfixturevalue("s3_server"))
    with shared.create(root, server.schema(), blobs=blobs).workspace as opened:
        yield opened
    elsewhere.close_all()


def stored(workspace: OpenWorkspace, text: str) -> str:
    return workspace.blobs.put_bytes(text.encode(), f"runs/{text}/log").key


def test_a_copy_becomes_the_same_workspace_again(workspace: OpenWorkspace, tmp_path: Path) -> None:
    job, key = submit(workspace.store), stored(workspace, "one")
    done = backup(workspace.path, tmp_path / "copy")
    assert done.copied == done.files == 1

    later, second = submit(workspace.store), stored(workspace, "two")
    again = backup(workspace.path, tmp_path / "copy")
    assert (again.files, again.copied) == (2, 1)  # only new files

    restored = restore(tmp_path / "copy", tmp_path / "restored")
    assert restored.files == 2
    with open_workspace(tmp_path / "restored", create=False) as opened:
        assert {one.id for one in opened.store.jobs()} == {job.id, later.id}
        assert [one.message for one in opened.store.events(job.id)] == [
            one.message for one in workspace.store.events(job.id)
        ]
        for name in (key, second):
            with opened.blobs.open(name) as file:
                assert file.read().decode() == name.split("/")[1]
        newest = submit(opened.store)  # serials continue
        assert newest.serial > later.serial
    assert {one.id for one in workspace.store.jobs()} == {job.id, later.id}


def test_existing_destination_is_refused_and_unchanged(
    workspace: OpenWorkspace, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    with pytest.raises(UsageError, match="something else"):
        backup(workspace.path, other)
    with pytest.raises(NotFoundError, match="is not a backup"):
        restore(other, tmp_path / "new")
    submit(workspace.store)
    backup(workspace.path, tmp_path / "copy")
    with pytest.raises(UsageError, match="holds something"):
        restore(tmp_path / "copy", other)
    with (
        open_workspace(tmp_path / "another") as foreign,
        pytest.raises(UsageError, match="copy of"),
    ):
        submit(foreign.store)
        backup(foreign.path, tmp_path / "copy")


def test_a_backup_that_breaks_off_leaves_the_earlier_one(
    workspace: OpenWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(workspace.store)
    backup(workspace.path, tmp_path / "copy")
    submit(workspace.store)
    stored(workspace, "new")

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("rayjobs.workspace.blobs.FolderBlobs.put_file", fail)
        with pytest.raises(StoreError, match="disk is full"):
            backup(workspace.path, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    with open_workspace(tmp_path / "restored", create=False) as opened:
        assert [one.id for one in opened.store.jobs()] == [job.id]
