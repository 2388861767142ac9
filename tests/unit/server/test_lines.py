"""The lines of the server's log."""

from __future__ import annotations

import asyncio
import io
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayjobs.server.app import make_app
from rayjobs.server.connections import BoundedProtocol
from rayjobs.server.lines import Lines
from rayjobs.workspace import users
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served


def status_of(app: Any, verb: str, path: str, token: str = "", body: bytes = b"") -> int:
    """Return the status of an answer of the application."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    bare, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": verb,
        "path": bare.replace("%0A", "\n"),
        "raw_path": bare.encode(),
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {token}".encode())] if token else [],
        "client": ("10.0.0.7", 4711),
    }
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


def test_each_request_has_a_line_with_its_user_and_without_its_query(tmp_path: Path) -> None:
    workspace = open_workspace(tmp_path / "w", create=True)
    token = users.add(workspace.store, "ada", Role.SUBMITTER, by="root")[1]
    log = io.StringIO()
    app = make_app(workspace, lines=Lines(log))
    assert status_of(app, "GET", "/v1/user?secret=1", token) == 200
    assert status_of(app, "GET", "/v1/jobs/x%0Aforged", token) == 404
    assert status_of(app, "GET", "/v1/user") == 401
    assert status_of(app, "GET", "/nothing") == 404
    assert status_of(app, "DELETE", "/v1/user", token) == 405
    assert status_of(app, "GET", "/v1/audit", token) == 403
    for path in ("/healthz", "/v1/health"):  # no line
        assert status_of(app, "GET", path) == 200
    workspace.close()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z 10\.0\.0\.7"
    patterns = [
        rf"{time} ada GET /v1/user 200 \d+\.\dms",
        rf"{time} ada GET /v1/jobs/x%0Aforged 404 \d+\.\dms",
        rf"{time} - GET /v1/user 401 \d+\.\dms",
        rf"{time} - GET /nothing 404 0\.0ms",
        rf"{time} - DELETE /v1/user 405 0\.0ms",
        rf"{time} ada GET /v1/audit 403 \d+\.\dms",
    ]
    lines = log.getvalue().splitlines()
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_a_log_that_cannot_be_written_stops_no_request() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    Lines(Full()).add("text")
    closed = io.StringIO()
    closed.close()
    Lines(closed).add("text")


def test_a_body_does_not_wait_for_the_acknowledgement_of_its_head(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    plain = BoundedProtocol.connection_made

    def made(self: BoundedProtocol, transport: Any) -> None:
        plain(self, transport)
        taken = transport.get_extra_info("socket")
        found.append(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(BoundedProtocol, "connection_made", made)
    serve().client().store.counts()
    assert found and all(found)
