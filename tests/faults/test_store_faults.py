"""Locks, full disks, kills and races: the store reports its state, and loses nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import StoreBusyError, StoreFullError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.states import JobState
from rayjobs.store import schema
from rayjobs.store.migrations.upgrade import upgrade
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import bring, submit
from tests.support.schema_steps import NEWEST_STORE, NEXT, with_next_step

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # some wait for several facts, each with a long deadline

DEADLINE_S = 150.0

HOLDER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def run_script(name: str, *arguments: object, before: tuple[str, ...] = ()) -> Any:
    """Run a program of `store_scripts` to its end; return the JSON that it printed."""
    done = subprocess.run(
        [*before, sys.executable, "-m", f"tests.faults.store_scripts.{name}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_whole(path: Path) -> bool:
    """Return whether SQLite finds no fault in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


# -- a lock of another process ----------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[SqlStore, subprocess.Popen[bytes]]]:
    """A store whose lock is held by a stopped process."""
    store = SqlStore(tmp_path / "store.db", busy_timeout_s=0.3)
    submit(store, id="before")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(store.path)])
    try:
        deadline = time.monotonic() + DEADLINE_S
        while os.waitpid(holder.pid, os.WUNTRACED | os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline, "the holder did not stop"
            time.sleep(0.02)
        yield store, holder
    finally:
        holder.kill()
        holder.wait()
        store.close()


def test_persistent_lock_is_named_and_reads_continue(
    held: tuple[SqlStore, subprocess.Popen[bytes]],
) -> None:
    store, holder = held
    for call in (
        lambda: submit(store, id="refused"),
        lambda: store.start("before", attempt=0, allocation="a"),
        lambda: store.add_event("before", "note", "text"),
    ):
        with pytest.raises(StoreBusyError, match=r"locked by another process.*0\.3s"):
            call()
    assert [job.id for job in store.jobs()] == ["before"]
    assert store.job("before").state is JobState.QUEUED
    reader = SqlStore(str(store.path), busy_timeout_s=0.3)
    assert [line.id for line in reader.job_lines()] == ["before"]
    reader.close()
    holder.kill()
    holder.wait()
    assert submit(store, id="after").serial == 2


def test_released_lock_is_waited_for(
    held: tuple[SqlStore, subprocess.Popen[bytes]],
) -> None:
    first, holder = held
    patient = SqlStore(str(first.path), busy_timeout_s=DEADLINE_S)
    os.kill(holder.pid, signal.SIGCONT)  # it ends and releases its lock
    assert submit(patient, id="waited").serial == 2
    patient.close()


# -- a full disk --------------------------------------------------------------------------------


def small_disk(folder: Path) -> tuple[str, ...]:
    """Return a command prefix that mounts a 2 MB disk at `folder` for one process alone."""
    mount = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    unshare = ["unshare", "--mount"]
    if os.getuid() != 0:
        unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    prefix = (*unshare, "sh", "-c", mount, str(folder))
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no `unshare` here to mount a small disk with")
    if works.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {works.stderr.decode().strip()}")
    return prefix


def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    found = run_script("full_disk", tmp_path, before=small_disk(tmp_path))
    assert found.pop("size") == 2 << 20
    for call in ("submit", "event", "finish"):
        message = found.pop(call)
        assert message.startswith("StoreFullError: the disk of the store"), message
        assert "Free space in" in message
    message = found.pop("blob")
    assert message.startswith("StorageFullError: no space is left for files in"), message
    assert found == {
        "blob kept": "before",
        "left by blob": 0,
        "state while full": "Provisioning",
        "read while full": True,
        "read by another while full": True,
        "finish after": True,
        "blob after": 5,
        "kept": True,
        "integrity": "ok",
    }


def test_store_that_cannot_grow_reports_it_without_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit gives the same error as a full disk, where nothing can be mounted."""
    path = tmp_path / "store.db"
    SqlStore(path).close()
    pages = path.stat().st_size // 4096 + 4
    connect = sqlite3.connect

    def limited(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*arguments, **options)
        made.execute(f"PRAGMA max_page_count = {pages}")
        return made

    monkeypatch.setattr(sqlite3, "connect", limited)
    store = SqlStore(path)
    kept = []
    with pytest.raises(StoreFullError, match="nothing was changed"):
        for _ in range(1000):
            kept.append(submit(store).id)
    assert [job.id for job in store.jobs(JobFilter(newest_first=False))] == kept
    assert all(len(store.events(job)) == 1 for job in kept)
    store.close()
    monkeypatch.undo()
    again = SqlStore(path)
    submit(again)
    assert len(again.jobs()) == len(kept) + 1
    again.close()
    assert is_whole(path)


# -- kills ---------------------------------------------------------------------------------------


def test_no_acknowledged_submit_of_a_killed_client_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    acknowledged = run_script("killed_client", path, 30)
    assert len({key.partition("-")[0] for key in acknowledged}) == 30
    store = SqlStore(path)
    jobs = {job.id: job for job in store.jobs()}
    assert set(acknowledged.values()) <= set(jobs)
    # In each round, at most the submit in progress was stored without an acknowledgement, and
    # repeating it returns that job.
    assert len(jobs) - len(acknowledged) <= 30
    for key, job in acknowledged.items():
        again, is_new = store.submit(
            NewJob(
                spec=jobs[job].spec,
                experiment="mnist",
                snapshot=None,
                user="ada",
                idempotency_key=key,
            )
        )
        assert (again.id, is_new) == (job, False)
    for job in jobs:
        assert [event.message for event in store.events(job)] == ["Queued"]
    store.close()
    assert is_whole(path)


def test_an_upgrade_killed_anywhere_is_completed_by_the_next_open(tmp_path: Path) -> None:
    steps = with_next_step(tmp_path / "steps")
    kills = run_script("killed_opening", tmp_path, NEWEST_STORE, NEXT, steps)
    assert kills >= 8  # pragmas, begin, the step itself, alembic's mark, the version, commit
    jobs = "SELECT id, state FROM jobs ORDER BY serial"
    expected = _read(NEWEST_STORE, jobs)
    for number in range(kills + 1):
        path = tmp_path / f"{number}.db"
        columns = {row[1] for row in _read(path, "PRAGMA table_info(jobs)")}
        # Either the whole upgrade happened, or nothing.
        assert (_read(path, "PRAGMA user_version") == [(NEXT,)]) == ("length" in columns), number
        assert is_whole(path)
        upgrade(path, to=NEXT, versions=steps)
        assert _read(path, jobs) == expected
        assert _read(path, "PRAGMA user_version") == [(NEXT,)]


def test_a_creation_killed_anywhere_is_completed_by_the_next_open(tmp_path: Path) -> None:
    kills = run_script("killed_opening", tmp_path)
    assert kills >= len(schema.schema_statements())
    for number in range(kills + 1):
        store = SqlStore(tmp_path / f"{number}.db")
        assert submit(store).serial == 1
        store.close()


def _read(path: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


# -- races ---------------------------------------------------------------------------------------


def test_fifty_processes_with_one_key_make_one_job(tmp_path: Path) -> None:
    answers = run_script("one_key", tmp_path / "w", 50)
    assert [answer for answer in answers if not isinstance(answer, list)] == []
    assert len(answers) == 50
    assert len({job for job, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    store = SqlStore(tmp_path / "w" / "store.db")
    assert len(store.jobs()) == 1
    store.close()


def test_two_processes_never_start_or_hold_the_same(tmp_path: Path) -> None:
    first, second = run_script("race", tmp_path / "store.db", 40)
    jobs = {f"job_{number}" for number in range(40)}
    for what in ("started", "held"):
        assert set(first[what]) | set(second[what]) == jobs
        assert not set(first[what]) & set(second[what])
    store = SqlStore(tmp_path / "store.db")
    for job in jobs:
        (attempt,) = store.attempts(job)
        winner = 0 if job in first["started"] else 1
        assert attempt.allocation == f"rj-{job}-{winner}"
    store.close()


# -- rows that a half-done call would leave ------------------------------------------------------


def test_a_call_that_fails_in_the_middle_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(tmp_path / "store.db")
    job = submit(store)
    bring(store, job, JobState.RUNNING)
    before = store.job(job.id), store.attempts(job.id), store.events(job.id)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlStore, "_event", fail)
    for call in (
        lambda: store.finish(job.id, attempt=1, state=JobState.FAILED),
        lambda: store.requeue(job.id, attempt=1, reason="r", outcome=Outcome.NODE_LOST),
        lambda: store.move(job.id, attempt=1, old=JobState.RUNNING, new=JobState.FINALIZING),
        lambda: store.request_cancel(job.id),
        lambda: submit(store),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
    monkeypatch.undo()
    assert (store.job(job.id), store.attempts(job.id), store.events(job.id)) == before
    assert len(store.jobs()) == 1
    assert store.finish(job.id, attempt=1, state=JobState.FAILED)
    store.close()
