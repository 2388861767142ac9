"""A target that died is brought back by any command; one that a user stopped is not."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import TargetError
from rayjobs.datastore import credentials
from rayjobs.injob.identity import own_identity
from rayjobs.target import (
    background_start,
    keeper_state,
    local_head,
    reach,
    revive,
    starting,
    stop_record,
    stopping,
)
from rayjobs.target.condition import Condition, Standing
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.secrets import TargetSecrets
from rayjobs.target.stopping import TargetLocation


@pytest.fixture
def location(short_path: Path) -> Iterator[TargetLocation]:
    location = TargetLocation("local", short_path / "h")
    yield location
    stopping.remove_files(location)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets for which a process was started."""
    names: list[str] = []
    monkeypatch.setattr(revive, "in_background", lambda name, **_more: names.append(name))
    return names


@pytest.fixture
def workspace(tmp_path: Path, location: TargetLocation) -> Path:
    """A workspace with jobs for the target."""
    starting.register_workspace(location.paths, tmp_path)
    return tmp_path


def _look(location: TargetLocation, workspace: Path, *, answers: bool = False) -> Condition:
    return revive.look_after(
        location.name, home=location.home, workspace=workspace, answers=answers
    )


def _head(location: TargetLocation) -> None:
    """Record a head whose processes live."""
    own = own_identity()
    record = local_head.HeadRecord(
        **dict.fromkeys(("instance", "node_ip", "gcs_address", "dashboard_url", "temp_dir"), ""),
        **dict.fromkeys(("node_id", "token_path", "ray_version", "rayjobs_version"), ""),
        cpus=1,
        gpus=0,
        memory_bytes=1,
        processes={"gcs_server": own, "raylet": own},
    )
    local_head.save_record(location.paths, record)


def test_dead_target_is_restarted(
    location: TargetLocation, workspace: Path, begun: list[str]
) -> None:
    first = _look(location, workspace)
    assert first.standing is Standing.STARTING and first.has_begun
    assert begun == ["local"]
    second = _look(location, workspace)
    assert second.standing is Standing.STARTING and not second.has_begun
    assert begun == ["local"]  # that process is at work


def test_killed_keeper_is_replaced_although_the_target_responds(
    location: TargetLocation, workspace: Path, begun: list[str]
) -> None:
    _head(location)
    found = _look(location, workspace, answers=True)
    assert found.standing is Standing.RUNNING and found.has_begun
    assert begun == ["local"]


def test_a_target_that_a_user_stopped_stays_so(
    location: TargetLocation, workspace: Path, begun: list[str]
) -> None:
    with starting.start_lock(location.paths):
        stop_record.note(location.paths)
    condition = _look(location, workspace)
    assert condition.is_stopped
    assert "was stopped" in condition.reason
    assert begun == []
    with pytest.raises(TargetError, match="was stopped"):  # a process that began before the stop
        starting.ensure_target("local", home=location.home, revives=True)


def test_a_target_that_never_served_these_jobs_is_not_started(
    location: TargetLocation, tmp_path: Path, begun: list[str]
) -> None:
    assert _look(location, tmp_path).standing is Standing.ABSENT
    assert begun == []


def test_running_keeper_is_left_alone(
    location: TargetLocation, workspace: Path, begun: list[str]
) -> None:
    with location.paths.keeper_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert _look(location, workspace).standing is Standing.STARTING
        own = own_identity()
        keeper_state.Pause(
            failures=4,
            reason="Ray ended 4 times",
            next_at="14:05:10",
            pid=own.pid,
            start_time=own.start_time,
            boot_id=own.boot_id,
        ).write(location.paths)
        condition = _look(location, workspace)
    assert condition.standing is Standing.FAILING
    assert "Ray ended 4 times. The next try is at 14:05:10" in condition.reason
    assert begun == []


def test_failed_restart_is_retried_with_growing_pauses(
    location: TargetLocation, workspace: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(revive, "_now_s", lambda: now_s)
    for failures, pause_s in enumerate((10.0, 20.0, 40.0)):
        revive.failed(location, "no room", before=failures)
        now_s += pause_s - 1
        assert _look(location, workspace) == Condition(Standing.FAILING, "no room")
        assert len(begun) == failures
        now_s += 1
        assert _look(location, workspace).standing is Standing.FAILING
        assert len(begun) == failures + 1
    assert revive.pause_s(99) == 600.0
    # While another try is under way, the last reason is still shown: no success is known yet.
    assert revive.started(location) == 3
    assert _look(location, workspace) == Condition(Standing.FAILING, "no room")
    assert len(begun) == 3


def test_jobs_of_a_vanished_cluster_report_its_address_immediately(
    short_path: Path, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = TargetLocation("lab", short_path / "h")
    save_target(TargetRecord("lab", address="127.0.0.1:1", token_file="t"), home=lab.home)
    starting.register_workspace(lab.paths, tmp_path)
    condition = _look(lab, tmp_path)
    assert condition.standing is Standing.FAILING
    assert "can be reached at 127.0.0.1:1: Connection refused" in condition.reason
    assert begun == []

    def silent(_address: str, *, timeout_s: float) -> reach.Reach:
        assert timeout_s < 1, "a read of the store does not wait for a cluster"
        return reach.Reach("no answer in time", is_late=True)

    lab.paths.revival.unlink()
    monkeypatch.setattr(reach, "look", silent)
    assert _look(lab, tmp_path).standing is Standing.STARTING
    assert begun == ["lab"]  # the process in the background probes without that limit


def test_a_background_start_has_the_targets_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment has no password of a database, which it needs to reach the workspace."""
    TargetSecrets("local", home=tmp_path).take_over(["PGPASSWORD"], {"PGPASSWORD": "s3cret"})
    seen: list[dict[str, str]] = []
    monkeypatch.setattr(
        starting, "ensure_target", lambda *_, **__: seen.append(credentials.given())
    )
    try:
        assert background_start.main([str(tmp_path), "local", str(tmp_path / "w")]) == 0
    finally:
        credentials.give({})
    assert seen == [{"PGPASSWORD": "s3cret"}]
