"""A schedule that fails temporarily when it is due is retried: no run is skipped."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.datastore.errors import DatastoreUnavailable
from rayjobs.injob.identity import is_alive
from rayjobs.pipelines import scheduling
from rayjobs.target import timekeeper
from tests.support.jobs import kill, until
from tests.unit.pipelines.test_schedules import World, upload, world

__all__ = ["world"]
ENSURE = timekeeper.ensure  # `world` replaces it


def test_locked_store_is_retried(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = world.schedule()
    due = world.row(one).next_at
    store: Any = world.ws.opened.store
    assert due is not None
    path = world.ws.opened.path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(store._database, "busy_timeout_s", 0.2)
        (done,) = world.later(hours=1)
        other.execute("ROLLBACK")
    assert done.run is None and "locked" in done.note
    assert world.row(one).next_at == due, "it is still due"
    (done,) = world.later(minutes=1)
    assert [done.run] == world.runs
    assert world.row(one).next_at == due + timedelta(hours=1)


def test_storage_outage_delays_a_data_schedule(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = world.schedule(
        recurrence=None,
        datastore=world.ws.get_default_datastore(),
        path_on_datastore="in",
        polling_interval=60,
    )
    upload(world, "a.txt", "1")
    with monkeypatch.context() as broken:

        def down(_record: object) -> Any:
            raise DatastoreUnavailable("http://storage does not answer.")

        broken.setattr(scheduling, "open_backend", down)
        (done,) = world.later(hours=1)
    assert done.note == world.row(one).note
    assert done.note.startswith("tries again: the start failed at ")
    assert done.note.endswith(" UTC: http://storage does not answer.")
    (done,) = world.later(minutes=1)
    assert [done.run] == world.runs


def test_late_run_reports_what_it_waited_for(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = world.schedule()
    with monkeypatch.context() as broken:

        def full(*_given: Any, **_more: Any) -> Any:
            raise OSError(28, "No space left on device")

        broken.setattr(scheduling, "run_published", full)
        world.later(hours=1)
    row = world.row(one)
    assert row.note == f"tries again: {row.failed_start}"
    world.ws.opened.store.put_schedule(replace(row, note="in other words"))
    (done,) = world.later(hours=1, minutes=2)
    assert done.note.startswith("late: the start failed at ")
    assert "No space left on device" in done.note
    assert "It fell due 2 times meanwhile, and runs once." in done.note
    assert world.row(one).failed_start == ""
    assert len(world.runs) == 1


def scan(home: Path) -> float | None:
    """Run one scan of the timekeeper in this process."""
    return timekeeper.look(home)


def test_workspace_on_an_unmounted_disk_keeps_its_schedules(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.schedule()
    home, path = tmp_path / "home", world.ws.opened.path
    timekeeper.register(path, home=home)
    world.ws.close()
    unmounted = path.with_name("away")
    path.rename(unmounted)
    assert scan(home) is not None
    assert [*timekeeper.registered(home).values()] == [path]
    (file,) = timekeeper.registered(home)
    assert "gone_since" in file.read_text()
    unmounted.rename(path)
    assert scan(home) is not None
    assert "gone_since" not in file.read_text(), "the next absence is counted from its own start"
    path.rename(unmounted)
    assert scan(home) is not None
    monkeypatch.setattr(timekeeper, "GONE_S", 0.0)
    assert scan(home) is None, "a workspace that is gone permanently is forgotten"
    assert timekeeper.registered(home) == {}
    unmounted.rename(path)


def test_schedule_created_during_a_timekeeper_scan_is_kept(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, path = tmp_path / "home", world.ws.opened.path
    timekeeper.register(path, home=home)
    ask = timekeeper._ask

    def slow(home: Path, file: Path, path: Path) -> timekeeper.DueReport | None:
        found = ask(home, file, path)  # there are no schedules yet
        timekeeper.register(path, home=home)
        return found

    monkeypatch.setattr(timekeeper, "_ask", slow)
    assert scan(home) is not None
    assert [*timekeeper.registered(home).values()] == [path]


def test_schedule_created_while_the_timekeeper_ends_is_kept(
    world: World,
    tmp_path: Path,
) -> None:
    """The second of two rounds runs only because the registrations are checked once more."""
    home = tmp_path / "home"
    program = f"""
import sys
from pathlib import Path
from rayjobs.target import timekeeper
turns = []
def keep(home):
    turns.append(1)
    if len(turns) == 1:
        (home / "schedules" / "late.json").write_text('{{"path": "/x"}}')
    else:
        (home / "schedules" / "late.json").unlink()
    return False
timekeeper.keep = keep
timekeeper.leave_caller = lambda _blocked: None
timekeeper.main([{str(home)!r}])
print(len(turns))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2"]


def test_killed_timekeeper_is_restarted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.schedule()
    monkeypatch.setattr(timekeeper, "ensure", ENSURE)
    home = tmp_path / "home"
    timekeeper.register(world.ws.opened.path, home=home)
    first = until(lambda: timekeeper.running(home), "the timekeeper runs")
    assert first is not None
    kill(first.pid)
    until(lambda: not is_alive(first), "it is dead")
    timekeeper.mend(home=home)
    second = until(lambda: timekeeper.running(home), "it runs again", deadline_s=20)
    assert second is not None
    assert second.pid != first.pid
    world.ws.opened.store.drop_schedule(made.id)
    timekeeper.register(world.ws.opened.path, home=home)
    until(lambda: not is_alive(second), "without schedules it ends")
