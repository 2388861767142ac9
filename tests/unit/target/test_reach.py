"""A cluster's address is probed over a plain connection, whatever listens there, if anything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from rayjobs.core.errors import NotFoundError, TargetError
from rayjobs.target import dashboard, reach, targets
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.stopping import TargetLocation

SILENT = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as made:
        yield made


def _address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _closed_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return _address(made)


def test_a_grpc_server_is_reached() -> None:
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert reach.why_unreachable(f"127.0.0.1:{port}") == ""
    finally:
        server.stop(None)


def test_a_port_without_a_listener_is_refused() -> None:
    address = _closed_address()
    with pytest.raises(TargetError) as caught:
        reach.check_reachable("lab", address)
    assert address in caught.value.message
    assert "Connection refused" in caught.value.message
    assert caught.value.exit_code == 5


@pytest.mark.long
def test_a_process_that_is_stopped_is_not_reached_though_its_kernel_accepts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SILENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        try:
            reason = reach.why_unreachable(f"127.0.0.1:{port}", timeout_s=0.3)
        finally:
            process.kill()
    assert reason.startswith("no answer")


@pytest.mark.long
def test_a_listener_whose_backlog_is_full_is_not_reached(listener: socket.socket) -> None:
    """The kernel then drops new connections, as a firewall does."""
    waiting = [socket.socket() for _ in range(8)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    try:
        reason = reach.why_unreachable(_address(listener), timeout_s=0.3)
    finally:
        for one in waiting:
            one.close()
    assert reason.startswith("no answer")


def test_a_service_that_is_not_ray_is_named_as_such(listener: socket.socket) -> None:
    with futures.ThreadPoolExecutor(1) as serving:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        serving.submit(serve)
        assert "something other" in reach.why_unreachable(_address(listener))


@pytest.mark.parametrize("address", ["no.such.host.invalid:1", "127.0.0.1:notaport"])
def test_unusable_address_is_reported(address: str) -> None:
    assert reach.why_unreachable(address)


# --- commands that need the cluster ---------------------------------------------------------------


@pytest.fixture
def lab(short_path: Path) -> TargetLocation:
    """An attached target whose cluster is gone."""
    location = TargetLocation("lab", short_path / "h")
    record = TargetRecord("lab", address=_closed_address(), token_file="t", lease_s=90.0)
    save_target(record, home=location.home)
    return location


@pytest.mark.parametrize("command", [targets.start_target, targets.stop_target])
def test_commands_needing_the_cluster_name_its_address_and_start_nothing(
    lab: TargetLocation, monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    def start(*_arguments: object, **_more: object) -> None:
        raise AssertionError("no process is started for a cluster that does not answer")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(TargetError, match=r"no Ray cluster can be reached at 127\.0\.0\.1:"):
        command("lab", home=lab.home)  # type: ignore[operator]


def test_a_target_whose_cluster_is_gone_is_removed(lab: TargetLocation) -> None:
    assert "Connection refused" in targets.remove_target("lab", home=lab.home)
    with pytest.raises(NotFoundError):
        targets.target_status("lab", home=lab.home)
    assert not lab.paths.root.exists()


def test_target_state_shows_a_vanished_cluster(lab: TargetLocation) -> None:
    view = targets.target_status("lab", home=lab.home)
    assert view.state == "unreachable"
    assert "127.0.0.1:" in view.problem


def test_a_cluster_that_answers_is_ready_before_its_first_job(lab: TargetLocation) -> None:
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        save_target(TargetRecord("lab", address=f"127.0.0.1:{port}"), home=lab.home)
        assert targets.target_status("lab", home=lab.home).state == "ready"
    finally:
        server.stop(None)


def test_the_dashboard_of_a_cluster_that_is_gone_names_its_address(tmp_path: Path) -> None:
    address = _closed_address()
    save_target(TargetRecord("lab", address=address, token_file="/token"), home=tmp_path)
    with pytest.raises(reach.UnreachedError, match=f"{address}.*Connection refused"):
        dashboard.dashboard_of("lab", home=tmp_path)
