"""The server is killed during an upload, a submit and a followed log: clients continue."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.jobs.records import Event
from rayjobs.remote import workspace as remote
from rayjobs.remote.events import follow
from rayjobs.results.logs import Logs
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import users
from rayjobs.workspace.blobs import Blob
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.logins import Login
from rayjobs.workspace.users import Role
from tests.unit.results.played import begin, end

LONGEST_S = 150.0


class Server:
    """`rayjobs serve` as a process, at one port."""

    def __init__(self, folder: Path, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._command = [sys.executable, "-m", "rayjobs", "serve", "--workspace", str(folder)]
        self._command += ["--port", str(self.port)]
        self._environment = {**os.environ, "RAYJOBS_HOME": str(home)}
        self._log = home.parent / "serve.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )
        wait_until(self._answers, "the server answers")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def wait_until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not fact():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws", create=True) as opened:
        yield opened


@pytest.fixture
def server(workspace: OpenWorkspace, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "home").mkdir()
    made = Server(workspace.path, tmp_path / "home")
    yield made
    made.kill()


@pytest.fixture
def client(
    workspace: OpenWorkspace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenWorkspace]:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "client"))
    _, text = users.add(workspace.store, "ada", Role.SUBMITTER, by="root")
    opened = remote.open_server(Connection(Login(f"http://127.0.0.1:{server.port}", text)))
    yield opened
    opened.close()


def new_job() -> NewJob:
    return NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")


def test_an_upload_continues_on_the_next_server(
    client: OpenWorkspace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "UPLOAD_BYTES", 16 << 10)
    data = os.urandom(4 << 20)
    (tmp_path / "data").write_bytes(data)
    done: list[Blob] = []
    thread = threading.Thread(target=lambda: done.append(client.blobs.add_file(tmp_path / "data")))
    thread.start()
    uploads = tmp_path / "ws" / "blobs" / "uploads"
    wait_until(lambda: sum(1 for _ in uploads.rglob("*-*")) > 10, "some pieces are stored")
    server.kill()
    server.start()
    thread.join(LONGEST_S)
    assert [one.digest for one in done] == [f"sha256:{hashlib.sha256(data).hexdigest()}"]


def test_interrupted_response_is_requested_again(
    client: OpenWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed between head and body of each kind of response."""
    whole = http.client.HTTPResponse.read
    reads: list[int] = []

    def cut(self: http.client.HTTPResponse, *amount: Any) -> bytes:
        reads.append(len(reads))
        if len(reads) % 2:
            raise http.client.IncompleteRead(b"", 6)
        return whole(self, *amount)

    data = os.urandom(100_000)
    (tmp_path / "data").write_bytes(data)
    monkeypatch.setattr(remote, "UPLOAD_BYTES", 64 << 10)
    with monkeypatch.context() as broken:
        broken.setattr(http.client.HTTPResponse, "read", cut)
        blob = client.blobs.add_file(tmp_path / "data")
        client.blobs.get_to(blob.key, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert len(reads) >= 10  # begin, piece and end of the upload, size and piece of the download


def test_submit_with_a_lost_response_creates_one_job(
    client: OpenWorkspace,
    workspace: OpenWorkspace,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Connection._exchange
    lost: list[str] = []

    def killed_after(self: Connection, connection: Any, verb: str, path: str, *more: Any) -> Any:
        answer = whole(self, connection, verb, path, *more)
        if path == "/v1/jobs" and not lost:
            lost.append(path)
            server.kill()
            server.start()
            raise http.client.RemoteDisconnected("the server was killed")
        return answer

    monkeypatch.setattr(Connection, "_exchange", killed_after)
    job, created = client.store.submit(new_job())
    assert lost and created
    assert [one.id for one in workspace.store.job_lines()] == [job.id]


def test_a_followed_log_continues_on_the_next_server(
    client: OpenWorkspace, workspace: OpenWorkspace, server: Server, tmp_path: Path
) -> None:
    job, _ = workspace.store.submit(new_job())
    root = tmp_path / "a1"
    log = begin(workspace, job, root).driver_log(0)
    log.write_bytes(b"one\n")
    seen: list[bytes] = []
    thread = threading.Thread(
        target=lambda: seen.extend(part.data for part in Logs(client, job.id).follow())
    )
    thread.start()
    wait_until(lambda: b"one\n" in b"".join(seen), "the first line")
    server.kill()
    with log.open("ab") as file:
        file.write(b"two\n")
    server.start()
    wait_until(lambda: b"two\n" in b"".join(seen), "the second line")
    with log.open("ab") as file:
        file.write(b"three\n")
    end(workspace, job, root)
    thread.join(LONGEST_S)
    assert b"".join(seen) == b"one\ntwo\nthree\n"


def test_followed_events_continue_on_the_next_server(
    client: OpenWorkspace, workspace: OpenWorkspace, server: Server, tmp_path: Path
) -> None:
    job, _ = workspace.store.submit(new_job())
    root = tmp_path / "a1"
    begin(workspace, job, root)
    seen: list[Event] = []
    thread = threading.Thread(target=lambda: seen.extend(follow(client, job.id)))
    thread.start()
    wait_until(lambda: len(seen) == len(workspace.store.events(job.id)), "the events so far")
    server.kill()
    workspace.store.add_event(job.id, "note", "during the outage")
    server.start()
    wait_until(lambda: "outage" in seen[-1].message, "the event during the outage")
    end(workspace, job, root)
    thread.join(LONGEST_S)
    assert seen == workspace.store.events(job.id)
