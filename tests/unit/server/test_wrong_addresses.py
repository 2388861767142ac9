"""Addresses with the wrong scheme, or a name that does not resolve: one sentence, at once."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner

from rayjobs.cli import login as login_command
from rayjobs.cli.main import main
from rayjobs.core.errors import UnreachableError, UsageError
from rayjobs.server.running import Listening, config_of
from rayjobs.workspace import connection
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.logins import Login
from tests.unit.server.conftest import Served

SOON_S = 10.0  # an address that may still begin to answer is tried for 20 s


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """Return the files of a certificate for this machine, and of its key."""
    names = str(tmp_path / "server.pem"), str(tmp_path / "server.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-out", names[0], "-keyout", names[1]]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return names


@pytest.fixture
def tls_port(
    tmp_path: Path, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """Return the port of a server with TLS."""
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "home"))
    with open_workspace(tmp_path / "w", create=True) as workspace:
        listening = Listening(port=0, certificate=certificate[0], key=certificate[1])
        server = uvicorn.Server(
            config_of(workspace, listening, is_silent=True, log_level="critical")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
        server.should_exit = True
        thread.join()


def problem(address: str) -> str:
    """Return how a first request to an address fails."""
    began_s = time.monotonic()
    with (
        closing(Connection(Login(address, "rj_x"))) as client,
        pytest.raises(UnreachableError) as failed,
    ):
        client.json("GET", "/v1/user")
    assert time.monotonic() - began_s < SOON_S
    return str(failed.value)


def test_http_at_a_port_with_tls_names_https(tls_port: int) -> None:
    message = problem(f"http://127.0.0.1:{tls_port}")
    assert f"127.0.0.1:{tls_port} speaks HTTPS: use https://127.0.0.1:{tls_port}" in message


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file or directory"), ("rj_x", "it has no PEM certificates")],
)
@pytest.mark.parametrize("is_login", [False, True])
def test_certificates_that_cannot_be_used_are_named_at_once(
    tls_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    why: str,
    is_login: bool,
) -> None:
    named = tmp_path / "authority.pem"
    if content is not None:
        named.write_text(content)
    if not is_login:
        monkeypatch.setenv("RAYJOBS_CA_FILE", str(named))
    login = Login(f"https://127.0.0.1:{tls_port}", "rj_x", str(named) if is_login else "")
    began_s = time.monotonic()
    with closing(Connection(login)) as client, pytest.raises(UsageError) as failed:
        client.json("GET", "/v1/user")
    assert time.monotonic() - began_s < SOON_S
    assert f"the certificates in {named} cannot be used: {why}" in str(failed.value)


def test_a_login_keeps_the_authority_of_its_certificates(
    tls_port: int, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    login = Login(f"https://127.0.0.1:{tls_port}", "x", certificate[0])
    refused = pytest.raises(UsageError, match="the server does not know this token")
    with closing(Connection(login)) as client, refused:
        client.json("GET", "/v1/user")
    monkeypatch.setenv("RAYJOBS_CA_FILE", "/nowhere.pem")  # the variable takes precedence
    assert client.ca_file == "/nowhere.pem"


def test_a_refused_connection_is_named_without_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        said = problem(address)
    assert said == f"the server {address} cannot be reached: Connection refused"


def test_login_at_a_wrong_port_does_not_wait_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path))
    monkeypatch.delenv("RAYJOBS_TOKEN", raising=False)
    monkeypatch.setattr(login_command, "PATIENCE_S", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        began_s = time.monotonic()
        done = CliRunner().invoke(main, ["login", address], input="rj_x\n")
    assert time.monotonic() - began_s < SOON_S
    assert str(done.exception) == f"the server {address} cannot be reached: Connection refused"
    assert not list(tmp_path.rglob("login*"))  # nothing was stored


def test_https_at_a_plain_port_names_http(served: Served) -> None:
    message = problem(f"https://127.0.0.1:{served.port}")
    assert f"speaks plain HTTP, without TLS: use http://127.0.0.1:{served.port}" in message


def test_a_proxy_that_refuses_plain_http_itself_is_known(certificate: tuple[str, str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    def serve(plain: socket.socket) -> None:
        if plain.recv(1, socket.MSG_PEEK) == b"\x16":  # a TLS handshake
            with context.wrap_socket(plain, server_side=True) as secure:
                secure.recv(1)
            return
        plain.recv(65_536)
        plain.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")

    with listener(serve) as port:
        message = problem(f"http://127.0.0.1:{port}")
    assert f"use https://127.0.0.1:{port}" in message


def test_silent_server_is_reported_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.2)
    with listener(lambda plain: plain.close()) as port:
        for scheme in ("http", "https"):
            message = problem(f"{scheme}://127.0.0.1:{port}")
            assert "cannot be reached" in message and "use http" not in message


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Give a port at which `serve` gets each connection."""

    def accept() -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            with plain:
                try:
                    serve(plain)
                except OSError:
                    pass  # the client has left

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_unresolvable_name_is_reported_immediately() -> None:
    message = problem("https://no-such-host.invalid:8400")
    assert "the name 'no-such-host.invalid' cannot be resolved" in message


def test_the_other_server_of_a_login_is_used(served: Served) -> None:
    known = served.connection()._login
    for wrong in ("http://no-such-host.invalid:1", f"https://127.0.0.1:{served.port}"):
        login = Login(f"{wrong},{served.address}", known.token)
        with closing(Connection(login)) as client:
            assert client.json("GET", "/v1/user")["user"] == "ada"


def test_running_program_survives_a_name_resolution_failure(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.connection()
    client.json("GET", "/v1/user")
    client.close()
    connected, tries = connection.connected, []

    def fails_twice(*given: object, **more: object) -> object:
        tries.append(1)
        if len(tries) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return connected(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(connection, "connected", fails_twice)
    assert client.json("GET", "/v1/user")["user"] == "ada" and len(tries) == 3
