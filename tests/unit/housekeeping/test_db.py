"""The store's file: checked, copied whole while it is used, upgraded on demand."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from rayjobs.cli.exits import Exit
from rayjobs.core.errors import StoreError, UsageError
from rayjobs.core.paths import home
from rayjobs.store import care, schema
from rayjobs.store.sql import SqlStore
from rayjobs.target import starting
from rayjobs.target.stopping import TargetLocation
from tests.support.schema_steps import NEWEST_STORE, use_next_version
from tests.unit.cli.conftest import Queue, Terminal
from tests.unit.cli.fake_target import target


def old_workspace(home: Path) -> Path:
    """Make a workspace with a stored store; return the store's file."""
    folder = home / "w"
    folder.mkdir()
    (folder / "workspace.json").write_text('{"version": 1, "id": "a1", "name": "old"}\n')
    return Path(shutil.copy(NEWEST_STORE, folder / "store.db"))


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return schema.version_of(connection)
    finally:
        connection.close()


def test_backup_contains_the_last_write(queue: Queue, terminal: Terminal, tmp_path: Path) -> None:
    job = queue.completed()
    store = queue.workspace.path / "store.db"
    # The store is open, so the last write is still in the -wal file, which a plain copy would miss.
    assert store.with_name("store.db-wal").stat().st_size > 0
    done = terminal.type("db", "backup", str(tmp_path / "copy.db"))
    assert done.code == 0
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]
    copy = SqlStore(tmp_path / "copy.db")
    assert copy.job(job.id) == queue.workspace.store.job(job.id)
    assert copy.metrics(job.id) == queue.workspace.store.metrics(job.id)
    copy.close()


def test_a_backup_while_others_write_is_one_state(queue: Queue, tmp_path: Path) -> None:
    job = queue.submit()
    connection = sqlite3.connect(queue.workspace.path / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM jobs")
    care.backup(queue.workspace.path / "store.db", tmp_path / "copy.db")
    connection.execute("ROLLBACK")
    connection.close()
    copy = SqlStore(tmp_path / "copy.db")
    assert copy.job(job.id).id == job.id
    copy.close()


def test_a_backup_replaces_nothing(queue: Queue, terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("mine", "link"):
        done = terminal.type("db", "backup", str(tmp_path / name))
        assert done.code == 2 and "exists" in done.err
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(UsageError, match="is not a folder"):
        care.backup(queue.workspace.path / "store.db", tmp_path / "no" / "x.db")


def test_a_sound_store_passes_the_check(queue: Queue, terminal: Terminal) -> None:
    queue.completed()
    done = terminal.type("db", "check", "--json")
    found = json.loads(done.out)
    assert (done.code, found["is_whole"], found["problems"]) == (0, True, [])
    assert found["version"] == schema.VERSION
    assert "SQLite reports no errors" in terminal.type("db", "check").out


def test_a_damaged_store_fails_the_check_and_no_backup_is_made(
    own_home: Path, terminal: Terminal, tmp_path: Path
) -> None:
    path = old_workspace(own_home)
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    done = terminal.type("db", "check")
    assert done.code == 1 and "damaged" in done.out
    with pytest.raises(StoreError):
        care.backup(path, tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="cannot be upgraded"):
        care.upgrade(path)


def test_file_that_is_not_a_store_fails_the_check(own_home: Path, terminal: Terminal) -> None:
    path = old_workspace(own_home)
    path.write_bytes(b"a letter, not a database\n" * 100)
    assert terminal.type("db", "check").code == 1
    path.unlink()
    assert terminal.type("db", "check").code == 3


def test_a_check_and_a_backup_do_not_upgrade_an_old_store(
    own_home: Path, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = old_workspace(own_home), schema.VERSION
    use_next_version(monkeypatch, tmp_path / "versions")
    done = terminal.type("db", "check")
    assert done.code == 0 and "rayjobs db upgrade" in done.out
    assert terminal.type("db", "backup", str(tmp_path / "copy.db")).code == 0
    assert (version_of(path), version_of(tmp_path / "copy.db")) == (old, old)


def test_an_upgrade_keeps_the_old_store_next_to_it(
    own_home: Path, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = old_workspace(own_home), schema.VERSION
    use_next_version(monkeypatch, tmp_path / "versions")
    done = terminal.type("db", "upgrade", "--json")
    assert json.loads(done.out) == {
        "from": old,
        "to": schema.VERSION,
        "copy": str(path.with_name(f"store-version-{old}.db")),
    }
    assert version_of(path) == schema.VERSION
    assert version_of(path.with_name(f"store-version-{old}.db")) == old
    assert "already" in terminal.type("db", "upgrade").out


def test_a_newer_store_is_not_touched(own_home: Path, terminal: Terminal) -> None:
    path = old_workspace(own_home)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    done = terminal.type("db", "upgrade")
    assert done.code == 5 and "upgrade rayjobs here" in done.err
    assert terminal.type("db", "check").code == 1
    assert version_of(path) == 999


def test_store_on_a_network_disk_causes_a_warning(
    queue: Queue, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care, "file_system_of", lambda _path: "nfs4")
    done = terminal.type("db", "check")
    assert done.code == 0 and "network file system (nfs4)" in done.out


def test_a_store_that_a_target_uses_is_not_replaced(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    copy, store = tmp_path / "copy.db", queue.workspace.path / "store.db"
    queue.completed()
    assert terminal.type("db", "backup", str(copy)).code == 0
    starting.register_workspace(TargetLocation("local", home()).paths, queue.workspace.path)
    inode = store.stat().st_ino
    with target(None):
        for what in (str(copy), "--as-is"):
            done = terminal.type("db", "restore", what)
            assert done.code == Exit.UNREACHABLE
            assert "rayjobs target stop local" in done.err
    assert store.stat().st_ino == inode
    assert store.with_name("store.db-serial").exists()


@pytest.mark.long
def test_a_deleted_store_comes_back_from_its_backup(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    job = queue.completed()
    copy, store = tmp_path / "copy.db", queue.workspace.path / "store.db"
    assert terminal.type("db", "backup", str(copy)).code == 0
    for end in ("", "-wal", "-shm"):
        store.with_name(store.name + end).unlink(missing_ok=True)
    for command in (("ls",), ("db", "check"), ("submit", "-d", "--command", "true")):
        done = terminal.type(*command)
        assert done.code == Exit.UNREACHABLE
        assert "was deleted" in done.err
        assert "`rayjobs db restore FILE`" in done.err
    assert not store.exists()
    assert terminal.type("db", "restore").code == Exit.USAGE
    assert terminal.type("db", "restore", str(copy)).code == 0
    assert job.id.rpartition("_")[2] in terminal.type("ls", "-a").out
    store.unlink()
    assert terminal.type("db", "restore", "--as-is").code == 0
    assert terminal.type("ls", "-a").code == 0


@pytest.mark.long
def test_a_restore_names_what_it_drops_and_is_confirmed_first(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    copy, store = tmp_path / "copy.db", queue.workspace.path / "store.db"
    kept = queue.completed("kept")
    during = queue.start(queue.submit("during"))
    assert terminal.type("db", "backup", str(copy)).code == 0
    queue.store_file(during, "azureml-logs/70_driver_log.txt", b"hello")
    queue.finish(during)
    later = queue.completed("later")
    (tmp_path / "weights").write_bytes(b"weights")
    register = ("model", "register", "m", "--from", str(tmp_path / "weights"))
    assert terminal.type(*register).code == 0

    done = terminal.type("db", "restore", str(copy))
    assert done.code == Exit.USAGE
    assert f"1 job is dropped: later ({later.id.rpartition('_')[2]})" in done.err
    assert "Nothing was replaced" in done.err
    assert terminal.type("show", later.id).code == 0

    queue.workspace.close()
    done = terminal.type("db", "restore", "--yes", str(copy))
    assert done.code == 0
    replaced = store.with_name("store-replaced.db")
    assert "1 job was dropped: later" in done.out
    assert "1 model version was dropped: m:1" in done.out
    assert "1 job is unfinished again and runs again: during, Completed" in done.out
    assert f"the old one is kept in {replaced}" in done.out
    assert terminal.type("show", kept.id).code == 0
    for command in ("logs", "files", "show", "download"):
        done = terminal.type(command, "later")
        assert done.code == 3
        assert f"a restore from {copy} dropped it; {replaced}, the replaced store" in done.err
    for command in ("logs", "files", "show"):
        done = terminal.type(command, during.id)
        output = " ".join(f"{done.out} {done.err}".split())
        assert f"in the replaced store, {replaced}, it is Completed" in output

    back = terminal.type("db", "restore", "--yes", "--json", str(replaced))
    assert back.code == 0
    assert json.loads(back.out)["dropped"] == {"records": {}, "again": []}
    assert terminal.type("show", "later").code == 0
    assert terminal.type("logs", during.id).out == "hello"


def test_restore_that_drops_nothing_needs_no_confirmation(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    queue.completed()
    assert terminal.type("db", "backup", str(tmp_path / "copy.db")).code == 0
    queue.workspace.close()
    done = terminal.type("db", "restore", str(tmp_path / "copy.db"))
    assert done.code == 0
    assert "dropped" not in done.out


def test_a_store_that_cannot_be_read_is_replaced_without_a_question(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    copy, store = tmp_path / "copy.db", queue.workspace.path / "store.db"
    job = queue.start(queue.submit("during"))
    assert terminal.type("db", "backup", str(copy)).code == 0
    queue.workspace.close()
    for end in ("-wal", "-shm"):
        store.with_name(store.name + end).unlink(missing_ok=True)
    store.write_bytes(b"SQLite format 3\0" + b"\xff" * 200_000)
    done = terminal.type("db", "restore", "--json", str(copy))
    assert done.code == 0
    assert json.loads(done.out)["dropped"] is None
    done = terminal.type("logs", job.id)
    assert f"restored from {copy}; what this job did after that backup is not" in done.err
