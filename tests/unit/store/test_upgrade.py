"""Stores of released versions are upgraded with all that is in them; others are refused."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from rayjobs.core.errors import StoreError, StoreVersionError
from rayjobs.jobs.records import INTERACTIVE, AllocationState
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.spec.model import JobSpec
from rayjobs.store import care, schema, tables
from rayjobs.store.migrations.upgrade import upgrade
from rayjobs.store.postgres import FIRST as FIRST_IN_POSTGRES
from rayjobs.store.postgres import MIGRATIONS
from rayjobs.store.requests import JobFilter, NewJob
from rayjobs.store.sql import SqlStore
from tests.support import canceled_jobs as old_cancels
from tests.support import trials_without_cause as old_trials
from tests.support.schema_steps import NEWEST_STORE, NEXT, with_next_step

ASSETS = Path(__file__).parents[2] / "assets" / "stores"
OLD_STORES = sorted(ASSETS.glob("version-*.db"), key=lambda path: int(path.stem[8:]))


def shape_of(path: Path) -> dict[str, object]:
    """Return all that the schema defines: columns, keys, defaults, indexes, kinds of tables."""
    with sqlite3.connect(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        found: dict[str, object] = {}
        for (table,) in names.fetchall():
            text = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (table,)
            ).fetchone()[0]
            indexes = {}
            for index in connection.execute(f"PRAGMA index_list({table})").fetchall():
                columns = connection.execute(f"PRAGMA index_info({index[1]})").fetchall()
                # Names of implied indexes depend on the order of constraints.
                name = index[1] if index[3] == "c" else str(columns)
                indexes[name] = (index[2:], columns)
            found[table] = (
                connection.execute(f"PRAGMA table_xinfo({table})").fetchall(),
                indexes,
                "AUTOINCREMENT" in text,
                "WITHOUT ROWID" in text,
            )
        found["mark"] = connection.execute("SELECT * FROM alembic_version").fetchall()
        found["version"] = connection.execute("PRAGMA user_version").fetchall()
        return found


def test_a_step_leads_to_the_next_version(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(NEWEST_STORE, path)
    for _ in range(2):  # the second call finds nothing to do
        upgrade(path, to=NEXT, versions=with_next_step(tmp_path / "versions"))
        shutil.rmtree(tmp_path / "versions")
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, length FROM jobs").fetchall()
    assert rows and all(length == len(name) for name, length in rows)
    shape = shape_of(path)
    assert (shape["mark"], shape["version"]) == ([(f"{NEXT:04d}",)], [(NEXT,)])


@pytest.mark.parametrize("version", range(1, schema.OLDEST))
def test_a_store_of_a_development_version_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store.db"
    SqlStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(StoreVersionError) as caught:
        SqlStore(path)
    message = str(caught.value)
    assert f"{path} has schema version {version}" in message and "development version" in message
    assert "\n" not in message
    assert "development version" in care.check(path).problems[0]
    assert shape_of(path)["version"] == [(version,)]


def test_schema_file_matches_the_tables() -> None:
    text = Path(schema.__file__).with_name("schema.sql").read_text(encoding="utf-8")
    assert text == tables.sqlite_schema(), "run python -m rayjobs.store.tables > schema.sql"


def test_the_tables_need_no_migration(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    SqlStore(tmp_path / "store.db").close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    finally:
        engine.dispose()


def test_every_released_version_has_a_store_here() -> None:
    versions = range(schema.OLDEST, schema.VERSION + 1)
    assert [path.stem for path in OLD_STORES] == [f"version-{n}" for n in versions]


@pytest.mark.parametrize("old", OLD_STORES, ids=lambda path: path.stem)
def test_old_store_opens_with_all_its_content(tmp_path: Path, old: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(old, path)
    store = SqlStore(path)
    try:
        jobs = {job.state: job for job in store.jobs(JobFilter(experiment="mnist"))}
        assert set(jobs) == set(JobState)
        failed = jobs[JobState.FAILED]
        assert failed.failure is not None
        assert failed.failure.exit_code == 3
        assert store.find("00000003").state is JobState.RUNNING
        retried = store.find("Tried twice")
        assert (retried.experiment, retried.attempt) == ("große Zahlen", 2)
        assert store.find("ffff").id == retried.id
        assert [a.outcome for a in store.attempts(retried.id)] == ["node lost", ""]
        assert store.attempts(retried.id)[1].hosts[0].pid == 42
        assert [p.step for p in store.metrics(retried.id)] == [0, 1, 2, 3, 4]
        assert [p.attempt for p in store.metrics(retried.id)] == [1, 1, 2, 2, 2]
        points = store.metrics(retried.id)
        assert store.metric_names() == sorted({point.name for point in points})
        newest = store.last_metrics(store.metric_names())[retried.serial]
        assert newest == {point.name: point.value for point in points}
        assert [file.size for file in store.files(retried.id)] == [99]
        assert store.allocations("local")[0].state is AllocationState.HELD
        assert store.target_epoch("local") == (1, "actor-1")
        assert store.meta("workspace") == "w-old"
        # It continues where it was: keys are known, serials are new.
        spec = jobs[JobState.QUEUED].spec
        again, is_new = store.submit(
            NewJob(
                spec=spec,
                experiment="x",
                snapshot="sha256:" + "ab" * 32,
                user="",
                idempotency_key="key-0",
            )
        )
        assert (again.id, is_new) == (jobs[JobState.QUEUED].id, False)
        fresh, _ = store.submit(NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada"))
        assert fresh.serial > retried.serial
        assert store.find(fresh.id.rpartition("_")[2]).id == fresh.id
        if int(old.stem.partition("-")[2]) >= 8:
            [(run, writer)] = store.run_writers()
            assert isinstance(writer, ProcessWriter) and writer.host == "elsewhere"
            assert (store.job(run).description, store.job(run).kind) == ("by hand", INTERACTIVE)
        if int(old.stem.partition("-")[2]) >= 13:
            causes = [trial.cause for trial in store.trials(old_trials.SWEEP)]
            assert causes == [cause for _, _, cause in old_trials.TRIALS]
            details = [trial.detail for trial in store.trials(old_trials.SWEEP)]
            assert details == list(old_trials.DETAILS)
        if int(old.stem.partition("-")[2]) >= 15:
            assert_cancellations(store)
    finally:
        store.close()
    SqlStore(path).close()
    SqlStore(tmp_path / "new.db").close()
    assert shape_of(path) == shape_of(tmp_path / "new.db")


def test_upgrade_fills_causes_of_trials_from_stored_reasons(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(ASSETS / "version-12.db", path)
    with sqlite3.connect(path) as connection:
        connection.executemany(old_trials.statement("?"), old_trials.rows())
    connection.close()
    store = SqlStore(path)
    found = [(trial.state, trial.reason, trial.cause) for trial in store.trials(old_trials.SWEEP)]
    store.close()
    assert found == list(old_trials.TRIALS)


def assert_cancellations(store: SqlStore) -> None:
    """Check what an upgrade found in the reasons of canceled jobs, which do not change."""
    for number, (reason, _, cancellation) in enumerate(old_cancels.JOBS):
        job = store.job(old_cancels.id_of(number))
        assert (job.reason, job.cancellation) == (reason, cancellation)
        assert cancellation is None or cancellation.sentence == reason


def test_upgrade_fills_cancellations_from_stored_reasons(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(ASSETS / "version-14.db", path)
    with sqlite3.connect(path) as connection:
        connection.executemany(old_cancels.JOB.format("?"), old_cancels.job_rows())
        connection.executemany(old_cancels.EVENT.format("?"), old_cancels.event_rows())
    connection.close()
    store = SqlStore(path)
    try:
        assert_cancellations(store)
        states = {line.id: line.cancellation for line in store.job_lines(JobFilter())}
        assert states[old_cancels.id_of(0)] == old_cancels.JOBS[0][2]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("note", "failed_start"),
    [
        ("tries again: the start failed at 09:00 UTC: no", "the start failed at 09:00 UTC: no"),
        ("nothing was started at 09:00 UTC: no", ""),
        ("", ""),
    ],
)
def test_upgrade_fills_failed_start_of_schedules_from_notes(
    tmp_path: Path, note: str, failed_start: str
) -> None:
    path = tmp_path / "store.db"
    shutil.copy(ASSETS / "version-12.db", path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE pipeline_schedules SET note = ?", (note,))
    connection.close()
    store = SqlStore(path)
    found = [(one.note, one.failed_start) for one in store.schedules(active=False)]
    store.close()
    assert found == [(note, failed_start)]


def test_a_newer_store_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqlStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(StoreVersionError) as caught:
        SqlStore(path)
    message = str(caught.value)
    assert str(path) in message
    assert f"version {schema.VERSION + 1}" in message
    assert "upgrade rayjobs" in message
    assert "\n" not in message
    assert caught.value.exit_code == 5


def test_an_open_store_is_refused_once_someone_upgraded_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqlStore(path)
    job, _ = store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="x", snapshot=None, user="")
    )
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    for call in (
        lambda: store.job(job.id),
        lambda: store.start(job.id, attempt=0, allocation="a"),
        lambda: store.submit(
            NewJob(spec=JobSpec(script="a.py"), experiment="x", snapshot=None, user="")
        ),
    ):
        with pytest.raises(StoreVersionError, match="upgrade rayjobs"):
            call()
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT state FROM jobs").fetchall() == [("Queued",)]


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    with pytest.raises(StoreError, match=r"not a store of rayjobs.*photos"):
        SqlStore(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


@pytest.mark.long
def test_everyday_use_imports_neither_sqlalchemy_nor_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from rayjobs.store.sql import SqlStore;"
        "from rayjobs.spec.model import JobSpec;"
        "from rayjobs.store.requests import NewJob;"
        "store = SqlStore(sys.argv[1]);"
        "spec = JobSpec(script='a.py');"
        "store.submit(NewJob(spec=spec, experiment='x', snapshot=None, user=''));"
        "print(sorted({'sqlalchemy', 'alembic', 'ray', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_a_listing_needs_no_pydantic(tmp_path: Path) -> None:
    program = (
        "import sys; from rayjobs.store.sql import SqlStore;"
        "store = SqlStore(sys.argv[1]); store.job_lines(); store.counts(); store.allocations('l');"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "False"


def test_postgresql_has_a_step_for_each_migration() -> None:
    numbers = range(FIRST_IN_POSTGRES + 1, schema.VERSION + 1)
    found = {path.name for path in MIGRATIONS.glob("*.sql")}
    assert found == {f"{number:04d}.sql" for number in numbers}
