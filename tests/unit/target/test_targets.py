"""Targets without Ray: definitions, token checks, waking, versions, what may be stopped."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

import rayjobs
from rayjobs.cli.main import main
from rayjobs.cli.waking import wake_quietly
from rayjobs.core.errors import NotFoundError, TargetError, UnreachableError, UsageError
from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.target import (
    dashboard,
    keeper_state,
    local_head,
    starting,
    stop_record,
    stopping,
    targets,
    wake_client,
)
from rayjobs.target.answers import TargetAnswer
from rayjobs.target.condition import Standing
from rayjobs.target.machine import LocalSettings
from rayjobs.target.record import LEASE_S, START_TIMEOUT_S, TargetRecord, load_target
from rayjobs.target.requests import TargetRequest
from rayjobs.target.stopping import TargetLocation
from rayjobs.target.token_check import check_token
from rayjobs.target.versions import check_client, must_replace
from tests.unit.target.actor_double import answering

TOKEN = "f" * 64


@pytest.fixture
def home(short_path: Path) -> Path:
    return short_path / "h"


@pytest.fixture
def location(home: Path) -> Iterator[TargetLocation]:
    runtime_dir(home)
    yield TargetLocation("local", home)
    stopping.remove_files(TargetLocation("local", home))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


class _Gcs(grpc.GenericRpcHandler):
    """Answers any method like Ray's GCS, with or without asking for a token."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def service(self, details: Any) -> Any:
        def answer(_request: bytes, context: Any) -> bytes:
            given = dict(context.invocation_metadata()).get("authorization")
            if self._token is not None and given != f"Bearer {self._token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(params=[TOKEN, None], ids=["with token", "without token"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[str, str | None]]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([_Gcs(request.param)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", request.param
    server.stop(None).wait()


# --- definitions ---------------------------------------------------------------------------------


def test_only_a_cluster_that_requires_its_token_becomes_a_target(
    cluster: tuple[str, str | None], home: Path, token_file: Path
) -> None:
    address, wanted = cluster
    if wanted is None:
        with pytest.raises(TargetError, match="answers callers without a token"):
            targets.create_target("pool", address=address, token_file=token_file, home=home)
        with pytest.raises(NotFoundError):
            load_target("pool", home=home)
        return
    made = targets.create_target("pool", address=address, token_file=token_file, home=home)
    again = targets.create_target("pool", address=address, token_file=token_file, home=home)
    assert made == again == load_target("pool", home=home)
    assert made == TargetRecord(
        "pool", address=address, token_file=str(token_file), lease_s=LEASE_S
    )
    assert LEASE_S >= 90.0
    with pytest.raises(UsageError, match="too short"):
        targets.create_target(
            "brief", address=address, token_file=token_file, lease_s=89.0, home=home
        )
    record = TargetPaths.of("pool", under=home).record
    assert TOKEN not in record.read_text()
    assert [view.name for view in targets.list_targets(home=home)] == ["local", "pool"]
    token_file.write_text("0" * 64)
    with pytest.raises(UsageError, match="rejected this token"):
        targets.create_target("other", address=address, token_file=token_file, home=home)


def test_a_target_keeps_the_settings_that_are_not_given_again(
    cluster: tuple[str, str | None],
    home: Path,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, wanted = cluster
    monkeypatch.setenv("RAYJOBS_HOME", str(home))
    access = ["--token-file", str(token_file)]
    if wanted is None:
        access = ["--cluster-without-token-anyone-can-run-code"]

    def create(*settings: str) -> TargetRecord:
        arguments = ["target", "create", "pool", "--address", address, *access, *settings]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        return load_target("pool", home=home)

    file = tmp_path / "cluster.yaml"
    gpu = {"resources": {"CPU": 8, "GPU": 1}, "labels": {"ray.io/node-group": "gpu"}}
    file.write_text(json.dumps({"max_workers": 2, "available_node_types": {"gpu": gpu}}))
    first = create("--lease", "2m", "--start-timeout", "5m", "--cluster", str(file))
    assert (first.lease_s, first.start_timeout_s) == (120.0, 300.0)
    assert first.node_types is not None
    assert create() == first
    assert create("--lease", "3m") == replace(first, lease_s=180.0)
    assert create("--start-timeout", "20m").start_timeout_s == START_TIMEOUT_S


def test_a_cluster_without_a_token_needs_the_flag_and_is_shown_as_such(
    cluster: tuple[str, str | None],
    home: Path,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off switch: accept any cluster with `without_token`."""
    address, wanted = cluster
    with pytest.raises(UsageError, match="not both"):
        targets.create_target(
            "open", address=address, token_file=token_file, without_token=True, home=home
        )
    with pytest.raises(UsageError, match="--cluster-without-token-anyone-can-run-code"):
        targets.create_target("open", address=address, home=home)
    if wanted is not None:
        with pytest.raises(UsageError, match="requires a token"):
            targets.create_target("open", address=address, without_token=True, home=home)
        return
    monkeypatch.setenv("RAYJOBS_HOME", str(home))
    arguments = ["--address", address, "--cluster-without-token-anyone-can-run-code"]
    made = CliRunner().invoke(main, ["target", "create", "open", *arguments])
    assert made.exit_code == 0, made.output
    assert "anyone who can reach it can run code" in made.output
    assert load_target("open", home=home).without_token
    assert "NO TOKEN" in CliRunner().invoke(main, ["target", "ls"]).output
    shown = CliRunner().invoke(main, ["target", "show", "open"]).output
    assert "anyone who can reach it can run code" in shown
    found = local_head.head_environment(home, None)
    assert found["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in found


def test_no_cluster_at_the_address_is_unreachable() -> None:
    with socket.socket() as taken:  # bound without a listener: no response is possible
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match="no Ray cluster answers"):
            check_token(f"127.0.0.1:{taken.getsockname()[1]}", timeout_s=5.0)


@pytest.mark.parametrize(
    ("name", "address", "problem"),
    [
        ("Pool", "127.0.0.1:1", "cannot be called"),
        ("../x", "127.0.0.1:1", "cannot be called"),
        ("pool", None, "HOST:PORT"),
        ("local", "127.0.0.1:1", "HOST:PORT"),
        ("pool", "head-node", "not a cluster's address"),
        ("pool", "127.0.0.1:1", "needs a token file"),
    ],
)
def test_invalid_target_definition_is_refused(
    name: str, address: str | None, problem: str, home: Path
) -> None:
    with pytest.raises(UsageError, match=problem):
        targets.create_target(name, address=address, home=home)


def test_a_token_file_that_others_can_read_is_refused(home: Path, token_file: Path) -> None:
    token_file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        targets.create_target("pool", address="127.0.0.1:1", token_file=token_file, home=home)


def test_unknown_target_error_lists_the_known_ones(home: Path) -> None:
    with pytest.raises(NotFoundError, match="known targets: local") as caught:
        starting.ensure_target("gpu-pool", home=home)
    assert caught.value.exit_code == 3


def test_stopped_target_shows_the_machine_resources(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "6")
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "2")
    view = targets.target_status("local", home=home)
    assert (view.state, view.dashboard_url, view.busy) == ("stopped", "", None)
    capacity = targets.capacity_of(home=home)
    assert [(node.cpus, node.gpus) for node in capacity.nodes] == [(6.0, 2.0)]
    assert capacity.nodes[0].memory_bytes > 0
    assert capacity.shares_machine
    with pytest.raises(TargetError, match="rayjobs target start local"):
        dashboard.dashboard_of(home=home)
    assert not targets.stop_target(home=home)


def test_a_target_that_restarts_keeps_the_settings_of_its_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = TargetPaths.of("local", under=home)
    local_head.remember_settings(paths, {"RAYJOBS_LOCAL_GPUS": "4", "HOME": "/root"})
    monkeypatch.delenv("RAYJOBS_LOCAL_GPUS", raising=False)
    assert [node.gpus for node in targets.capacity_of(home=home).nodes] == [4.0]
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "2")  # this shell's variable takes precedence
    assert [node.gpus for node in targets.capacity_of(home=home).nodes] == [2.0]
    targets.stop_target(home=home)
    monkeypatch.delenv("RAYJOBS_LOCAL_GPUS")
    machine_gpus = LocalSettings.read().gpus
    assert [node.gpus for node in targets.capacity_of(home=home).nodes] == [float(machine_gpus)]


def test_setting_that_is_not_a_number_is_refused_before_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_LOCAL_GPUS", "two")
    with pytest.raises(UsageError, match="RAYJOBS_LOCAL_GPUS is 'two'"):
        starting.ensure_target("local", home=home)
    assert not TargetPaths.of("local", under=home).head.exists()


def test_a_runtime_folder_too_long_for_sockets_is_reported(
    home: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_RUNTIME_BASE", str(short_path / ("long" * 12)))
    with pytest.raises(TargetError, match="RAYJOBS_RUNTIME_BASE"):
        local_head.ray_folder(home)


# --- waking --------------------------------------------------------------------------------------


def test_a_wake_reaches_the_actor_and_registers_the_workspace(
    location: TargetLocation, tmp_path: Path
) -> None:
    assert not starting.wake("local", home=location.home, workspace=tmp_path)
    with answering(
        location.socket, lambda _: {"ok": True, "version": rayjobs.__version__}
    ) as requests:
        assert starting.wake("local", home=location.home, workspace=tmp_path)
    assert requests == [
        TargetRequest("wake", workspace=str(tmp_path), client=rayjobs.__version__).to_json()
    ]
    (registered,) = location.paths.workspaces.glob("*.json")
    assert json.loads(registered.read_text()) == {"path": str(tmp_path)}
    assert stat.S_IMODE(registered.stat().st_mode) == 0o600


def test_an_actor_of_an_older_version_does_not_count_as_awake(
    location: TargetLocation, tmp_path: Path
) -> None:
    with answering(location.socket, lambda _: {"ok": True, "version": "0.0.1"}):
        assert not starting.wake("local", home=location.home, workspace=tmp_path)


def test_a_change_for_an_actor_of_an_older_version_reaches_a_running_target(
    location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and polls the store; only a submit replaces it."""
    monkeypatch.setenv("RAYJOBS_HOME", str(location.home))
    with (
        keeper_state.keeper_lock(location.paths),
        answering(location.socket, lambda _: {"ok": True, "version": "0.0.1"}),
    ):
        assert wake_quietly("local", tmp_path).standing is Standing.RUNNING


@pytest.mark.long
def test_a_slow_actor_is_awake_and_is_waited_for(
    location: TargetLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "WAKE_ANSWER_S", 0.05)
    monkeypatch.setattr(starting, "PATIENT_ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(location.socket))
        silent.listen(64)
        assert starting.wake("local", home=location.home, workspace=tmp_path)
        with pytest.raises(TargetError, match="runs but does not answer"):
            starting.ensure_target("local", home=location.home, timeout_s=0.3)


def test_a_target_that_answers_is_not_started_again(
    location: TargetLocation, tmp_path: Path
) -> None:
    stages: list[str] = []
    with answering(
        location.socket, lambda _: {"ok": True, "version": rayjobs.__version__, "epoch": "e1"}
    ):
        status = starting.ensure_target(
            "local", home=location.home, workspace=tmp_path, on_stage=stages.append
        )
    assert (status.epoch, status.was_started, stages) == ("e1", False, [])


def test_a_socket_whose_owner_died_has_no_owner(location: TargetLocation) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(location.socket))
    assert location.socket.exists()
    assert wake_client.ask(location.socket, TargetRequest("ping"), TargetAnswer) is None
    assert not wake_client.is_listening(location.socket)


@pytest.mark.long
def test_a_silent_actor_is_slow_and_not_gone(location: TargetLocation) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(location.socket))
        silent.listen()
        with pytest.raises(TimeoutError, match="did not answer"):
            wake_client.ask(location.socket, TargetRequest("ping"), TargetAnswer, timeout_s=0.1)
        assert wake_client.is_listening(location.socket)


@pytest.mark.long
def test_waking_imports_nothing_large() -> None:
    code = (
        "import sys, rayjobs.target.starting, rayjobs.target.keeper\n"
        "large = {'ray', 'torch', 'grpc', 'pydantic', 'sqlalchemy', 'psutil', 'asyncio'}\n"
        "print(sorted(large & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_client_does_not_restart_a_target_stopped_by_a_user(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start in the background must not outlive `target stop`."""

    def stopped_at_once(_location: TargetLocation, _start: str, *, is_patient: bool) -> None:
        assert not is_patient
        stop_record.note(location.paths)

    monkeypatch.setattr(starting, "spawn", stopped_at_once)
    with pytest.raises(TargetError, match="was stopped while it was starting"):
        starting.ensure_target("local", home=location.home)


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "client", "replaced"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1", "0.1.0", False),
        ("0.1.0", "0.2.0", True),
        ("0.9.1", "0.10.0", True),
        ("0.2.0", "0.1.9", False),
        ("0.1.0+local", "0.1.0", False),
        ("", "0.1.0", True),
    ],
)
def test_an_older_actor_is_replaced(actor: str, client: str, replaced: bool) -> None:
    assert must_replace(actor, client) is replaced


def test_an_older_client_is_refused_in_one_sentence() -> None:
    check_client("0.1.5", "0.1.0")
    with pytest.raises(TargetError, match="Upgrade this installation"):
        check_client("0.2.0", "0.1.9")


# --- stopping ------------------------------------------------------------------------------------


def _busy(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "retire" and not request["force"]:
        return {"ok": False, "busy": True, "jobs": ["digits_1", "digits_2"]}
    return {"ok": True}


def test_a_target_with_jobs_is_not_stopped_without_force(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "SETTLE_S", 0.0)
    with answering(location.socket, _busy):
        with pytest.raises(TargetError, match=r"not finished: digits_1, digits_2.*--force"):
            stopping.retire(location, force=False)
        stopping.retire(location, force=True)


def test_a_job_that_has_just_ended_does_not_keep_a_target(location: TargetLocation) -> None:
    answers: Iterator[dict[str, Any]] = iter(
        [{"ok": False, "busy": True, "jobs": ["digits_1"]}, {"ok": True}]
    )
    with answering(location.socket, lambda _: next(answers)):
        stopping.retire(location, force=False)


def test_a_target_whose_actor_died_busy_is_not_stopped_without_force(
    location: TargetLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "SETTLE_S", 0.0)
    location.paths.root.mkdir(parents=True)
    location.paths.activity.write_text('{"busy": true, "at": 1.0}')
    with pytest.raises(TargetError, match="not finished"):
        stopping.retire(location, force=False)
    stopping.retire(location, force=True)


# --- the head's settings -------------------------------------------------------------------------


def test_the_users_shell_does_not_change_a_shared_head(home: Path) -> None:
    base = {
        "PATH": "/bin",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": "/somewhere",
        "RAYJOBS_WORKSPACE": "/w",
        "OMP_NUM_THREADS": "1",
    }
    found = local_head.head_environment(home, "/t/token", base=base)
    assert found["PATH"] == "/bin"
    assert found["RAYJOBS_HOME"] == str(home)
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN_PATH"]) == ("token", "/t/token")
    assert not {"RAY_ADDRESS", "PYTHONPATH", "RAYJOBS_WORKSPACE", "OMP_NUM_THREADS"} & set(found)


def test_two_homes_have_two_addresses_both_on_loopback(tmp_path: Path) -> None:
    first, second = (local_head.node_ip(tmp_path / name) for name in ("one", "two"))
    assert first != second
    assert first.startswith("127.") and first != "127.0.0.1"


def test_head_gets_only_kernel_chosen_ports_and_loopback(home: Path) -> None:
    settings = LocalSettings(
        cpus=2, gpus=0, memory_bytes=2**30, object_store_bytes=2**28, idle_s=60.0
    )
    arguments = local_head.head_arguments(settings, ip="127.1.2.3", folder=home / "r")
    ports = [text for text in arguments if "port=" in text]
    assert ports and all(text.endswith("port=0") for text in ports)
    assert "--dashboard-host=127.0.0.1" in arguments
    assert "--node-ip-address=127.1.2.3" in arguments
    assert not any("token" in text for text in arguments)
