"""Schedules: when they are due, what they start, and that they start it once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api.workspace import Workspace
from rayjobs.core.errors import (
    NotFoundError,
    StoreError,
    StoreUnreachableError,
    UnreadableSpecError,
    UsageError,
)
from rayjobs.core.paths import TargetPaths, home
from rayjobs.datastore import DataPath
from rayjobs.datastore.errors import DataNotFound, DatastoreUnavailable
from rayjobs.jobs.records import ScheduleRecord
from rayjobs.jobs.serving import Claimant, Serving
from rayjobs.pipelines import (
    Pipeline,
    PipelineEndpoint,
    PipelineParameter,
    PythonScriptStep,
    Schedule,
    ScheduleRecurrence,
    TimeZone,
    scheduling,
)
from rayjobs.pipelines.recurrence import recurrence_of
from rayjobs.pipelines.spec import PipelineError
from rayjobs.submit import submitting
from rayjobs.target import elsewhere, stop_record, timekeeper


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


MADE = utc("2026-03-11T10:20:30")  # a Wednesday


def times(count: int, after: str = "2026-03-11T10:20:30", **fields: Any) -> list[str]:
    one, at, found = recurrence_of(fields), utc(after), []
    for _ in range(count):
        at = one.next_after(at, made_at=MADE)
        found.append(f"{at:%m-%d %H:%M:%S}")
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"frequency": "Minute", "interval": 15},
            ["03-11 10:35:30", "03-11 10:50:30", "03-11 11:05:30"],
        ),
        ({"frequency": "Hour", "interval": 5}, ["03-11 15:20:30", "03-11 20:20:30"]),
        ({"frequency": "Day"}, ["03-12 10:20:30", "03-13 10:20:30"]),
        (
            {"frequency": "Day", "interval": 2, "time_of_day": "09:00"},
            ["03-13 09:00:00", "03-15 09:00:00"],
        ),
        (
            {"frequency": "Day", "hours": [12, 3], "minutes": [30, 0]},
            ["03-11 12:00:00", "03-11 12:30:00", "03-12 03:00:00", "03-12 03:30:00"],
        ),
        (
            {"frequency": "Week", "week_days": ["Friday", "Monday"], "time_of_day": "15:30"},
            ["03-13 15:30:00", "03-16 15:30:00", "03-20 15:30:00"],
        ),
        ({"frequency": "Week", "interval": 2}, ["03-25 10:20:30", "04-08 10:20:30"]),
        (
            {"frequency": "Month", "start_at": "2026-01-31T08:00:00"},
            ["03-31 08:00:00", "04-30 08:00:00", "05-31 08:00:00"],
        ),
        (
            {"frequency": "Hour", "interval": 1, "start_at": "2026-04-01T00:00:00"},
            ["04-01 00:00:00", "04-01 01:00:00"],
        ),
        (  # summer time begins on 29 March
            {"frequency": "Day", "time_of_day": "09:00", "time_zone": "Europe/Berlin"},
            ["03-12 08:00:00"],
        ),
    ],
)
def test_recurring_times(fields: dict[str, Any], expected: list[str]) -> None:
    assert times(len(expected), **fields) == expected


@pytest.mark.parametrize(
    ("zone", "start", "expected"),
    [
        ("UTC", datetime(2026, 11, 27, 9, 30, tzinfo=timezone(timedelta(hours=9))), "00:30"),
        ("UTC", "2026-11-27T09:30:00+09:00", "00:30"),
        ("UTC", "2026-11-27T09:30:00Z", "09:30"),
        ("Tokyo Standard Time", datetime(2026, 11, 27, 9, 30, tzinfo=UTC), "09:30"),
        ("Tokyo Standard Time", datetime(2026, 11, 27, 9, 30), "00:30"),
        ("Europe/Berlin", datetime(2026, 7, 1, 9, 30, tzinfo=UTC), "10:30"),  # 11:30 in summer
    ],
)
def test_a_start_with_an_offset_is_that_moment(zone: str, start: Any, expected: str) -> None:
    one = ScheduleRecurrence("Day", 1, start_time=start, time_zone=zone)
    moment = datetime(2026, 12, 1, tzinfo=UTC)
    found = one.checked.next_after(moment, made_at=moment)
    assert f"{found.astimezone(UTC):%H:%M}" == expected
    again = recurrence_of(one.checked.model_dump(mode="json"))
    assert again == one.checked


def test_local_times_follow_summer_time() -> None:
    fields = {"frequency": "Day", "time_of_day": "09:00", "time_zone": "W. Europe Standard Time"}
    assert times(2, "2026-03-28T00:00:00", **fields) == ["03-28 08:00:00", "03-29 07:00:00"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"frequency": "Second"}, "frequency"),
        ({"interval": 0}, "interval"),
        ({"hours": [24]}, "hours has 24"),
        ({"frequency": "Hour", "hours": [1]}, "are for Day and Week"),
        ({"week_days": ["Monday"]}, "week_days are for Week"),
        ({"frequency": "Week", "week_days": ["Noday"]}, "week_days"),
        ({"time_of_day": "25:00"}, "write HH:MM"),
        ({"time_of_day": "03:00", "hours": [3]}, "give time_of_day, or hours"),
        ({"time_zone": "Middle Earth"}, "is not a time zone"),
        ({"start_time": "2026-01-01T00:00:00"}, "start_time needs a time_zone"),
        ({"start_time": "yesterday", "time_zone": "UTC"}, "'yesterday' is not a time; write it as"),
    ],
)
def test_a_wrong_recurrence_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ScheduleRecurrence(**{"frequency": "Day", "interval": 1, **changes})


def test_azure_time_zone_names() -> None:
    names = vars(TimeZone)  # made from a table, which type checkers do not see
    one = ScheduleRecurrence(
        "Day", 1, start_time="2026-01-01T00:00:00", time_zone=names["PacificStandardTime"]
    )
    assert str(one.checked.zone) == "America/Los_Angeles"
    assert names["UTC"] == "UTC"


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()


class World:
    """A workspace with a published pipeline of one step, and a clock that the test sets."""

    def __init__(self, ws: Workspace, source: Path) -> None:
        self.ws = ws
        self.clock = Clock()
        self.level = PipelineParameter("level", 1)
        self.data = PipelineParameter("data", DataPath(ws.get_default_datastore(), "in"))
        step = PythonScriptStep(
            "a.py",
            name="a",
            arguments=["--level", self.level],
            inputs=[],
            params={"DATA": "x"},
            source_directory=str(source),
            compute_target="local",
            allow_reuse=False,
        )
        self.pipeline = Pipeline(ws, [step], description="nightly").publish("nightly")

    def schedule(self, **options: Any) -> Schedule:
        values = {"recurrence": ScheduleRecurrence("Hour", 1), **options}
        made = Schedule.create(self.ws, "hourly", self.pipeline.id, "runs", **values)
        self.clock.at = self.row(made).created_at + timedelta(seconds=1)
        return made

    def due(self) -> list[scheduling.Done]:
        return scheduling.run_due(self.ws.opened, clock=self.clock, wake=False)

    def later(self, **units: float) -> list[scheduling.Done]:
        self.clock.at += timedelta(**units)
        return self.due()

    @property
    def runs(self) -> list[str]:
        return [one.job.id for one in self.ws.opened.store.pipelines()]

    def row(self, one: Schedule) -> ScheduleRecord:
        return self.ws.opened.store.schedule(one.id)


@pytest.fixture
def world(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(timekeeper, "ensure", lambda *, home: None)
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_text("print(1)\n")
    workspace = Workspace.create("ws", path=str(tmp_path / "ws"))
    yield World(workspace, source)
    workspace.close()


def test_a_schedule_runs_at_its_times_and_not_between(world: World) -> None:
    one = world.schedule(pipeline_parameters={"level": 7})
    assert world.later(minutes=59) == [] == world.runs
    (done,) = world.later(minutes=1)
    assert [done.run] == world.runs and done.note == ""
    assert world.later(minutes=30) == []
    assert len(world.later(minutes=30)) == 1 and len(world.runs) == 2
    store = world.ws.opened.store
    first = store.pipeline(world.runs[-1])
    assert (first.parameters["level"], first.published) == (7, world.pipeline.id)
    assert first.job.experiment == "runs"
    assert [run.id for run in one.get_pipeline_runs()] == world.runs
    last = one.get_last_pipeline_run()
    assert last is not None and last.id == world.runs[0] == world.row(one).last_run
    assert any("started by the schedule 'hourly'" in e.message for e in store.events(last.id))


def test_missed_runs_are_replaced_by_one_with_a_notice(world: World) -> None:
    one = world.schedule()
    due = world.row(one).next_at
    assert due is not None
    (done,) = world.later(hours=5, minutes=10)
    assert "It fell due 5 times meanwhile, and runs once" in done.note
    assert world.row(one).note == done.note == one.error_status
    assert world.row(one).next_at == due + timedelta(hours=5)
    assert world.due() == [] and len(world.runs) == 1
    events = world.ws.opened.store.events(world.runs[0])
    assert any("late: nothing ran schedules at" in event.message for event in events)


@pytest.mark.parametrize(
    ("minutes", "message"),
    [(0.5, "late: the workspace's store could not be reached from"), (5, "nothing ran schedules")],
)
def test_late_run_reports_a_store_outage(world: World, minutes: float, message: str) -> None:
    one = world.schedule()
    due = world.row(one).next_at
    assert due is not None
    world.clock.at = due + timedelta(minutes=20)
    (done,) = scheduling.run_due(
        world.ws.opened,
        clock=world.clock,
        wake=False,
        away_since=due + timedelta(minutes=minutes),
    )
    assert message in done.note


def test_timekeeper_reports_the_start_of_a_store_outage(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked, away = tmp_path / "w", tmp_path / "asked", tmp_path / "away"
    (tmp_path / "due_stub.py").write_text(
        f"import json, os, sys\nopen({str(asked)!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        f"away = os.path.exists({str(away)!r})\n"
        "print(json.dumps({'count': 0, 'away': True} if away else {'count': 1, 'next': None}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(timekeeper, "DUE", "due_stub")
    monkeypatch.setattr(timekeeper, "ensure", lambda *, home: None)
    timekeeper.register(folder, home=own_home)

    def arguments() -> list[str]:
        timekeeper.look(own_home)
        timekeeper.register(folder, home=own_home)  # a command that changes a schedule
        return list(json.loads(asked.read_text()))

    assert arguments() == [str(folder)]
    away.touch()
    began_s = time.time()
    assert arguments() == [str(folder)]
    again = arguments()
    assert arguments() == again and began_s <= float(again[1]) <= time.time()
    away.unlink()
    assert arguments() == again, "the first look that succeeds says it"
    assert arguments() == [str(folder)]


def test_notice_hides_the_store_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.schedule()
    with monkeypatch.context() as broken:

        def away(*_: Any, **_more: Any) -> Any:
            raise StoreUnreachableError("the store postgresql://ada@db/jobs cannot be reached: no")

        broken.setattr(scheduling, "run_published", away)
        world.later(hours=1)
    note = world.row(one).note
    assert "the workspace's store is unavailable" in note and "ada" not in note


def test_store_outage_is_reported_to_the_timekeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: Any, **_more: Any) -> Any:
        raise StoreUnreachableError("the store postgresql://ada@db/jobs cannot be reached: no")

    monkeypatch.setattr("rayjobs.workspace.folder.open_workspace", away)
    assert scheduling.main([str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["away"] is True


def test_timekeeper_killed_after_the_submit_finds_its_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.schedule()
    store = world.ws.opened.store
    due = world.row(one).next_at
    with monkeypatch.context() as broken:

        def dies(*_given: Any, **_more: Any) -> None:
            raise KeyboardInterrupt

        broken.setattr(type(store), "settle_schedule", dies)
        with pytest.raises(KeyboardInterrupt):
            world.later(hours=1)
    assert len(world.runs) == 1 and world.row(one).next_at == due
    (done,) = world.later(minutes=0.5)
    assert [done.run] == world.runs, "the same run"
    assert world.row(one).next_at != due


def test_a_target_that_its_user_stopped_is_not_started(world: World) -> None:
    one = world.schedule()
    paths = TargetPaths.of("local", under=home())
    paths.root.mkdir(parents=True)
    stop_record.note(paths)
    (done,) = world.later(hours=1)
    assert done.run is None and "was stopped by its user" in world.row(one).note
    assert world.runs == []
    paths.stop.unlink()  # as a start does
    (done,) = world.later(hours=1)
    assert [done.run] == world.runs and "It fell due 2 times" in done.note


def test_runs_do_not_accumulate_for_an_unavailable_remote_target(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimant = Claimant(owner="other", host="gpu1", home="/h", version="0.1.0")
    away = Serving(target="local", claimant=claimant, epoch="e", silent_s=3600.0)
    found = [away, away, replace(away, silent_s=1.0)]
    monkeypatch.setattr(elsewhere, "find_quietly", lambda *_names, **_more: found[0])
    one = world.schedule()
    for _ in range(2):
        (done,) = world.later(hours=1)
        found.pop(0)
        assert done.run is None and "belongs to gpu1" in world.row(one).note
    (done,) = world.later(hours=1)
    assert [done.run] == world.runs and "It fell due 3 times" in done.note


def test_disabled_schedule_runs_nothing_and_enabling_counts_from_now(world: World) -> None:
    one = world.schedule()
    one.disable()
    assert one.status == "Disabled" and world.row(one).next_at is None
    assert world.later(hours=10) == []
    assert Schedule.list(world.ws) == []
    assert [s.id for s in Schedule.list(world.ws, active_only=False)] == [one.id]
    one.enable()
    assert one.status == "Active"
    world.clock.at = datetime.now(UTC)
    assert world.later(seconds=1) == [] and len(world.later(hours=1)) == 1


def test_updated_schedule_takes_effect(world: World) -> None:
    one = world.schedule()
    one.update(
        name="daily",
        description="each day",
        recurrence=ScheduleRecurrence("Day", 1),
        pipeline_parameters={"level": 9},
        continue_on_step_failure=True,
    )
    assert world.later(hours=1) == []
    (done,) = world.later(hours=23, minutes=1)
    found = world.ws.opened.store.pipeline(str(done.run))
    assert (found.parameters["level"], found.continues) == (9, True)
    again = Schedule.get(world.ws, one.id)
    assert (again.name, again.description, again.schedule_type) == (
        "daily",
        "each day",
        "Recurrence",
    )
    assert again.recurrence is not None and again.recurrence.frequency == "Day"
    with pytest.raises(PipelineError, match="1 problem"):
        one.update(pipeline_parameters={"levle": 1})
    with pytest.raises(UsageError, match="use 'Active' or 'Disabled'"):
        one.update(status="Paused")


def upload(world: World, name: str, text: str) -> None:
    path = world.ws.opened.path.parent / name
    path.write_text(text)
    world.ws.get_default_datastore().upload_files([str(path)], target_path="in", overwrite=True)


def test_a_change_of_data_starts_a_run(world: World) -> None:
    upload(world, "a.txt", "1")
    one = world.schedule(
        recurrence=None,
        datastore=world.ws.get_default_datastore(),
        path_on_datastore="in",
        polling_interval=5,
    )
    assert one.schedule_type == "ChangeBasedTrigger"
    assert (one.datastore_name, one.path_on_datastore) == ("workspaceblobstore", "in")
    assert world.later(minutes=5) == [], "nothing has changed"
    upload(world, "b.txt", "2")
    assert world.later(minutes=3) == [], "the files are not checked before the interval is over"
    assert len(world.later(minutes=2)) == 1
    assert world.later(minutes=5) == []
    upload(world, "b.txt", "33")
    assert len(world.later(minutes=5)) == 1 and len(world.runs) == 2


def test_files_that_have_started_a_run_start_no_second_one_after_a_change(world: World) -> None:
    one = world.schedule(
        recurrence=None,
        datastore=world.ws.get_default_datastore(),
        path_on_datastore="in",
        polling_interval=5,
    )
    upload(world, "a.txt", "1")
    read_before_the_run = world.row(one)
    assert len(world.later(minutes=5)) == 1
    one.disable()
    one.enable()
    world.clock.at = datetime.now(UTC)
    assert world.later(minutes=5) == []
    world.ws.opened.store.put_schedule(
        replace(read_before_the_run, next_at=world.row(one).next_at, name="renamed")
    )
    assert world.later(minutes=5) == [] and world.row(one).name == "renamed"


def test_removed_schedule_is_not_created_again_by_its_object(world: World) -> None:
    one = world.schedule()
    world.ws.opened.store.drop_schedule(one.id)
    with pytest.raises(NotFoundError):
        one.disable()
    assert world.ws.opened.store.schedules(active=False) == []


def test_an_updated_folder_is_watched_like_a_created_one(world: World) -> None:
    upload(world, "a.txt", "1")
    one = world.schedule(recurrence=None, datastore=world.ws.get_default_datastore())
    one.update(path_on_datastore="/in/")
    assert one.path_on_datastore == "in"
    assert world.later(minutes=5) == [], "nothing has changed"
    upload(world, "b.txt", "2")
    assert len(world.later(minutes=5)) == 1


@pytest.mark.parametrize("has_another", [True, False])
def test_data_arriving_before_the_second_try_starts_a_run(
    world: World, monkeypatch: pytest.MonkeyPatch, *, has_another: bool
) -> None:
    one = world.schedule(
        recurrence=None,
        datastore=world.ws.get_default_datastore(),
        path_on_datastore="in",
        polling_interval=5,
    )
    upload(world, "a.txt", "1")
    with monkeypatch.context() as broken:

        def dies(*_given: Any, **_more: Any) -> None:
            raise KeyboardInterrupt

        broken.setattr(type(world.ws.opened.store), "settle_schedule", dies)
        with pytest.raises(KeyboardInterrupt):
            world.later(minutes=5)
    (first,) = world.runs
    if has_another:
        upload(world, "b.txt", "2")
    (done,) = world.later(minutes=0.5)
    assert done.run == first and world.runs == [first]
    assert world.row(one).last_run == first
    assert len(world.later(minutes=5)) == has_another, "only what the first run did not see"
    assert world.later(minutes=5) == [] and len(world.runs) == 1 + has_another


def test_missing_datastore_causes_a_notice_and_a_retry(world: World) -> None:
    one = world.schedule(
        recurrence=None, datastore=world.ws.get_default_datastore(), path_on_datastore="in"
    )
    row = world.row(one)
    assert row.watched is not None
    store = world.ws.opened.store
    store.put_schedule(replace(row, watched={**row.watched, "datastore": "gone"}))
    (done,) = world.later(minutes=5)
    assert "nothing was started" in done.note and "gone" in done.note
    store.put_schedule(replace(world.row(one), watched=row.watched))
    upload(world, "a.txt", "1")
    assert len(world.later(minutes=5)) == 1


def test_disabled_pipeline_causes_a_notice(world: World) -> None:
    one = world.schedule()
    world.pipeline.disable()
    (done,) = world.later(hours=1)
    assert done.run is None and "is disabled" in world.row(one).note


def test_an_endpoint_runs_its_default_version(world: World) -> None:
    endpoint = PipelineEndpoint.publish(world.ws, "entry", world.pipeline)
    one = Schedule.create_for_pipeline_endpoint(
        world.ws, "e", endpoint.id, "runs", recurrence=ScheduleRecurrence("Hour", 1)
    )
    world.clock.at = world.row(one).created_at
    (done,) = world.later(hours=1)
    assert world.ws.opened.store.pipeline(str(done.run)).published == world.pipeline.id
    found = Schedule.get_schedules_for_pipeline_endpoint_id(world.ws, endpoint.id)
    assert [s.id for s in found] == [one.id]


def test_wrong_schedules_are_refused(world: World) -> None:
    with pytest.raises(UsageError, match="give a recurrence, or a datastore"):
        world.schedule(recurrence=None)
    with pytest.raises(UsageError, match="need a datastore"):
        world.schedule(path_on_datastore="in")
    with pytest.raises(PipelineError):
        world.schedule(pipeline_parameters={"levle": 2})
    with pytest.raises(NotFoundError):
        Schedule.create(world.ws, "x", "nothing", "runs", recurrence=ScheduleRecurrence("Day", 1))
    with pytest.raises(NotFoundError, match="schedule ls"):
        Schedule.get(world.ws, "nothing")
    assert Schedule.list(world.ws, active_only=False) == []


def test_unwritable_store_leaves_the_schedule_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.schedule()
    due = world.row(one).next_at
    store = world.ws.opened.store
    with monkeypatch.context() as broken:

        def refuses(*_given: Any, **_more: Any) -> None:
            raise StoreError("the disk is full")

        broken.setattr(type(store), "put_pipeline", refuses)
        broken.setattr(type(store), "settle_schedule", refuses)
        (done,) = world.later(hours=1)
        assert done.run is None and "the disk is full" in done.note
    assert world.row(one).next_at == due
    assert len(world.due()) == 1


def test_permanent_failure_waits_for_the_next_due_time(world: World) -> None:
    passing = (StoreError("x"), DatastoreUnavailable("x"), OSError("x"))
    lasting = (UsageError("x"), NotFoundError("x"), UnreadableSpecError("x"), DataNotFound("x"))
    assert [scheduling.may_pass(one) for one in passing] == [True] * 3
    assert [scheduling.may_pass(one) for one in lasting] == [False] * 4


def test_the_target_of_a_run_that_has_not_ended_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(
        submitting, "wake_or_start", lambda _workspace, target: woken.append(target)
    )
    world.schedule()
    scheduling.wake_targets(world.ws.opened)
    (done,) = world.later(hours=1)
    assert woken == []
    scheduling.wake_targets(world.ws.opened)
    assert woken == ["local"]
    world.ws.opened.store.request_cancel(str(done.run))
    scheduling.wake_targets(world.ws.opened)
    assert woken == ["local"], "it has ended"


def test_last_run_whose_records_were_pruned_counts_as_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(
        submitting, "wake_or_start", lambda _workspace, target: woken.append(target)
    )
    pruned, unfinished = world.schedule(), world.schedule()
    world.later(hours=1)
    store = world.ws.opened.store
    runs = {world.row(one).last_run for one in (pruned, unfinished)}
    assert None not in runs and len(runs) == 2
    run = str(world.row(pruned).last_run)
    steps = [step.job for step in store.steps(run)]
    store.request_cancel(run)
    assert store.prune_records([run, *steps])
    with pytest.raises(NotFoundError):
        store.job(run)
    scheduling.wake_targets(world.ws.opened)
    assert woken == ["local"]
