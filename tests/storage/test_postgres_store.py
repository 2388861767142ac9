"""A store in PostgreSQL: addresses, lost connections, lost responses, many writers, forks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rayjobs.core.errors import (
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
    StoreVersionError,
    UsageError,
)
from rayjobs.store import postgres as in_postgres
from rayjobs.store import postgres_pool, postgres_wait
from rayjobs.store.postgres import translated
from rayjobs.store.postgres_address import parsed, with_schema
from rayjobs.store.schema import VERSION
from rayjobs.store.sql import SqlStore
from rayjobs.store.tables import postgres_schema
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.shared import create_in
from tests.contract.store_contract import submit
from tests.storage.postgres import Postgres
from tests.support import canceled_jobs as old_cancels
from tests.support import trials_without_cause as old_trials

ASSETS = Path(__file__).parents[1] / "assets" / "stores"

pytestmark = [pytest.mark.storage, pytest.mark.xdist_group("postgres")]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def store(server: Postgres) -> Iterator[SqlStore]:
    made = SqlStore(server.schema(), busy_timeout_s=20)
    yield made
    made.close()


def end_connections(server: Postgres) -> int:
    """End all connections of rayjobs, as a restart or a cut network does."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'rayjobs'"
        ).fetchall()
    return len(ended)


# --- addresses -----------------------------------------------------------------------------------


def test_the_schema_in_the_package_is_the_one_of_the_tables() -> None:
    file = Path(in_postgres.__file__).with_name("schema_postgres.sql")
    assert file.read_text(encoding="utf-8") == postgres_schema()


def test_an_address_names_its_schema() -> None:
    url, schema, shown = parsed("postgresql://ada@db/jobs?schema=team&sslmode=require")
    assert (url, schema) == ("postgresql://ada@db/jobs?sslmode=require", "team")
    assert shown == "postgresql://ada@db/jobs?schema=team"
    assert with_schema("postgresql://ada@db/jobs", "w1") == "postgresql://ada@db/jobs?schema=w1"
    assert with_schema("postgres://db/jobs?schema=a", "w1") == "postgresql://db/jobs?schema=a"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://ada:hunter2@db/jobs", "has a password"),
        ("postgresql://ada@db/jobs?password=hunter2", "has a password"),
        ("postgresql://db", "is invalid; write postgresql://USER@HOST"),
        ("postgresql://db/jobs?schema=a;drop", "is invalid: use lower case"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parsed(url)
    assert "hunter2" not in str(refused.value)


def test_statements_are_translated() -> None:
    statement = """SELECT '%:x', a::text, json_extract(b, '$.c') FROM t INDEXED BY i
        WHERE serial IN (SELECT value FROM json_each(:ids)) AND n GLOB 'a/*.pt' LIMIT :most"""
    text = translated(statement)
    assert "'%%:x'" in text and "a::text" in text and "store_extract(b, '$.c')" in text
    assert "CAST(value AS BIGINT) FROM store_each(%(ids)s)" in text
    assert r"n ~ '^a/.*\.pt$'" in text and "INDEXED" not in text
    assert "LIMIT NULLIF(%(most)s, -1)" in text


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"127.0.0.1:9/jobs.*cannot be reached.*PGPASSWORD"):
        SqlStore("postgresql://ada@127.0.0.1:9/jobs")


def test_foreign_schema_is_refused(server: Postgres) -> None:
    url = server.schema()
    schema = parsed(url)[1]
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema} CREATE TABLE books (id INT)".encode())
    with pytest.raises(StoreError, match="of other programs \\(books\\)"):
        SqlStore(url)


def test_a_store_of_another_version_is_refused(server: Postgres, store: SqlStore) -> None:
    with store._database.write() as connection:
        connection.execute("UPDATE store_state SET version = 999")
    with pytest.raises(StoreVersionError, match=r"schema version 999.*upgrade rayjobs here"):
        store.jobs()


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process be rayjobs of two versions later; return the folder of its migrations."""
    (tmp_path / f"{VERSION + 1:04d}.sql").write_text(
        "ALTER TABLE jobs ADD COLUMN cost BIGINT; UPDATE jobs SET cost = 7"
    )
    (tmp_path / f"{VERSION + 2:04d}.sql").write_text("CREATE TABLE budgets (name TEXT)")
    monkeypatch.setattr(in_postgres, "MIGRATIONS", tmp_path)
    monkeypatch.setattr(in_postgres, "VERSION", VERSION + 2)
    return tmp_path


def test_an_older_store_is_upgraded_once(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    url = server.schema()
    with contextlib.closing(SqlStore(url)) as old:
        job = submit(old)
        request.getfixturevalue("later")
        threads = [threading.Thread(target=lambda: SqlStore(url).close()) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with contextlib.closing(SqlStore(url)) as new, new._database.read() as connection:
            assert connection.execute("SELECT cost FROM jobs").fetchall() == [(7,)]
            assert connection.execute("SELECT version FROM store_state").fetchall() == [
                (VERSION + 2,)
            ]
            assert new.job(job.id) == job
        monkeypatch.setattr(in_postgres, "VERSION", VERSION)
        with pytest.raises(StoreVersionError, match="upgrade rayjobs here"):
            old.jobs()


def columns_of(connection: psycopg.Connection[Any], schema: str) -> list[Any]:
    return connection.execute(
        "SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default, "
        "collation_name "
        "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
        (schema,),
    ).fetchall()


def indexes_of(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    found = connection.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = %s", (schema,)
    ).fetchall()
    return sorted(text.replace(f"{schema}.", "") for (text,) in found)


def test_first_postgres_version_is_upgraded_to_current_tables(server: Postgres) -> None:
    url, new_url = server.schema(), server.schema()
    schema, new_schema = parsed(url)[1], parsed(new_url)[1]
    text = (ASSETS / f"version-{in_postgres.FIRST}.sql").read_text(encoding="utf-8")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"SET search_path TO {schema}".encode())
        connection.execute(text.encode())
        with connection.cursor() as cursor:
            cursor.executemany(old_trials.statement("%s").encode(), old_trials.rows())
            cursor.executemany(old_cancels.JOB.format("%s").encode(), old_cancels.job_rows())
            cursor.executemany(old_cancels.EVENT.format("%s").encode(), old_cancels.event_rows())
        connection.execute(
            "INSERT INTO pipeline_schedules (id, name, description, experiment, parameters, "
            "is_active, note, created_by, created_at) VALUES ('a', 'a', '', 'x', '{}', 1, "
            "'tries again: no room', '', '2026-11-01T09:00:00.000000Z')"
        )
        with contextlib.closing(SqlStore(url)) as store:
            trials = store.trials(old_trials.SWEEP)
            assert store.schedule("a").failed_start == "no room"
            cancellations = [
                store.job(old_cancels.id_of(number)).cancellation
                for number in range(len(old_cancels.JOBS))
            ]
        SqlStore(new_url).close()
        assert columns_of(connection, schema) == columns_of(connection, new_schema)
        assert indexes_of(connection, schema) == indexes_of(connection, new_schema)
    found = [(trial.state, trial.reason, trial.cause) for trial in trials]
    assert found == list(old_trials.TRIALS)
    assert [trial.detail for trial in trials] == list(old_trials.DETAILS)
    assert cancellations == [cancellation for _, _, cancellation in old_cancels.JOBS]


def test_an_upgrade_that_fails_changes_nothing(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    url = server.schema()
    with contextlib.closing(SqlStore(url)) as old:
        job = submit(old)
        later: Path = request.getfixturevalue("later")
        (later / f"{VERSION + 2:04d}.sql").write_text("CREATE TABLE jobs (name TEXT)")
        with pytest.raises(StoreError, match="already exists"):
            SqlStore(url)
        monkeypatch.setattr(in_postgres, "VERSION", VERSION)
        assert old.job(job.id) == job


def test_a_version_without_steps_is_refused(
    server: Postgres, request: pytest.FixtureRequest
) -> None:
    url = server.schema()
    SqlStore(url).close()
    later: Path = request.getfixturevalue("later")
    (later / f"{VERSION + 1:04d}.sql").unlink()
    refused = pytest.raises(StoreVersionError, match="there is no upgrade from that version")
    with contextlib.closing(SqlStore(url)) as store, refused:
        store.jobs()


# --- workspaces ----------------------------------------------------------------------------------


def test_workspace_has_its_own_schema(server: Postgres, tmp_path: Path) -> None:
    with create_in(tmp_path / "a", server.url) as first, create_in(tmp_path / "b", server.url):
        job = submit(first.store)
    with open_workspace(tmp_path / "a") as again:
        assert [one.id for one in again.store.jobs()] == [job.id]
    with open_workspace(tmp_path / "b") as other:
        assert not other.store.jobs()
    assert not (tmp_path / "a" / "store.db").exists()


def test_two_workspaces_never_share_a_store(server: Postgres, tmp_path: Path) -> None:
    url = server.schema()
    create_in(tmp_path / "a", url).store.close()
    with pytest.raises(UsageError, match="belongs to another workspace"):
        create_in(tmp_path / "b", url)
    assert not (tmp_path / "b").exists()
    with pytest.raises(UsageError, match=r"there is already a workspace in .*/a"):
        create_in(tmp_path / "a", url)


def test_a_copy_of_the_folder_is_refused(server: Postgres, tmp_path: Path) -> None:
    import shutil

    create_in(tmp_path / "a", server.url).store.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreError, match=r"is a copy of the workspace .*/a, whose store"):
        open_workspace(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "b")
    with open_workspace(tmp_path / "gone") as moved:  # a moved workspace is not a copy
        assert not moved.store.jobs()


# --- connections ---------------------------------------------------------------------------------


def test_an_idle_connection_that_was_cut_is_replaced(server: Postgres, store: SqlStore) -> None:
    job = submit(store)
    assert end_connections(server) >= 1
    assert store.job(job.id).id == job.id
    assert end_connections(server) >= 1
    assert submit(store).id != job.id
    assert end_connections(server) >= 1
    store.change()


def held(store: SqlStore, number: int) -> contextlib.ExitStack:
    """Return transactions that stay open until the result is closed."""
    stack = contextlib.ExitStack()
    for _ in range(number):
        stack.enter_context(store._database.read())
    return stack


def test_a_process_has_no_more_connections_than_its_bound(
    server: Postgres, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "MOST_OPEN", 3)
    most: list[int] = []
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rayjobs'"

    def use() -> None:
        for _ in range(5):
            with store._database.read() as connection:
                most.append(connection.execute(count).fetchone()[0])
                connection.execute("SELECT pg_sleep(0.01)")
            store.set_meta("key", "value")

    threads = [threading.Thread(target=use) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 60  # each was served in turn
    assert max(most) == 3


def test_thread_without_a_free_connection_raises_an_error(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "MOST_OPEN", 2)
    store = SqlStore(server.schema(), busy_timeout_s=0.2)
    try:
        with held(store, 2):
            for call in (store.jobs, lambda: store.set_meta("key", "value")):
                with pytest.raises(StoreBusyError, match="all 2 connections of this process"):
                    call()
        assert store.jobs() == [] and store.meta("key") is None
    finally:
        store.close()


def test_connections_that_are_lost_free_their_place(
    server: Postgres, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "MOST_OPEN", 2)
    for _ in range(3):
        with pytest.raises(StoreError), held(store, 2):
            assert end_connections(server) >= 2
        assert store.jobs() == []
    server.kill()
    for _ in range(3):
        with pytest.raises(StoreError, match="cannot be reached"):
            store.jobs()
    server.start()
    with held(store, 2):
        pass


def test_acknowledged_writes_survive_a_killed_server(server: Postgres, store: SqlStore) -> None:
    jobs = [submit(store).id for _ in range(20)]
    server.kill()
    with pytest.raises(StoreError, match="cannot be reached"):
        submit(store)
    server.start()
    assert sorted(job.id for job in store.jobs()) == sorted(jobs)
    assert store.job(submit(store).id)


@pytest.mark.parametrize("was_done", [True, False])
def test_a_commit_whose_answer_was_lost_is_looked_up(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, was_done: bool
) -> None:
    plain = psycopg.Connection.execute

    def cut(self: Any, query: Any, *given: Any, **more: Any) -> Any:
        if query == in_postgres.COUNTED and self.info.transaction_status:
            monkeypatch.undo()
            if was_done:
                plain(self, query, *given, **more)
            self.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return plain(self, query, *given, **more)

    before = store.job(submit(store).id)
    monkeypatch.setattr(psycopg.Connection, "execute", cut)
    if was_done:
        assert submit(store).id
    else:
        with pytest.raises(StoreError, match="cannot be reached"):
            submit(store)
    assert len(store.jobs()) == 1 + was_done
    assert store.job(before.id) == before


def test_a_writer_that_keeps_the_lock_is_named(server: Postgres) -> None:
    url = server.schema()
    first, second = SqlStore(url), SqlStore(url, busy_timeout_s=0.3)
    with first._database.write():
        with pytest.raises(StoreBusyError, match="pg_stat_activity"):
            submit(second)
        assert second.jobs() == []  # reading waits for no writer
    assert submit(second)
    first.close()
    second.close()


def test_a_server_without_free_connections_loses_nothing(server: Postgres, store: SqlStore) -> None:
    job = submit(store)
    held = []
    with pytest.raises(psycopg.OperationalError):
        while True:
            held.append(psycopg.connect(server.url))
    with pytest.raises(StoreError, match=r"too many clients|remaining connection slots"):
        SqlStore(server.schema())
    assert store.job(job.id)  # over its existing connection
    for connection in held:
        connection.close()


def test_hanging_server_is_abandoned(
    server: Postgres, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store)
    monkeypatch.setattr(postgres_wait, "ANSWER_S", 1.0)
    found: list[str] = []

    def call() -> None:
        for one in (store.job, lambda _: submit(store)):
            try:
                one(job.id)
            except StoreUnreachableError as error:
                found.append(str(error))

    calling = threading.Thread(target=call)  # a thread that never ends must not block the test
    server.send(signal.SIGSTOP)
    try:
        calling.start()
        calling.join(60)
        assert len(found) == 2 and all("cannot be reached" in one for one in found)
    finally:
        server.send(signal.SIGCONT)
        calling.join(60)
    monkeypatch.undo()
    assert [one.id for one in store.jobs()] == [job.id]


# --- many ----------------------------------------------------------------------------------------


def test_many_writers_lose_and_duplicate_nothing(server: Postgres) -> None:
    url = server.schema()
    stores = [SqlStore(url) for _ in range(8)]
    found: list[str] = []

    def write(store: SqlStore) -> None:
        found.extend(submit(store).id for _ in range(15))

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = stores[0].jobs()
    assert sorted(job.id for job in listed) == sorted(found)
    assert len(set(found)) == 120
    assert len({job.name for job in listed}) == 1
    for store in stores:
        store.close()


def test_change_is_visible_to_others_only_after_commit(server: Postgres) -> None:
    url = server.schema()
    first, second = SqlStore(url), SqlStore(url)
    before = second.change()
    assert second.change() == before
    with first._database.write() as connection:
        connection.execute("UPDATE meta SET value = value")
        assert second.change() == before
    assert second.change() != before
    first.close()
    second.close()


def test_a_fork_leaves_the_connections_to_its_parent(store: SqlStore) -> None:
    job = submit(store)
    child = os.fork()
    if child == 0:  # the child's own connection, and its end, do not affect the parent
        code = 1
        try:
            code = 0 if store.job(job.id).id == job.id else 2
            store.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    time.sleep(0.05)
    assert store.job(job.id) == job
    assert submit(store)
