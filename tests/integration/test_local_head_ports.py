"""Each port of the local head is on loopback, refuses callers without a token, or is documented."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from rayjobs.injob.processes import all_pids
from rayjobs.target import local_head
from rayjobs.target.token_check import check_token
from tests.support.jobs import until
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
# One harmless method of each service that Ray's processes offer.
GRPC_METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/HealthCheck",
)
LISTEN = "0A"
OF_RAY = {"gcs_server", "raylet", "dashboard"}


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket of the head."""

    address: str
    port: int
    pid: int
    process: str

    @property
    def is_loopback(self) -> bool:
        found = ipaddress.ip_address(self.address)
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).is_loopback


def _decode(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    raw = bytes.fromhex(host)
    # The kernel prints each 32-bit word in its own byte order.
    words = [struct.pack(">I", word) for (word,) in struct.iter_unpack("=I", raw)]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)), int(port, 16)


def _listeners(folder: Path) -> list[Listener]:
    inodes: dict[str, tuple[str, int]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                inodes[fields[9]] = _decode(fields[1])
    found = []
    for identity in local_head.processes_of(folder):
        try:
            command = Path(f"/proc/{identity.pid}/cmdline").read_bytes()
            links = [os.readlink(fd) for fd in Path(f"/proc/{identity.pid}/fd").iterdir()]
        except OSError:
            continue  # a pooled worker that ended meanwhile
        for link in links:
            match = re.fullmatch(r"socket:\[(\d+)\]", link)
            if match and match[1] in inodes:
                address, port = inodes[match[1]]
                found.append(Listener(address, port, identity.pid, _name(command)))
    return found


def _name(command: bytes) -> str:
    words = command.split(b"\0")
    for word in words[:3]:
        base = os.path.basename(word.decode(errors="replace"))
        if base in ("gcs_server", "raylet"):
            return base
        if base == "dashboard.py":
            return "dashboard"
    return words[0].decode(errors="replace")


def _documented(process: str) -> list[str]:
    """The documented open ports of a process: the last column of its rows."""
    rows = []
    for line in SECURITY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].strip("`").split("`")[0] == process:
            rows.append(f"{cells[2]}: {cells[3]}")
    return rows


def _grpc_answer(port: int) -> str:
    """ "refused", "open", or "not gRPC"."""
    known = False
    with grpc.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        for method in GRPC_METHODS:
            try:
                channel.unary_unary(method)(b"", timeout=60)
            except grpc.RpcError as exc:
                if exc.code() == grpc.StatusCode.UNAUTHENTICATED:
                    known = True
                elif exc.code() != grpc.StatusCode.UNIMPLEMENTED:
                    return "not gRPC"
            else:
                return f"open: {method}"
    return "refused" if known else "no known service"


def _http(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_every_port_is_on_loopback_or_refuses_or_is_documented(local_target: LocalTarget) -> None:
    folder = Path(local_target.head.temp_dir)
    until(
        lambda: {listener.process for listener in _listeners(folder)} >= OF_RAY,
        "all processes of Ray listen",
    )
    listeners = _listeners(folder)
    outside = [listener for listener in listeners if not listener.is_loopback]
    assert outside, "the search does not see the ports on which Ray listens on all interfaces"
    wrong = []
    for listener in outside:
        try:
            answer = _grpc_answer(listener.port)
        except OSError:
            answer = "gone"
        if answer == "refused" or not _is_alive(listener.pid):
            continue
        try:
            status, text = _http(listener.port, "/")
        except (http.client.HTTPException, OSError) as exc:
            status, text = 0, repr(exc)  # not HTTP either: an undocumented protocol
        open_metrics = status == 200 and text.startswith("# HELP ")
        rows = [row for row in _documented(listener.process) if row.startswith("all interfaces")]
        named = any("open: Prometheus text" in row for row in rows)
        if not (open_metrics and named):
            wrong.append((listener, answer, status, text[:200]))
        assert local_target.token not in text
    assert not wrong


def test_http_ports_on_loopback_require_the_token(local_target: LocalTarget) -> None:
    checked = 0
    folder = Path(local_target.head.temp_dir)
    until(lambda: sum(one.is_loopback for one in _listeners(folder)) >= 3, "three HTTP servers")
    for listener in _listeners(folder):
        if not listener.is_loopback:
            continue
        try:
            status, _ = _http(listener.port, "/api/jobs/", listener.address.removeprefix("::ffff:"))
        except (http.client.HTTPException, OSError):
            if listener in _listeners(folder):
                raise
            continue  # it ended meanwhile, or closed its port
        assert status == 401, listener
        checked += 1
    assert checked >= 3


def test_the_client_server_is_not_started(local_target: LocalTarget) -> None:
    for pid in all_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if local_target.head.gcs_address.encode() in command:
            assert b"ray.util.client.server" not in command


def test_gcs_refuses_without_token_and_takes_the_right_one(local_target: LocalTarget) -> None:
    check_token(local_target.head.gcs_address, local_target.token)


def test_token_file_and_folders_are_private(local_target: LocalTarget) -> None:
    paths = local_target.paths
    assert stat.S_IMODE(paths.token.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.head.stat().st_mode) == 0o600
    assert len(local_target.token) == 64
    above = Path(local_target.head.temp_dir).parent
    assert stat.S_IMODE(above.stat().st_mode) == 0o700


def test_token_is_in_no_command_environment_record_or_log(local_target: LocalTarget) -> None:
    token = local_target.token.encode()
    seen = 0
    for pid in all_pids():
        for part in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{pid}/{part}").read_bytes()
            except OSError:
                continue
            seen += str(local_target.paths.token).encode() in content
            assert token not in content, f"{part} of {pid}"
    assert seen, "no process has the token file's name; the search does not see the head"
    for root in (local_target.paths.root, Path(local_target.head.temp_dir)):
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and path != local_target.paths.token:
                    try:
                        content = path.read_bytes()
                    except FileNotFoundError:
                        continue  # Ray rotates and removes files meanwhile
                    assert token not in content, path


def test_start_reported_its_stages(local_target: LocalTarget) -> None:
    output = "\n".join(local_target.stages)
    assert "starting Ray" in output
    assert f"dashboard at {local_target.head.dashboard_url}" in output
    assert "starting the target" in output
