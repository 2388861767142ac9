"""A server of a workspace in this process, and clients of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn

from rayjobs.datastore.backends import reach_through
from rayjobs.remote.datastores import Pool
from rayjobs.remote.workspace import open_server
from rayjobs.server.running import Listening, config_of
from rayjobs.workspace import server_choice, users
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.logins import Login
from rayjobs.workspace.users import Role


@dataclass
class Served:
    """A workspace and its server."""

    workspace: OpenWorkspace
    port: int
    opened: list[Connection | Pool | OpenWorkspace] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connection(self, user: str = "ada", role: Role = Role.SUBMITTER) -> Connection:
        _, text = users.add(self.workspace.store, user, role, by="root")
        self.opened.append(made := Connection(Login(self.address, text)))
        return made

    def client(self, user: str = "ada", role: Role = Role.SUBMITTER) -> OpenWorkspace:
        self.opened.append(made := open_server(self.connection(user, role)))
        return made


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Served]]:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "home"))
    ended: list[tuple[uvicorn.Server, threading.Thread, Served]] = []

    def start() -> Served:
        workspace = open_workspace(tmp_path / "workspace", create=True)
        server = uvicorn.Server(
            config_of(workspace, Listening(port=0), is_silent=True, log_level="warning")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        made = Served(workspace, server.servers[0].sockets[0].getsockname()[1])
        ended.append((server, thread, made))
        return made

    monkeypatch.setattr(server_choice, "_is_allowed", None)
    monkeypatch.setattr(server_choice, "_active", None)
    yield start
    reach_through(None)
    for server, thread, made in ended:
        for one in made.opened:
            one.close()
        server.should_exit = True
        thread.join()
        made.workspace.close()


@pytest.fixture
def served(serve: Callable[[], Served]) -> Served:
    return serve()
