"""Files, forks, threads and backups of a SQLite store."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.core.errors import StoreError, UsageError
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, JobFilter
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import submit


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_path_and_its_url_name_the_same_store(tmp_path: Path, form: str) -> None:
    first = SqlStore(tmp_path / "store.db")
    job = submit(first)
    second = SqlStore(form.format(tmp_path / "store.db"))
    assert second.path == tmp_path / "store.db"
    assert second.job(job.id) == job
    first.close()
    second.close()


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite://host/db", "sqlite:///"])
def test_an_unknown_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///path"):
        SqlStore(url)


def test_only_its_owner_can_read_a_store(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        store = SqlStore(tmp_path / "store.db")
        submit(store)
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
        store.close()
    finally:
        os.umask(mask)


def test_missing_folder_and_file_that_is_not_a_database_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"folder .*missing.* does not exist"):
        SqlStore(tmp_path / "missing" / "store.db")
    (tmp_path / "store.db").write_text("not a database, and longer than a header" * 10)
    with pytest.raises(StoreError, match="not a SQLite database"):
        SqlStore(tmp_path / "store.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreError, match=r"folder\.db"):
        SqlStore(tmp_path / "folder.db")


def test_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.jobs()
    assert not (tmp_path / "store.db-wal").exists()


def in_a_child(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, and return its pid; it exits with 0 if all went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended_well(child: int) -> bool:
    """Wait for a child's end."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.long
def test_parent_and_forked_child_both_continue(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db", busy_timeout_s=60)
    submit(store)
    parent_closed_read, parent_closed_write = os.pipe()
    wrote_read, wrote_write = os.pipe()

    def work() -> None:
        os.close(parent_closed_write)
        submit(store, idempotency_key="while the parent has it open")
        os.write(wrote_write, b"x")
        os.read(parent_closed_read, 1)  # ends when the parent closes the pipe
        submit(store, idempotency_key="after the parent has closed it")
        # What is written is in the store, not in a -wal file that the parent deleted.
        probe = sqlite3.connect(tmp_path / "store.db")
        assert probe.execute("SELECT COUNT(*) FROM jobs").fetchone() == (4,)

    child = in_a_child(work)
    os.read(wrote_read, 1)
    submit(store, idempotency_key="from the parent")
    store.close()
    os.close(parent_closed_write)
    assert ended_well(child)
    for descriptor in (parent_closed_read, wrote_read, wrote_write):
        os.close(descriptor)
    again = SqlStore(tmp_path / "store.db")
    assert [job.serial for job in again.jobs()] == [4, 3, 2, 1]
    again.close()
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.long
def test_a_fork_waits_for_the_transactions_of_other_threads(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db", busy_timeout_s=60)
    inside, stop = threading.Event(), threading.Event()

    def write_for_ever() -> None:
        while not stop.is_set():
            submit(store)
            inside.set()

    thread = threading.Thread(target=write_for_ever)
    thread.start()
    try:
        assert inside.wait(150)
        children = [in_a_child(lambda: submit(store)) for _ in range(5)]
        ends = [ended_well(child) for child in children]
    finally:
        stop.set()
        thread.join()
    assert ends == [True] * 5
    jobs = store.jobs(JobFilter(newest_first=False))
    assert [job.serial for job in jobs] == list(range(1, len(jobs) + 1))
    store.close()


@pytest.mark.long
def test_a_child_forked_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db", busy_timeout_s=60)

    def work() -> None:
        with pytest.raises(StoreError, match="forked in the middle of a transaction"):
            store.jobs()

    with store._database.write():
        child = in_a_child(work)
    assert ended_well(child)
    assert submit(store).serial == 1
    store.close()


@pytest.mark.long
def test_threads_share_a_store(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db", busy_timeout_s=60)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                job = submit(store, id=f"job_{number}_{turn}")
                assert store.job(job.id) == job
                store.add_event(job.id, "note", "text")
                assert len(store.events(job.id)) == 2
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(job.serial for job in store.jobs()) == list(range(1, 61))
    store.close()


def test_a_failed_call_leaves_nothing_behind(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    job = submit(store)
    with pytest.raises(UsageError):
        store.update(
            job.id, JobChanges(tags={"t": "1"}, priority=3, properties={"a": "1"})
        ) and store.update(job.id, JobChanges(priority=4, properties={"a": "2"}))
    assert (store.job(job.id).priority, store.job(job.id).tags) == (3, {"t": "1"})
    assert [e.kind for e in store.events(job.id)] == ["state", "priority"]
    store.close()


def test_a_backup_of_a_store_in_use_is_whole(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    jobs = [submit(store) for _ in range(20)]
    store.backup(tmp_path / "copy.db")
    # A copy made by `cp` lacks what is only in the -wal file: the reason for `backup`.
    shutil.copy(tmp_path / "store.db", tmp_path / "plain-copy.db")
    submit(store)
    copy = SqlStore(tmp_path / "copy.db")
    assert [job.id for job in copy.jobs(JobFilter(newest_first=False))] == [job.id for job in jobs]
    copy.close()
    with sqlite3.connect(tmp_path / "plain-copy.db") as connection:
        tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    assert tables == (0,)
    with pytest.raises(UsageError, match="exists"):
        store.backup(tmp_path / "copy.db")
    store.close()


@pytest.mark.long
def test_thousands_of_jobs_are_listed_whole(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    submit(store, JobSpec(script="a.py", tags={"a": "b"}))
    with sqlite3.connect(tmp_path / "store.db") as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]
        columns = ", ".join(name for name in names if name not in ("serial", "id"))
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2999)"
            f" INSERT INTO jobs (id, {columns}) SELECT 'job_' || i, {columns} FROM n, jobs"
        )
    connection.close()
    assert len(store.jobs()) == len(store.job_lines()) == 3_000
    assert [job.serial for job in store.jobs(JobFilter(limit=2))] == [3_000, 2_999]
    store.close()
