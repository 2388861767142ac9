"""A deleted store, or one without its newest records: reported immediately, fixed by a restore."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import StoreBusyError, StoreError, StoreLostError, UsageError
from rayjobs.store import care, witness
from rayjobs.store.connection import Database
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import submit

FORK = multiprocessing.get_context("fork")


def write_on(path: Path, count: int, channel: Connection) -> None:
    """Submit jobs, report it, and wait for SIGKILL with the store open."""
    store = SqlStore(path)
    for _ in range(count):
        submit(store)
    channel.send("written")
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


def test_removed_wal_is_reported_and_a_restore_repairs_it(path: Path, saved: Path) -> None:
    killed_after(path, 3)
    SqlStore(path).close()  # the file of a killed process is complete
    killed_after(path, 3)
    path.with_name("store.db-wal").unlink()
    path.with_name("store.db-shm").unlink(missing_ok=True)
    with pytest.raises(StoreLostError, match=r"lacks its newest.*`rayjobs db restore FILE`"):
        SqlStore(path)
    assert any("lacks its newest" in problem for problem in care.check(path).problems)
    old = care.restore(path, saved).old
    assert old is not None
    assert sorted(one.name for one in path.parent.glob("store*")) == [
        "store-replaced.db",
        "store.db",
        "store.db-serial",
    ]
    path.unlink()  # the note knows the restored store from the start
    with pytest.raises(StoreLostError, match="was deleted"):
        SqlStore(path)
    care.restore(path, saved)
    store = SqlStore(path)
    assert len(store.jobs()) == 1
    submit(store)
    store.close()
    SqlStore(path).close()


def test_a_wal_that_is_removed_under_open_connections_is_named(path: Path, saved: Path) -> None:
    keeping = SqlStore(path)  # as a running target does
    submit(keeping)
    path.with_name("store.db-wal").unlink()
    with pytest.raises(
        StoreLostError, match=r"contents of its -wal file.*`rayjobs db restore FILE`"
    ):
        SqlStore(path)
    keeping.close()


@pytest.mark.usefixtures("saved")
def test_a_store_without_its_wal_can_be_accepted(path: Path) -> None:
    killed_after(path, 2)
    path.with_name("store.db-wal").unlink()
    with pytest.raises(StoreLostError):
        SqlStore(path)
    assert care.restore(path, None).old is None
    store = SqlStore(path)
    assert store.jobs()
    store.close()


def test_a_deleted_store_is_reported_to_processes_that_have_it_open_too(
    path: Path, saved: Path
) -> None:
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
    assert (
        len(store.jobs()) == 1
    )  # the process that had the old one open continues with the new one
    submit(store)
    store.close()
    again = SqlStore(path)
    assert len(again.jobs()) == 2
    again.close()


@pytest.mark.usefixtures("saved")
def test_empty_file_in_place_of_a_store_is_refused(path: Path) -> None:
    path.unlink()
    path.touch()
    with pytest.raises(StoreLostError, match="was deleted"):
        SqlStore(path)


def test_invisible_folder_is_not_a_deleted_store(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    store = SqlStore(tmp_path / "w" / "store.db")
    submit(store)
    (tmp_path / "w").rename(tmp_path / "away")
    with pytest.raises(StoreError, match=f"was moved to {tmp_path / 'away'}") as caught:
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


def test_healthy_store_is_never_reported_as_lost(path: Path) -> None:
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
    witnessed = witness.Witness(path)
    note = witnessed.read()
    assert note is not None
    assert note.newest == note.synced == 1  # a submit is synced
    # A commit that was not synced is lost with the power: the note of the boot before knows it.
    witnessed.path.write_bytes(witness._text(witness.Note("another-boot", 6, 1)))
    SqlStore(path).close()
    witnessed.path.write_bytes(witness._text(witness.Note("another-boot", 1, 6)))
    with pytest.raises(StoreLostError):
        SqlStore(path)


@pytest.mark.usefixtures("saved")
def test_torn_note_is_ignored(path: Path) -> None:
    witnessed = witness.Witness(path)
    witnessed.path.write_bytes(b"torn 99999 99999 00000000\n")
    store = SqlStore(path)
    submit(store)
    store.close()
    note = witnessed.read()
    assert note is not None
    assert note.newest == note.synced == 2


@pytest.mark.parametrize("event", ["replaced", "closed"])
def test_note_in_progress_is_never_written_to_another_file(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    store = SqlStore(path)
    submit(store)
    is_writing, may_continue = threading.Event(), threading.Event()
    noted, text = witness.Witness(path).path.stat(), witness._text
    assert isinstance(store._database, Database)
    open_note = store._database._witness
    assert open_note is not None
    descriptor = open_note._descriptor
    assert descriptor is not None

    def late(note: witness.Note) -> bytes:
        is_writing.set()
        assert may_continue.wait(120)
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
        may_continue.set()
        writer.join(120)
    assert open_note._descriptor is None  # the writer closed it
    store.close()


def at_each_step(monkeypatch: pytest.MonkeyPatch, path: Path, act: Callable[[str], None]) -> None:
    """Call `act` before each change of a store's names."""
    names = {path.name + end for end in ("", "-wal", "-shm", witness.ENDING)}

    def with_act(name: str) -> None:
        method = getattr(Path, name)

        def acting(self: Path, *given: Any, **more: Any) -> Any:
            target = Path(given[0]).name if given else ""
            if self.name in names or target == path.name:
                act(f"{name} {self.name}")
            return method(self, *given, **more)

        monkeypatch.setattr(Path, name, acting)

    for name in ("rename", "replace", "unlink"):
        with_act(name)


def write_if_it_opens(path: Path, channel: Connection) -> None:
    try:
        store = SqlStore(path, busy_timeout_s=0.3)
        for _ in range(3):
            submit(store)
    except StoreError as error:
        channel.send(type(error).__name__)
    else:
        channel.send("written")
    threading.Event().wait()


def test_no_process_opens_a_store_during_its_restore(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(path, 3)
    answers = {}

    def intrude(step: str) -> None:
        here, there = FORK.Pipe()
        process = FORK.Process(target=write_if_it_opens, args=(path, there))
        process.start()
        assert here.poll(120)
        answers[step] = here.recv()
        process.kill()  # what it wrote stays in its -wal file
        process.join()

    with monkeypatch.context() as patched:
        at_each_step(patched, path, intrude)
        old = care.restore(path, saved).old
    assert len(answers) >= 3
    assert "written" not in answers.values(), answers
    assert [len(jobs_of(one)) for one in (path, old)] == [1, 4]


def jobs_of(path: Path | None) -> list[Any]:
    assert path is not None
    store = SqlStore(path)
    try:
        return store.jobs()
    finally:
        store.close()


def restore_and_die(path: Path, saved: Path, at: int) -> None:
    steps: list[str] = []

    def die(step: str) -> None:
        if len(steps) == at:
            os._exit(9)
        steps.append(step)

    at_each_step(pytest.MonkeyPatch(), path, die)
    care.restore(path, saved)
    os._exit(0)


def test_a_restore_that_is_killed_is_reported_and_can_be_repeated(
    path: Path, saved: Path, tmp_path: Path
) -> None:
    killed_after(path, 3)
    codes: list[int | None] = []
    outcomes: list[int] = []
    while not codes or codes[-1] == 9:
        folder = tmp_path / f"at-{len(codes)}"
        folder.mkdir()
        for one in tmp_path.glob("store.db*"):
            shutil.copy2(one, folder)
        mine = folder / path.name
        process = FORK.Process(target=restore_and_die, args=(mine, saved, len(codes)))
        process.start()
        process.join(120)
        codes.append(process.exitcode)
        try:
            outcomes.append(len(jobs_of(mine)))
        except StoreLostError:
            outcomes.append(-1)
        care.restore(mine, saved)
        assert len(jobs_of(mine)) == 1
        kept = [len(jobs_of(one)) for one in folder.glob("store-replaced*.db")]
        assert 4 in kept  # nothing of the old one is lost
    assert codes[-1] == 0
    before, refused = outcomes.count(4), outcomes.count(-1)
    assert min(before, refused) >= 1
    assert outcomes == [*[4] * before, *[-1] * refused, 1]


def test_a_store_that_another_process_has_open_is_not_replaced(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = FORK.Pipe()
    process = FORK.Process(target=write_on, args=(path, 2, there))
    process.start()
    try:
        assert here.poll(120)
        monkeypatch.setattr(care, "BUSY_TIMEOUT_S", 0.1)
        with pytest.raises(StoreBusyError, match=r"has the store .* open"):
            care.restore(path, saved)
    finally:
        process.kill()
        process.join()
    assert len(jobs_of(path)) == 3


def test_file_that_is_not_a_backup_is_refused(path: Path, saved: Path) -> None:
    saved.write_text("not a database, and longer than a header" * 10)
    with pytest.raises(UsageError, match="cannot be restored"):
        care.restore(path, saved)
    SqlStore(path).close()
