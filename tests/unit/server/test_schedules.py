"""Schedules of clients: the server's machine triggers them, and the user owns their runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.api.workspace import Workspace
from rayjobs.cli.main import main
from rayjobs.core.errors import NotFoundError, StoreUnreachableError, UsageError
from rayjobs.core.paths import home
from rayjobs.jobs.records import ScheduleRecord
from rayjobs.pipelines import Pipeline, PythonScriptStep, ScheduleRecurrence, schedule, scheduling
from rayjobs.server import timekeeping
from rayjobs.target import timekeeper
from rayjobs.workspace import server_choice
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role
from tests.support.jobs import until
from tests.unit.server.conftest import Served

HOURLY = ScheduleRecurrence("Hour", 1)


@pytest.fixture
def pipeline(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a published pipeline."""
    monkeypatch.setattr(timekeeper, "ensure", lambda *, home: None)
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_text("print(1)\n")
    with contextlib.closing(
        Workspace.create("w", path=str(served.workspace.path), exist_ok=True)
    ) as ws:
        step = PythonScriptStep("a.py", source_directory=str(source), compute_target="local")
        return Pipeline(ws, [step]).publish("nightly").id


@pytest.fixture
def create(served: Served, pipeline: str) -> Callable[[OpenWorkspace], ScheduleRecord]:
    def make(client: OpenWorkspace) -> ScheduleRecord:
        return schedule.create(
            client, "hourly", experiment="e", pipeline=pipeline, recurrence=HOURLY
        )

    return make


class At:
    """A clock that stands still."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()


def test_server_triggers_schedules_and_runs_belong_to_users(
    served: Served, create: Callable[[OpenWorkspace], ScheduleRecord]
) -> None:
    client = served.client("ada")
    made = create(client)
    assert made.created_by == "ada" and made.next_at is not None
    assert served.workspace.path in timekeeper.registered(home()).values()
    due = At(made.next_at + timedelta(seconds=1))
    (done,) = scheduling.run_due(served.workspace, clock=due, wake=False)
    assert done.run is not None
    assert {one.user for one in served.workspace.store.jobs()} == {"ada"}

    off = schedule.set_active(client, client.store.schedule("hourly"), active=False)
    assert off.next_at is None and off.last_run == done.run
    schedule.drop(client, off)
    with pytest.raises(NotFoundError):
        served.workspace.store.schedule(made.id)


def test_list_shows_the_owner_of_each_schedule(
    served: Served,
    create: Callable[[OpenWorkspace], ScheduleRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [create(served.client(user)) for user in ("ada", "eve")]
    monkeypatch.setenv(server_choice.ADDRESS, served.address)
    monkeypatch.setenv(server_choice.TOKEN, served.connection("bob")._login.token)
    for reaches in (["--workspace", str(served.workspace.path)], []):
        server_choice.allow(not reaches)
        command = ["pipeline", "schedule", "ls", *reaches]
        head, *rows = CliRunner().invoke(main, command).stdout.splitlines()
        assert "USER" in head
        assert {row.split()[0]: row.split()[2] for row in rows} == {
            one.id[:12]: one.created_by for one in made
        }
        found = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
        assert {one["id"]: one["created_by"] for one in found} == {
            one.id: one.created_by for one in made
        }


def test_only_the_owner_and_admins_change_a_schedule(
    served: Served, create: Callable[[OpenWorkspace], ScheduleRecord]
) -> None:
    made = create(served.client("ada"))
    eve, root = served.client("eve"), served.client("root", Role.ADMIN)
    for change in (
        lambda: schedule.set_active(eve, made, active=False),
        lambda: eve.store.put_schedule(replace(made, experiment="other")),
        lambda: schedule.drop(eve, made),
    ):
        with pytest.raises(UsageError, match="ada made it"):
            change()
    changed = schedule.put(root, made, description="by root")
    assert (changed.created_by, changed.description) == ("ada", "by root")


def test_client_input_is_checked(
    served: Served, create: Callable[[OpenWorkspace], ScheduleRecord]
) -> None:
    client = served.client("ada")
    made = create(client)
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    client.store.put_schedule(
        replace(made, created_by="root", created_at=long_ago, next_at=long_ago, last_run="x")
    )
    kept = served.workspace.store.schedule(made.id)
    assert (kept.created_by, kept.created_at, kept.last_run) == ("ada", made.created_at, None)
    assert kept.next_at is not None and kept.next_at > made.created_at

    watched = {"datastore": "workspaceblobstore", "path": "", "parameter": None}
    for wrong, text in (
        ({"id": "../x"}, "not the id of a schedule"),
        ({"name": " "}, "name of a schedule"),
        ({"pipeline": "nothing"}, "nothing"),
        ({"endpoint": "e"}, "one of them"),
        ({"recurrence": None}, "at set times or when files change"),
        ({"recurrence": {"frequency": "Never"}}, "frequency"),
        ({"recurrence": None, "watched": {**watched, "polling_interval": 1e-9}}, "minutes"),
        ({"recurrence": None, "watched": {**watched, "polling_interval": "5"}}, "minutes"),
    ):
        with pytest.raises((UsageError, NotFoundError), match=text):
            client.store.put_schedule(replace(made, **wrong))
    assert served.workspace.store.schedule(made.id) == kept


def test_restarted_server_triggers_schedules_again(
    served: Served,
    serve: Callable[[], Served],
    create: Callable[[OpenWorkspace], ScheduleRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(served.client("ada"))
    begun: list[Path] = []
    monkeypatch.setattr(timekeeper, "ensure", lambda *, home: begun.append(home))
    serve()
    until(lambda: begun == [home()], "the server starts the timekeeper")


def test_server_on_another_machine_takes_over_schedules(
    served: Served,
    create: Callable[[OpenWorkspace], ScheduleRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = create(served.client("ada"))
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "other-home"))
    timekeeping.look(served.workspace)
    assert [*timekeeper.registered(home()).values()] == [served.workspace.path]

    schedule.drop(served.client("ada"), made)
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "third-home"))
    timekeeping.look(served.workspace)
    assert timekeeper.registered(home()) == {}  # nothing to keep: no process


def test_unavailable_store_is_retried(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(_workspace: OpenWorkspace) -> None:
        looks.append(1)
        raise StoreUnreachableError("away")

    monkeypatch.setattr(timekeeping, "look", look)
    monkeypatch.setattr(timekeeping, "EVERY_S", 0.0)

    async def keep() -> None:
        task = asyncio.create_task(timekeeping.keep(served.workspace))
        while len(looks) < 2:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(keep())
