"""Files of a target are read in today's and earlier versions; a damaged one counts as missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.paths import TargetPaths
from rayjobs.injob.identity import Identity, own_identity
from rayjobs.injob.messages import Message
from rayjobs.target import local_head, progress, revive, stop_record, targets
from rayjobs.target.answers import NodeStatus
from rayjobs.target.keeper_state import Pause, pause_of
from rayjobs.target.local_head import HeadRecord
from rayjobs.target.reports import Activity, CapacityReport
from rayjobs.target.revival_record import Revival
from rayjobs.target.stop_record import StopRecord
from rayjobs.target.stop_request import StopAnswer, StopRequest
from rayjobs.target.stopping import TargetLocation

OWN = {"pid": 7, "start_time": 9, "boot_id": "b"}
HEAD: dict[str, Any] = {
    "instance": "i", "node_ip": "127.1.2.3", "gcs_address": "127.1.2.3:7", "dashboard_url": "",
    "temp_dir": "/s/r", "node_id": "n", "token_path": "/h/token", "cpus": 4.0, "gpus": 0.0,
    "memory_bytes": 8, "ray_version": "2.40.0", "rayjobs_version": "0.1.0",
    "processes": {"raylet": OWN},
}  # fmt: skip
NODE: dict[str, Any] = {
    "node_id": "n1", "address": "10.0.0.1", "cpus": 4.0, "gpus": 1.0, "memory": 8.0,
    "free_cpus": 3.0, "free_gpus": 0.0, "free_memory": 7.0, "node_type": "",
}  # fmt: skip
FAILED: dict[str, Any] = {"failures": 2, "error": "no room", "failed_at_s": 5.5, "boot_id": "b"}
Read = Callable[[TargetPaths], Any]


@pytest.fixture
def paths(tmp_path: Path) -> TargetPaths:
    found = TargetPaths.of("lab", under=tmp_path)
    found.root.mkdir(parents=True)
    return found


# The name of the file, how it is read, what version 0.1.0 wrote into it, and what that says.
FILES: list[tuple[str, Read, dict[str, Any], Message]] = [
    ("stop.json", StopRequest.read, {"id": "r1", "force": True}, StopRequest("r1", force=True)),
    (
        "stopped.json",
        StopAnswer.read,
        {"id": "r1", "error": "no", "is_refused": True},
        StopAnswer("r1", "no", is_refused=True),
    ),
    (
        "activity.json",
        Activity.read,
        {"busy": True, "at": 3.5, "pid": 7},
        Activity(busy=True, at=3.5, pid=7),
    ),
    (
        "capacity.json",
        CapacityReport.read,
        {"nodes": [NODE]},
        CapacityReport((NodeStatus("n1", "10.0.0.1", 4.0, 1.0, 8.0, 3.0, 0.0, 7.0),)),
    ),
    (
        "revival.json",
        Revival.read,
        FAILED,
        Revival(failures=2, error="no room", failed_at_s=5.5, boot_id="b"),
    ),
    (
        "revival.json",
        Revival.read,
        {"failures": 0, **OWN},
        Revival(pid=7, start_time=9, boot_id="b"),
    ),
    (
        "pause.json",
        Pause.read,
        {"failures": 4, "reason": "Ray ended", "next_at": "14:05:10", **OWN},
        Pause(failures=4, reason="Ray ended", next_at="14:05:10", pid=7, start_time=9, boot_id="b"),
    ),
    (
        "head.json",
        local_head.load_record,
        HEAD,
        HeadRecord(**{**HEAD, "processes": {"raylet": Identity(7, 9, "b")}}),
    ),
    (
        "last-stop.json",
        stop_record.last,
        {"id": "s", "at": 3.5, "is_in_force": True, "is_unreached": False},
        StopRecord("s", 3.5, is_in_force=True),
    ),
]
EMPTY: dict[str, Message] = {
    "capacity.json": CapacityReport(),
    "revival.json": Revival(),
    "last-stop.json": StopRecord(),
}
of_each_file = pytest.mark.parametrize(
    ("name", "read", "written", "message"), FILES, ids=[f"{one[0]}-{one[3]!r:.20}" for one in FILES]
)


@of_each_file
def test_file_of_the_first_version_is_read(
    paths: TargetPaths, name: str, read: Read, written: dict[str, Any], message: Message
) -> None:
    (paths.root / name).write_text(json.dumps({**written, "of_a_later_version": 1}))
    assert read(paths) == message


def test_progress_of_the_first_version_is_read(paths: TargetPaths) -> None:
    file = paths.root / "progress"
    file.write_text('{"start": "s1", "kind": "stage", "text": "starting Ray"}\n7\n{}\n{"start"')
    assert progress.read(file) == [progress.Line("s1", "stage", "starting Ray")]
    progress.Progress(file, "s2").failed("no room", advice="free some")
    last = json.loads(file.read_text().splitlines()[-1].removeprefix('{"start"'))
    assert last == {"start": "s2", "kind": "failed", "text": "no room", "advice": "free some"}


@of_each_file
def test_file_keeps_its_keys(
    paths: TargetPaths, name: str, read: Read, written: dict[str, Any], message: Message
) -> None:
    if isinstance(message, HeadRecord):
        local_head.save_record(paths, message)
    elif isinstance(message, StopRecord):
        stop_record._write(paths, message)
    else:
        message.write(paths)  # type: ignore[attr-defined]
    assert json.loads((paths.root / name).read_text()) == written
    assert read(paths) == message


@of_each_file
@pytest.mark.parametrize("text", ["", '{"id": "r', "[]", "3"])
def test_damaged_file_counts_as_missing(
    paths: TargetPaths,
    name: str,
    read: Read,
    written: dict[str, Any],
    message: Message,
    text: str,
) -> None:
    (paths.root / name).write_text(text)
    assert read(paths) == EMPTY.get(name)
    wrong: dict[str, object] = {key: [[]] for key in written}
    (paths.root / name).write_text(json.dumps(wrong))
    assert read(paths) == EMPTY.get(name)
    (paths.root / name).unlink()
    assert read(paths) == EMPTY.get(name)


def test_entries_that_came_later_have_defaults(paths: TargetPaths) -> None:
    paths.stop.write_text('{"id": "s", "at": 1, "is_in_force": true}')
    assert stop_record.last(paths) == StopRecord("s", 1.0, is_in_force=True)
    paths.stop_answer.write_text('{"id": "r", "error": "no"}')
    assert StopAnswer.read(paths) == StopAnswer("r", "no")
    node = {key: value for key, value in NODE.items() if key != "node_type"}
    paths.capacity.write_text(json.dumps({"nodes": [node]}))
    assert CapacityReport.read(paths) == CapacityReport((NodeStatus.from_json(NODE),))


@pytest.mark.parametrize("text", ["{}", '{"nodes": [{"cpus": "1"}]}', "{"])
def test_capacity_is_unbounded_while_its_file_is_unreadable(
    paths: TargetPaths, tmp_path: Path, text: str
) -> None:
    paths.record.write_text('{"name": "lab", "address": "10.0.0.1:1", "token_file": "t"}')
    paths.capacity.write_text(json.dumps({"nodes": [NODE]}))
    assert len(targets.capacity_of("lab", home=tmp_path).nodes) == 1
    paths.capacity.write_text(text)
    assert targets.capacity_of("lab", home=tmp_path).nodes == ()


def test_process_of_a_start_is_known_from_its_record(paths: TargetPaths, tmp_path: Path) -> None:
    location = TargetLocation("lab", tmp_path)
    revive.failed(location, "no room", before=0)
    assert revive.started(location) == 1
    record = Revival.read(paths)
    assert (record.identity, record.error) == (own_identity(), "no room")
    revive.failed(location, "no room", before=1)
    assert Revival.read(paths).identity is None
    # Version 0.1.0 takes an empty entry for a value.
    assert None not in json.loads(paths.revival.read_text()).values()


def test_pause_of_a_dead_keeper_is_over(paths: TargetPaths) -> None:
    own = own_identity()
    pause = Pause(
        failures=1,
        reason="r",
        next_at="14:05:10",
        pid=own.pid,
        start_time=own.start_time,
        boot_id=own.boot_id,
    )
    pause.write(paths)
    assert pause_of(paths) == pause
    paths.pause.write_text(json.dumps({**pause.to_json(), "start_time": own.start_time + 1}))
    assert pause_of(paths) is None
