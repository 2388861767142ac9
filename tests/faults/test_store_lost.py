"""A store that was deleted, or whose newest records were: told at once, cured by a restore."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rayjobs.errors import StoreError, StoreLostError, UsageError
from rayjobs.store import care, witness
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import submit

FORK = multiprocessing.get_context("fork")


def write_on(path: Path, count: int, told: Connection) -> None:
    """Submit jobs, say so, and wait with the store open for the end by SIGKILL."""
    store = SqlStore(path)
    for _ in range(count):
        submit(store)
    told.send("written")
    threading.Event().wait()


def killed_after(path: Path, count: int) -> None:
    here, there = FORK.Pipe()
    process = FORK.Process(target=write_on, args=(path, count, there))
    process.start()
    assert process.pid is not None
    assert here.poll(120)
    assert here.recv() == "written"
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def saved(path: Path, tmp_path: Path) -> Path:
    """A backup of a store with one job."""
    store = SqlStore(path)
    submit(store)
    store.close()
    care.backup(path, tmp_path / "backup.db")
    return tmp_path / "backup.db"


def test_a_removed_wal_is_told_and_a_restore_puts_it_right(path: Path, saved: Path) -> None:
    killed_after(path, 3)
    SqlStore(path).close()  # what a killed process left is whole
    killed_after(path, 3)
    path.with_name("store.db-wal").unlink()
    path.with_name("store.db-shm").unlink(missing_ok=True)
    with pytest.raises(StoreLostError, match=r"lacks its newest.*`rayjobs db restore FILE`"):
        SqlStore(path)
    assert any("lacks its newest" in problem for problem in care.check(path).problems)
    old = care.restore(path, saved)
    assert old is not None
    assert old.exists()
    store = SqlStore(path)
    assert len(store.jobs()) == 1
    submit(store)
    store.close()
    SqlStore(path).close()


@pytest.mark.usefixtures("saved")
def test_a_store_without_its_wal_can_be_accepted(path: Path) -> None:
    killed_after(path, 2)
    path.with_name("store.db-wal").unlink()
    with pytest.raises(StoreLostError):
        SqlStore(path)
    assert care.restore(path, None) is None
    store = SqlStore(path)
    assert store.jobs()
    store.close()


def test_a_deleted_store_is_told_also_to_who_has_it_open(path: Path, saved: Path) -> None:
    store = SqlStore(path)
    job = submit(store)
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    for call in (lambda: submit(store), lambda: store.job(job.id), store.change):
        with pytest.raises(StoreLostError, match=r"was deleted.*`rayjobs db restore FILE`"):
            call()
    with pytest.raises(StoreLostError, match="was deleted"):
        SqlStore(path)
    assert not path.exists()
    care.restore(path, saved)
    assert len(store.jobs()) == 1  # the process that had the old one open goes on with the new one
    submit(store)
    store.close()
    again = SqlStore(path)
    assert len(again.jobs()) == 2
    again.close()


@pytest.mark.usefixtures("saved")
def test_an_empty_file_in_the_place_of_a_store_is_not_taken_for_it(path: Path) -> None:
    path.unlink()
    path.touch()
    with pytest.raises(StoreLostError, match="was deleted"):
        SqlStore(path)


def test_a_folder_that_cannot_be_seen_is_no_deleted_store(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    store = SqlStore(tmp_path / "w" / "store.db")
    submit(store)
    (tmp_path / "w").rename(tmp_path / "away")
    with pytest.raises(StoreError, match="cannot be seen") as caught:
        submit(store)
    assert not isinstance(caught.value, StoreLostError)
    (tmp_path / "away").rename(tmp_path / "w")
    submit(store)
    assert len(store.jobs()) == 2
    store.close()


def submit_many(path: Path, count: int) -> None:
    for _ in range(count):
        store = SqlStore(path)  # each opening compares
        submit(store)
        store.set_meta("a", "b")
        store.close()


def test_a_healthy_store_is_never_accused(path: Path) -> None:
    processes = [FORK.Process(target=submit_many, args=(path, 10)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    store = SqlStore(path)
    assert len(store.jobs()) == 40
    store.close()


@pytest.mark.usefixtures("saved")
def test_after_a_reboot_only_what_was_synced_is_expected(path: Path) -> None:
    beside = witness.Witness(path)
    note = beside.read()
    assert note is not None
    assert note.newest == note.synced == 1  # a submit is synced
    # A commit that was not synced is lost with the power: the note of the boot before knows it.
    beside.path.write_bytes(witness._text(witness.Note("another-boot", 6, 1)))
    SqlStore(path).close()
    beside.path.write_bytes(witness._text(witness.Note("another-boot", 1, 6)))
    with pytest.raises(StoreLostError):
        SqlStore(path)


@pytest.mark.usefixtures("saved")
def test_a_torn_note_says_nothing(path: Path) -> None:
    beside = witness.Witness(path)
    beside.path.write_bytes(b"torn 99999 99999 00000000\n")
    store = SqlStore(path)
    submit(store)
    store.close()
    note = beside.read()
    assert note is not None
    assert note.newest == note.synced == 2


@pytest.mark.parametrize("event", ["replaced", "closed"])
def test_a_note_under_way_is_never_written_to_another_file(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    store = SqlStore(path)
    submit(store)
    is_writing, goes_on = threading.Event(), threading.Event()
    noted, text = witness.Witness(path).path.stat(), witness._text
    open_note = store._database._witness
    assert open_note is not None
    descriptor = open_note._descriptor
    assert descriptor is not None

    def late(note: witness.Note) -> bytes:
        is_writing.set()
        assert goes_on.wait(120)
        return text(note)

    monkeypatch.setattr(witness, "_text", late)
    writer = threading.Thread(target=submit, args=(store,))
    writer.start()
    try:
        assert is_writing.wait(120)
        if event == "closed":
            store.close()
        else:
            for end in ("-wal", "-shm", witness.ENDING):
                path.with_name(path.name + end).unlink()
            saved.replace(path)
            assert len(store.jobs()) == 1
        assert os.path.samestat(os.fstat(descriptor), noted)
    finally:
        goes_on.set()
        writer.join(120)
    assert open_note._descriptor is None  # the writer closed it
    store.close()


def test_what_is_no_backup_is_refused(path: Path, saved: Path) -> None:
    saved.write_text("not a database, and longer than a header" * 10)
    with pytest.raises(UsageError, match="cannot be restored"):
        care.restore(path, saved)
    SqlStore(path).close()
