"""Clients that send slowly, or nothing: their connections end, and others are served."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from rayjobs.server import bodies, connections
from tests.unit.server.conftest import Served

HEAD = b"POST /v1/jobs:list HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"


def answer_to(served: Served, beginning: bytes, drop: bytes) -> bytes:
    """Send the beginning, then one drop after the other until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(beginning)
        is_over = threading.Event()

        def trickle() -> None:
            while drop and not is_over.wait(0.05):
                try:
                    connection.sendall(drop)
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        answer = b""
        try:
            while data := connection.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        is_over.set()
        thread.join()
    return answer


@pytest.mark.parametrize(
    ("beginning", "drop"), [(b"", b""), (b"GET /v1/user HTTP/1.1\r\nX: ", b"x")]
)
def test_a_head_that_does_not_arrive_ends_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, beginning: bytes, drop: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    assert b" 200 " not in answer_to(served, beginning, drop)
    assert served.connection().json("GET", "/v1/user")["user"] == "ada"


def test_a_body_that_does_not_arrive_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.5)
    monkeypatch.setattr(connections, "REST_S", 0.5)
    token = served.connection()._login.token.encode()
    head = HEAD % token + b"Content-Length: 100000\r\n\r\n"
    answer = answer_to(served, head, b" ")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_request_without_a_token_is_refused_before_its_body(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_S", 0.5)
    head = HEAD % b"wrong" + b"Content-Length: 100000\r\n\r\n"
    assert answer_to(served, head, b" ").startswith(b"HTTP/1.1 401 ")


def test_a_connection_between_two_requests_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    connection = served.connection()
    connection.json("GET", "/v1/user")
    open_now = list(connection._free)
    time.sleep(0.6)
    connection.json("GET", "/v1/user")
    assert connection._free == open_now
