"""A store moves between a file and PostgreSQL: all rows, all serials, and no writer in between."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rayjobs.core.errors import StoreBusyError, StoreError, StoreVersionError, UsageError
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.store import moving
from rayjobs.store.postgres_address import parsed
from rayjobs.workspace import folder, shared
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles, keep_records_in, open_workspace
from tests.contract.store_contract import submit
from tests.storage.postgres import Postgres
from tests.unit.cli.conftest import Queue, Terminal, terminal  # noqa: F401

pytestmark = [pytest.mark.storage, pytest.mark.xdist_group("postgres")]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with jobs, metrics, files, events and datastores."""
    made = tmp_path / "ws"
    with open_workspace(made) as workspace:
        queue = Queue(workspace)
        for number in range(3):
            queue.completed(name=f"train-{number}")
        queue.submit("waiting", tags={"owner": "Ada \N{SNOWMAN}"})
        workspace.store.catalogue.add_datastore(DatastoreRecord("mine", "local", {"root": "/x"}))
    return made


def to_postgres(root: Path, url: str) -> moving.Moved:
    path, owner = WorkspaceFiles(root).store, str(folder.id_of(root))
    return moving.to_postgres(path, url, workspace=owner, switch=lambda: keep_records_in(root, url))


def to_file(root: Path, url: str) -> moving.Moved:
    path = WorkspaceFiles(root).store
    return moving.to_file(url, path, switch=lambda: keep_records_in(root, None))


def seen(workspace: OpenWorkspace) -> list[Any]:
    """Return what a user sees of a workspace's records."""
    store = workspace.store
    jobs = store.jobs()
    return [
        jobs,
        [store.events(job.id) for job in jobs],
        [store.files(job.id) for job in jobs],
        [store.metrics(job.id) for job in jobs],
        store.catalogue.datastores(),
    ]


def rows(connection: Any, table: str) -> int:
    return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_a_store_moves_there_and_back(server: Postgres, root: Path) -> None:
    url, file = server.schema(), WorkspaceFiles(root).store
    with open_workspace(root) as workspace:
        before = seen(workspace)
        newest = max(job.serial for job in workspace.store.jobs())
    there = to_postgres(root, url)
    assert there.rows > 30
    assert not file.exists()
    assert Path(there.old).name == "store-moved.db"
    with open_workspace(root) as workspace:
        assert seen(workspace) == before
        assert submit(workspace.store).serial == newest + 1
        before = seen(workspace)
    back = to_file(root, url)
    assert back.rows > there.rows
    with open_workspace(root) as workspace:
        assert seen(workspace) == before
        assert submit(workspace.store).serial == newest + 2
        before = seen(workspace)
    again = to_postgres(root, url)  # into its previous schema
    assert Path(again.old).name == "store-moved-2.db"
    with open_workspace(root) as workspace:
        assert seen(workspace) == before


def test_serials_of_removed_rows_are_not_given_again(server: Postgres, root: Path) -> None:
    with open_workspace(root) as workspace:
        newest = submit(workspace.store)
    with sqlite3.connect(WorkspaceFiles(root).store) as connection:
        connection.execute("DELETE FROM jobs WHERE serial = ?", (newest.serial,))
    connection.close()
    url = server.schema()
    to_postgres(root, url)
    to_file(root, url)
    with open_workspace(root) as workspace:
        assert submit(workspace.store).serial == newest.serial + 1


def test_a_store_that_another_process_has_open_is_not_moved(server: Postgres, root: Path) -> None:
    with open_workspace(root) as user:
        reading = user.store._database.read()  # type: ignore[attr-defined]
        with reading, pytest.raises(StoreBusyError, match="another process has the store"):
            to_postgres(root, server.schema())
        submit(user.store)
    assert folder.store_address(root) is None


def test_client_of_the_old_store_is_refused_after_the_move(server: Postgres, root: Path) -> None:
    url = server.schema()
    to_postgres(root, url)
    with open_workspace(root) as user:
        submit(user.store)
        to_file(root, url)
        with pytest.raises(StoreVersionError, match="was moved into a file"):
            submit(user.store)
    with open_workspace(root) as workspace:
        assert workspace.store.jobs()


def test_a_row_that_differs_stops_the_move(
    server: Postgres, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, plain = server.schema(), moving._of_postgres

    def wrong(connection: Any) -> moving.Rows:
        read = plain(connection)

        def changed(table: Any) -> Iterator[Any]:
            for number, row in enumerate(read(table)):
                yield (*row[:-1], "changed") if table.name == "events" and number == 5 else row

        return changed

    with open_workspace(root) as workspace:
        before = seen(workspace)
    monkeypatch.setattr(moving, "_of_postgres", wrong)
    with pytest.raises(StoreError, match=r"differs from the store in table events, row serial 6"):
        to_postgres(root, url)
    monkeypatch.undo()
    with open_workspace(root) as workspace:
        assert seen(workspace) == before
    to_postgres(root, url)  # leftovers of the first move do not matter
    with open_workspace(root) as workspace:
        assert seen(workspace) == before


def test_records_of_other_workspaces_stay(server: Postgres, root: Path, tmp_path: Path) -> None:
    url = server.schema()
    with shared.create_in(tmp_path / "other", url) as other:
        submit(other.store)
    with pytest.raises(UsageError, match="belongs to another workspace"):
        to_postgres(root, url)
    with folder.open_workspace(tmp_path / "other") as other:
        assert len(other.store.jobs()) == 1
    assert folder.store_address(root) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from rayjobs.store import moving
from rayjobs.workspace import folder, shared
root, url, there, at = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "there", sys.argv[4]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def switch():
    if at == "before":
        die()
    folder.keep_records_in(root, url if there else None)
    if at == "after":
        die()

if at == "copied":
    moving._compare = die
path = folder.WorkspaceFiles(root).store
if there:
    moving.to_postgres(path, url, workspace=str(folder.id_of(root)), switch=switch)
else:
    moving.to_file(url, path, switch=switch)
"""


@pytest.mark.parametrize("direction", ["there", "back"])
@pytest.mark.parametrize("at", ["copied", "before", "after"])
def test_a_move_that_is_killed_is_finished_by_the_next(
    server: Postgres,
    root: Path,
    terminal: Terminal,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
    at: str,
) -> None:
    url = server.schema()
    if direction == "back":
        to_postgres(root, url)
    with open_workspace(root) as workspace:
        before = seen(workspace)
    words = [sys.executable, "-c", KILLED, str(root), url, direction, at]
    assert subprocess.run(words, check=False, timeout=120).returncode == -9
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(root))
    if (folder.store_address(root) is None) == (direction == "there"):
        if at != "copied" or direction == "back":  # refused until the move is finished
            assert terminal.type("ls", "--json").code != 0
        again = terminal.type("db", "move", *([url] if direction == "there" else ["--to-file"]))
        assert again.code == 0, again.err
    with open_workspace(root) as workspace:
        assert seen(workspace) == before
        submit(workspace.store)


def test_move_command_reports_what_it_did(
    server: Postgres,
    root: Path,
    terminal: Terminal,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(root))
    assert terminal.type("db", "move").code == 2
    done = terminal.type("db", "move", server.url)
    assert done.code == 0, done.err
    assert f"?schema=workspace_{folder.id_of(root)}" in done.out
    assert "each compared with its copy" in done.out
    assert "store-moved.db" in done.err
    refused = terminal.type("db", "move", server.url)
    assert refused.code == 2
    assert "in PostgreSQL already" in refused.err
    assert terminal.type("db", "move", "--to-file").code == 0
    assert "in a file already" in terminal.type("db", "move", "--to-file").err


def test_an_older_file_is_upgraded_first(server: Postgres, root: Path) -> None:
    with sqlite3.connect(WorkspaceFiles(root).store) as connection:
        connection.execute("PRAGMA user_version = 11")
    connection.close()
    with pytest.raises(StoreVersionError, match="rayjobs db upgrade"):
        to_postgres(root, server.schema())


def test_every_table_is_moved(server: Postgres, root: Path) -> None:
    url = server.schema()
    to_postgres(root, url)
    names = {table.name for table in moving._tables()}
    with psycopg.connect(server.url) as connection:
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
            (parsed(url)[1],),
        ).fetchall()
    assert names == {name for (name,) in found} - {"store_state"}
