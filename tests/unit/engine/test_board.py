"""One workspace has one view, under however many paths it was registered."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from rayjobs.core.paths import TargetPaths
from rayjobs.engine.board import Board
from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from rayjobs.target.starting import is_registered, register_workspace
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.registrations import registered


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a link to its project, as `tmp_path/link`."""
    open_workspace(tmp_path / "project" / ".rayjobs").close()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "project")
    return tmp_path / "project" / ".rayjobs"


def spellings(workspace: Path) -> list[Path]:
    top = workspace.parents[1]
    return [workspace, top / "other" / ".." / "project" / ".rayjobs", top / "link" / ".rayjobs"]


def opened(path: str) -> tuple[str, Store]:
    found = open_workspace(path, create=False)
    return found.name, found.store


def test_a_workspace_has_one_path_however_it_is_named(workspace: Path) -> None:
    for spelling in spellings(workspace):
        with open_workspace(spelling, create=False) as found:
            assert found.path == workspace


def test_a_workspace_is_registered_once_however_it_is_named(
    workspace: Path, tmp_path: Path
) -> None:
    paths = TargetPaths.of("local", under=tmp_path / "h")
    register_workspace(paths, workspace)
    assert all(is_registered(paths, spelling) for spelling in spellings(workspace))
    for spelling in spellings(workspace):
        register_workspace(paths, spelling)
    assert all(is_registered(paths, spelling) for spelling in spellings(workspace))
    assert registered(paths.workspaces) == [str(workspace)]


def test_impossible_path_of_a_registration_hides_no_other(workspace: Path, tmp_path: Path) -> None:
    paths = TargetPaths.of("local", under=tmp_path / "h")
    register_workspace(paths, workspace)
    (paths.workspaces / "0.json").write_text(json.dumps({"path": "/tmp/a\0b"}))
    assert registered(paths.workspaces) == [str(workspace)]


def test_old_registrations_of_one_workspace_make_one_view(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "registered"
    folder.mkdir()
    for number, spelling in enumerate(spellings(workspace)):
        (folder / f"{number}.json").write_text(json.dumps({"path": str(spelling)}))
    board = Board("local", folder, opened)

    async def play() -> None:
        for spelling in reversed(spellings(workspace)):  # the link first, as an older client did
            await board.add(str(spelling))
        await board.refresh()

    asyncio.run(play())
    assert [served.path for served in board.served] == [str(workspace)]
    board.served[0].store.close()


def test_a_workspace_that_is_named_by_a_link_is_served_by_its_real_path(
    workspace: Path, tmp_path: Path
) -> None:
    board = Board("local", tmp_path / "none", opened)
    served = asyncio.run(board.add(str(spellings(workspace)[2])))
    assert served is not None
    assert served.path == str(workspace)
    served.store.close()


def test_a_store_that_is_seen_through_two_folders_has_one_view(
    workspace: Path, tmp_path: Path
) -> None:
    # Hard links simulate a bind mount, which needs privileges: two folders with the same files.
    twin = tmp_path / "twin"
    twin.mkdir()
    for file in ("workspace.json", "store.db"):
        os.link(workspace / file, twin / file)
    board = Board("local", tmp_path / "none", opened)

    async def play() -> None:
        first = await board.add(str(workspace))
        assert first is not None
        assert await board.add(str(twin)) is first
        assert await board.add(str(twin)) is first
        await board.refresh()

    asyncio.run(play())
    assert [served.path for served in board.served] == [str(workspace)]
    board.served[0].store.close()


def test_two_folders_of_one_shared_workspace_have_one_view(workspace: Path, tmp_path: Path) -> None:
    record = json.loads((workspace / "workspace.json").read_text())
    shared = {"store": "postgresql://h/d?schema=s", "blobs": {"bucket": "b"}}
    twin = tmp_path / "twin"
    shutil.copytree(workspace, twin)
    for folder in (workspace, twin):
        values = {**record, **shared, "path": str(folder)}
        (folder / "workspace.json").write_text(json.dumps(values))
    (twin / "store.db").unlink()
    board = Board("local", tmp_path / "none", lambda _path: ("w", SqlStore(":memory:")))

    async def play() -> None:
        first = await board.add(str(workspace))
        assert first is not None
        assert await board.add(str(twin)) is first
        await board.refresh()

    asyncio.run(play())
    assert [served.path for served in board.served] == [str(workspace)]
    assert not board.refused
    board.served[0].store.close()


def test_a_copied_workspace_is_refused_while_its_original_is_served(
    workspace: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(workspace, copy)
    board = Board("local", tmp_path / "none", opened)

    async def play() -> None:
        assert await board.add(str(workspace)) is not None
        assert await board.add(str(copy)) is None
        assert f"a copy of the workspace {workspace}" in board.refused[str(copy)]
        assert board.is_complete, "leftovers of ended attempts would never be swept"
        (copy / "workspace.json").unlink()  # the remedy in the message
        open_workspace(copy).close()
        assert await board.add(str(copy)) is not None
        assert board.refused == {}

    asyncio.run(play())
    assert {served.path for served in board.served} == {str(workspace), str(copy)}
    for served in board.served:
        served.store.close()


def test_newer_store_is_named_in_status_requests(workspace: Path, tmp_path: Path) -> None:
    board = Board("local", tmp_path / "none", opened)

    async def play() -> None:
        await board.add(str(workspace))
        await board.look()
        assert board.refused == {}
        with sqlite3.connect(workspace / "store.db") as connection:
            connection.execute("PRAGMA user_version = 9999")
        connection.close()
        await board.look()
        assert "schema version 9999" in board.refused[str(workspace)]
        board.served[0].store.close()

    asyncio.run(play())
