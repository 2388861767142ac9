"""The doctor: its findings, each with a remedy."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.housekeeping import scratch
from rayjobs.housekeeping.doctor import (
    CHECKS,
    DoctorContext,
    Finding,
    Level,
    capabilities,
    examine,
    leftovers,
    network,
    resources,
    versions,
)
from rayjobs.injob import cgroups
from rayjobs.node import containment
from rayjobs.store.schema import VERSION
from rayjobs.target import local_head, targets
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.secrets import TargetSecrets
from rayjobs.workspace.folder import keep_records_in
from tests.support.attempts import write_plan
from tests.unit.cli.conftest import Queue, Terminal

HEAVY = ("ray", "torch", "pandas", "pyarrow", "rich", "sqlalchemy", "numpy", "alembic")


@pytest.fixture
def context(own_home: Path) -> DoctorContext:
    (own_home / "h").mkdir(mode=0o700)
    return DoctorContext(own_home / "h", None)


def one(findings: Any) -> Finding:
    [found] = list(findings)
    return found  # type: ignore[no-any-return]


@pytest.mark.long
def test_every_check_answers_and_problems_have_a_remedy(queue: Queue, own_home: Path) -> None:
    found = list(examine(own_home / "h", queue.workspace.path))
    assert len(found) > sum(map(len, CHECKS.values()))
    for finding in found:
        assert finding.text and "could not be checked" not in finding.text
        assert finding.level is Level.OK or finding.remedy, finding


def test_the_environments_that_were_built_have_a_row_of_their_own(context: DoctorContext) -> None:
    able, built = one(capabilities.packages(context)), one(leftovers.built_environments(context))
    assert (able.topic, built.topic) == ("environments", "built environments")
    assert "uv" in able.text and "uv" not in built.text


@pytest.mark.long
def test_failing_check_is_a_finding(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_context: DoctorContext) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(resources, "disks", broken)
    found = [finding for finding in examine(context.home, None) if finding.topic == "disks"]
    assert [finding.level for finding in found] == [Level.WARN]
    assert "no such luck" in found[0].text


def test_the_command_exits_with_1_when_something_fails(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(level: Level) -> Any:
        return lambda _home, _workspace: iter([Finding("disk", level, "full", "Free some.")])

    monkeypatch.setattr("rayjobs.housekeeping.doctor.examine", examined(Level.FAIL))
    done = terminal.type("doctor")
    assert done.code == 1
    assert done.out == "FAIL  disk: full\n      → Free some.\n"
    assert json.loads(terminal.type("doctor", "--json").out)[0]["level"] == "FAIL"
    monkeypatch.setattr("rayjobs.housekeeping.doctor.examine", examined(Level.WARN))
    assert terminal.type("doctor").code == 0


@pytest.mark.long
def test_the_command_imports_nothing_heavy(queue: Queue) -> None:
    code = (
        "import sys\n"
        "from rayjobs.cli.main import run\n"
        "run(['doctor', '--json'])\n"
        f"print('heavy:', *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr.splitlines()[-1] == "heavy:"
    topics = {finding["topic"] for finding in json.loads(done.stdout)}
    assert {"versions", "ending jobs", "memory limits", "ports", "clock", "cgroups"} <= topics


def test_checks_leave_no_cgroup(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{os.getpid()}-tried"  # unique, because other tests may run
    monkeypatch.setattr(secrets, "token_hex", lambda _length: name)
    list(capabilities.ending(context))
    list(capabilities.memory(context))
    assert not [path for mount in cgroups.mounts() for path in Path(mount.own).glob(f"*{name}*")]


# -- versions --------------------------------------------------------------------------------------


def test_a_missing_ray_fails(context: DoctorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda name: "" if name == "ray" else "1")
    assert one(versions.programs(context)).level is Level.FAIL


def test_newer_store_fails_and_older_store_causes_a_warning(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    context = DoctorContext(own_home / "h", queue.workspace.path)
    assert one(versions.store(context)).level is Level.OK
    for known, level in ((VERSION - 1, Level.FAIL), (VERSION + 1, Level.WARN)):
        monkeypatch.setattr(versions, "VERSION", known)
        assert one(versions.store(context)).level is level
        monkeypatch.undo()


def test_a_store_in_postgresql_is_named(queue: Queue, own_home: Path) -> None:
    keep_records_in(queue.workspace.path, "postgresql://ada@db.example.org/rayjobs")
    (queue.workspace.path / "store.db").rename(own_home / "moved.db")
    found = one(versions.store(DoctorContext(own_home / "h", queue.workspace.path)))
    assert found.level is Level.OK
    assert "PostgreSQL (postgresql://ada@db.example.org/rayjobs)" in found.text


@pytest.mark.parametrize(
    ("view", "level"),
    [
        (("stopped", ""), Level.OK),
        (("running", "0.0.1"), Level.WARN),
        (("running", "99.0"), Level.FAIL),
        (("lost", ""), Level.WARN),
    ],
)
def test_unsuitable_target_is_reported(
    view: tuple[str, str], level: Level, context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        targets,
        "target_status",
        lambda _name, home: SimpleNamespace(state=view[0], version=view[1]),
    )
    assert one(versions.target(context)).level is level


# -- capabilities ----------------------------------------------------------------------------------


def test_missing_cgroups_name_the_weaker_containment(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.injob.cgroups.mounts", list)
    monkeypatch.setattr(containment, "why_no_namespace", lambda: "")
    held, limit = one(capabilities.ending(context)), one(capabilities.memory(context))
    assert (held.level, held.data["kind"]) == (Level.OK, "namespace")
    assert "no cgroup v2 is mounted" in held.text
    assert (limit.level, limit.data["kind"]) == (Level.WARN, "watch")
    monkeypatch.setattr(containment, "why_no_namespace", lambda: "sysctl says no")
    held, other = one(capabilities.ending(context)), one(capabilities.namespaces(context))
    assert (held.level, held.data["kind"]) == (Level.WARN, "subreaper")
    assert "no cgroup v2 is mounted" in held.text and "sysctl says no" in held.text
    assert "sysctl says no" in other.text and not other.data["works"]


def test_a_cgroup_that_cannot_end_its_processes_is_explained(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def tried() -> Iterator[tuple[SimpleNamespace, None, None]]:
        yield SimpleNamespace(cgroup=tmp_path / "none", marker="m"), None, None

    monkeypatch.setattr(capabilities, "_tried", tried)
    monkeypatch.setattr(containment, "why_no_namespace", lambda: "")
    held = one(capabilities.ending(context))
    assert held.text.endswith("there is no usable cgroup: cgroup.kill cannot be written")


def test_how_inputs_are_protected_is_reported(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_INPUT_VIEWS", "0")
    found = one(capabilities.inputs(context))
    assert (found.level, found.data) == (Level.WARN, {"read_only": False, "overlay": False})
    assert "RAYJOBS_INPUT_VIEWS=0" in found.text


@pytest.mark.parametrize("check", [capabilities.inputs, capabilities.containers])
def test_a_scratch_folder_that_cannot_be_written_fails(
    check: Callable[[DoctorContext], Iterator[Finding]],
    context: DoctorContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    found = one(check(context))
    assert found.level is Level.FAIL and str(context.home / "node") in found.text
    assert "RAYJOBS_SCRATCH" in found.remedy


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_parent_does_not_stand_for_a_scratch_folder_that_cannot_be_used(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    node = context.home / "node"
    node.mkdir() if kind == "folder" else node.touch()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != node)
    assert one(capabilities.inputs(context)).level is Level.FAIL


def test_without_fuse_the_reason_is_named(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    found = one(capabilities.fuse(context))
    assert found.level is Level.WARN and "DATASTORE_NO_FUSE" in found.text


# -- network ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("address", "loopback"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_listening_ports_are_found_with_their_address(address: str, loopback: bool) -> None:
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert (address, port) in network.listening([os.getpid()])
        assert network.is_loopback(address) is loopback
    assert (address, port) not in network.listening([os.getpid()])


def test_a_head_without_a_token_fails(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (runtime_dir(context.home) / "r").mkdir()
    monkeypatch.setattr(
        local_head, "processes_of", lambda _folder: [SimpleNamespace(pid=os.getpid())]
    )
    assert one(network.ports(context)).level is Level.OK
    monkeypatch.setattr(network, "_is_open", lambda _pid: True)
    found = one(network.ports(context))
    assert found.level is Level.FAIL and "without a token" in found.text


def test_a_token_that_others_can_read_fails(context: DoctorContext) -> None:
    token = TargetPaths.of("local", under=context.home).token
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    token.chmod(0o644)
    [found] = [one for one in network.tokens(context) if one.level is Level.FAIL]
    assert f"chmod 600 {token}" in found.remedy
    assert "secret" not in found.text
    assert not any("none yet" in one.text for one in network.tokens(context))
    token.chmod(0o600)
    assert all(one.level is Level.OK for one in network.tokens(context))


def test_a_token_file_that_is_gone_fails(context: DoctorContext, tmp_path: Path) -> None:
    record = TargetRecord("lab", address="h:1", token_file=str(tmp_path / "gone"))
    save_target(record, home=context.home)
    found = [one for one in network.tokens(context) if "folder" not in one.text]
    assert [one.level for one in found] == [Level.FAIL]
    assert "is gone" in found[0].text


def test_a_secrets_file_that_others_can_read_fails(context: DoctorContext) -> None:
    secrets = TargetSecrets("local", home=context.home)
    secrets.set("PHOTOS_KEY", "a value")
    assert not [one for one in network.tokens(context) if one.level is Level.FAIL]
    secrets.path.chmod(0o640)
    [found] = [one for one in network.tokens(context) if one.level is Level.FAIL]
    assert f"chmod 600 {secrets.path}" in found.remedy
    assert "a value" not in found.text


def test_a_target_without_a_token_is_shown(context: DoctorContext) -> None:
    save_target(TargetRecord("open", address="h:1", without_token=True), home=context.home)
    [found] = [one for one in network.tokens(context) if one.level is Level.WARN]
    assert "anyone who can reach h:1 can run code" in found.text


# -- resources -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "level"), [(10 * 2**30, Level.OK), (2**30, Level.WARN), (2**20, Level.FAIL)]
)
def test_a_disk_that_fills_up_is_reported(
    free: int, level: Level, context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(
        f_bavail=free // 4096,
        f_frsize=4096,
        f_blocks=20 * 2**30 // 4096,
        f_files=10**6,
        f_favail=10**6,
    )
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    [found] = [one for one in resources.disks(context) if one.topic == "disk of home"]
    assert found.level is level


def test_a_disk_that_cannot_be_written_has_a_remedy_that_helps(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(
        f_bavail=2**30, f_frsize=4096, f_blocks=2**31, f_files=10**6, f_favail=10**6
    )
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    found = {one.topic: one.remedy for one in resources.disks(context)}
    assert "RAYJOBS_HOME" in found["disk of home"]
    assert found["disk of /tmp"] == "Make /tmp writable (mode 1777)."
    assert found["disk of /dev/shm"] == "Make /dev/shm writable (mode 1777)."


def test_records_from_the_future_are_reported(queue: Queue, own_home: Path) -> None:
    job = queue.submit()
    with queue.workspace.store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute(
            "UPDATE jobs SET changed_at = '2999-01-01T00:00:00.000000Z' WHERE id = ?", (job.id,)
        )
    found = one(resources.clock(DoctorContext(own_home / "h", queue.workspace.path)))
    assert found.level is Level.WARN and "2999" in found.text


def test_a_clock_that_was_moved_is_reported() -> None:
    now = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert resources.steadiness(*now).level in (Level.OK, Level.WARN)  # WARN if it is changed now
    assert resources.steadiness(now[0] - 3600, now[1]).level is Level.WARN


def test_ntp_state_is_read_from_the_kernel() -> None:
    assert resources.is_synchronised() in (True, False, None)


# -- leftovers -------------------------------------------------------------------------------------


def test_a_process_without_its_host_is_found(context: DoctorContext) -> None:
    folder = context.home / "node" / "attempts" / "job_1_ab" / "a1"
    folder.mkdir(parents=True)
    marker = f"rj-doctor-{os.getpid()}"
    write_plan(folder, marker=marker)
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, "RAYJOBS_MARKER": marker})
    try:
        while marker not in scratch.living_markers():  # until its exec, or the timeout of pytest
            assert child.poll() is None
        found = one(leftovers.processes(context))
        assert (found.level, found.data["markers"]) == (Level.WARN, {marker: [child.pid]})
    finally:
        child.kill()
        child.wait()
    assert one(leftovers.processes(context)).level is Level.OK


def test_attempt_folders_without_a_live_job_are_found(queue: Queue, own_home: Path) -> None:
    context = DoctorContext(own_home / "h", queue.workspace.path)
    assert one(leftovers.attempts(context)).level is Level.OK
    folder = context.home / "node" / "attempts" / "gone_1_ab" / "a1"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    found = one(leftovers.attempts(context))
    assert found.level is Level.WARN and "prune --scratch" in found.remedy
    assert folder.exists()


def test_stale_sockets_and_rays_folder_are_found(context: DoctorContext) -> None:
    folder = runtime_dir(context.home)
    (folder / "r").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "host-1.sock"))
        server.listen()
        assert one(leftovers.sockets(context)).level is Level.OK
    found = one(leftovers.sockets(context))
    assert found.data["sockets"] == [str(folder / "host-1.sock")]
    assert one(leftovers.ray_folder(context)).level is Level.WARN


def test_empty_cgroups_are_found(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rayjobs-rj-x").mkdir()
    monkeypatch.setattr(
        "rayjobs.injob.cgroups.mounts", lambda: [SimpleNamespace(own=str(tmp_path))]
    )
    found = one(leftovers.control_groups(context))
    assert found.level is Level.WARN and str(tmp_path / "rayjobs-rj-x") in found.remedy


def test_empty_cgroups_of_another_user_are_not_named(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rayjobs-rj-x").mkdir()
    monkeypatch.setattr(
        "rayjobs.injob.cgroups.mounts", lambda: [SimpleNamespace(own=str(tmp_path))]
    )
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    found = one(leftovers.control_groups(context))
    assert found.level is Level.OK and "rayjobs-rj-x" not in found.text


def test_which_environments_can_be_built_here(
    context: DoctorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert one(capabilities.packages(context)).data == {
        "pip": True,
        "conda": True,
        "conda_commands": [],
    }
    (tmp_path / "mamba").write_text("")
    (tmp_path / "mamba").chmod(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found = one(capabilities.packages(context))
    assert found.data["conda"] is False
    assert "conda by mamba (`conda_command`)" in found.text
