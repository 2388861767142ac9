"""A server with an unavailable store, hanging threads or large requests, and its clients."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import (
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
    UnreachableError,
    UsageError,
)
from rayjobs.jobs.records import Event
from rayjobs.remote.events import follow
from rayjobs.results.logs import Logs
from rayjobs.server import access, app, bodies
from rayjobs.server.lines import Lines
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.submit import submitting
from rayjobs.workspace import connection, users
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.logins import Login
from tests.unit.results.played import begin, end
from tests.unit.server.conftest import Served, serve, served

__all__ = ["serve", "served"]

LONGEST_S = 60.0


def new_job() -> NewJob:
    return NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")


def wait_until(fact: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LONGEST_S
    while not fact():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


@pytest.fixture
def store_outage(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While this event is set, the server cannot reach its store."""
    is_out = threading.Event()
    find = users.find

    def found(*arguments: Any) -> Any:
        if is_out.is_set():
            raise StoreUnreachableError("the store cannot be reached")
        return find(*arguments)

    monkeypatch.setattr(users, "find", found)
    monkeypatch.setattr(access, "KNOWN_FOR_S", 0.0)
    return is_out


@pytest.mark.parametrize("kind", [StoreUnreachableError, StoreBusyError])
def test_a_submit_is_repeated_until_the_store_is_back(
    served: Served, monkeypatch: pytest.MonkeyPatch, kind: type[StoreError]
) -> None:
    tries: list[str] = []

    def fails_twice(*_: object, **_more: object) -> None:
        tries.append("once more")
        if len(tries) < 3:
            raise kind("the store is unavailable")

    monkeypatch.setattr(submitting, "check", fails_twice)
    served.client().store.submit(new_job())
    assert len(tries) == 3
    assert len(served.workspace.store.job_lines()) == 1


def test_unavailable_store_is_named(
    served: Served, store_outage: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.2)
    client = served.client()
    store_outage.set()
    with pytest.raises(StoreUnreachableError, match="the store cannot be reached"):
        client.store.job_lines()
    store_outage.clear()
    assert client.store.job_lines() == []


AWAY = (
    "the store postgresql://ada@db.internal:5432/jobs?schema=team cannot be reached: connection "
    'failed: connection to server at "10.1.2.3", port 5432 failed: Connection refused Is the '
    "server running on that host and accepting TCP/IP connections. Check that the server is "
    "running, its address, and the user's password (PGPASSWORD or ~/.pgpass)"
)


def test_address_of_an_unavailable_store_is_hidden_from_users(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(Lines, "add", lambda _self, text: lines.append(text))
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.2)
    client = served.connection()

    def unavailable(*_: Any, **_more: Any) -> Any:
        raise StoreUnreachableError(AWAY, path="postgresql://ada@db.internal:5432/jobs")

    client.json("GET", "/v1/tokens")
    for name, known_for_s in (("find", 0.0), ("all_tokens", 60.0)):
        with monkeypatch.context() as broken:
            broken.setattr(access, "KNOWN_FOR_S", known_for_s)
            broken.setattr(users, name, unavailable)
            with pytest.raises(StoreUnreachableError) as failed:
                client.json("GET", "/v1/tokens")
        message = str(failed.value)
        assert "is unavailable: its database cannot be reached;" in message
        assert "; the server's log says more" in message
        for part in ("db.internal", "10.1.2.3", "5432", "ada", "jobs?", "team"):
            assert part not in message
    assert any("503" in line and "10.1.2.3" in line for line in lines)


def test_uncertain_change_is_not_repeated_after_a_store_outage(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fails(*_: Any, **_more: Any) -> Any:
        tries.append(1)
        raise StoreUnreachableError(AWAY)

    root = served.connection("root", users.Role.ADMIN)
    monkeypatch.setattr(users, "add", fails)
    with pytest.raises(StoreUnreachableError, match="is unavailable"):
        root.json("POST", "/v1/tokens", body={"user": "eve"})
    assert len(tries) == 1


def test_user_sees_which_storage_the_server_waits_for(
    served: Served, store_outage: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(connection, "NOTED_S", 0.0)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.5)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.5)
    client = served.client()
    monkeypatch.setattr(client.server, "_note", notes.append)
    store_outage.set()
    with pytest.raises(StoreUnreachableError):
        client.store.job_lines()
    (note,) = notes
    assert note.endswith("it answered 503 Service Unavailable: the store cannot be reached")


def test_followed_logs_and_events_survive_a_store_outage(
    served: Served, store_outage: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.0)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.0)
    store = served.workspace.store
    job, _ = store.submit(new_job())
    log = begin(served.workspace, job, tmp_path / "a1").driver_log(0)
    log.write_bytes(b"one\n")
    client = served.client()
    lines: list[bytes] = []
    seen: list[Event] = []
    following = [
        threading.Thread(
            target=lambda: lines.extend(part.data for part in Logs(client, job.id).follow())
        ),
        threading.Thread(target=lambda: seen.extend(follow(client, job.id))),
    ]
    for one in following:
        one.start()
    wait_until(lambda: b"".join(lines) == b"one\n" and len(seen) > 0, "both have begun")
    store_outage.set()
    time.sleep(2.0)  # the streams end, and requests for them fail
    with log.open("ab") as file:
        file.write(b"two\n")
    store_outage.clear()
    end(served.workspace, job, tmp_path / "a1")
    for one in following:
        one.join(LONGEST_S)
    assert b"".join(lines) == b"one\ntwo\n"
    assert seen == store.events(job.id)


def test_a_followed_log_ends_with_its_token(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "KNOWN_FOR_S", 0.1)
    job, _ = served.workspace.store.submit(new_job())
    begin(served.workspace, job, tmp_path / "a1").driver_log(0).write_bytes(b"one\n")
    parts = Logs(served.client(), job.id).follow()
    assert next(part.data for part in parts if part.data) == b"one\n"
    users.revoke(served.workspace.store, "ada", by="root")
    with pytest.raises(UsageError, match="revoked"):
        for _ in parts:
            pass


@contextmanager
def requests_at_once(
    served: Served, number: int, verb: str, path: str, **more: Any
) -> Iterator[None]:
    """Send requests that get responses only after the block."""
    clients = [served.connection() for _ in range(number)]
    threads = [
        threading.Thread(target=one.whole, args=(verb, path), kwargs=more) for one in clients
    ]
    for one in threads:
        one.start()
    yield
    for one in threads:
        one.join(LONGEST_S)


def test_hanging_storage_leaves_threads_for_other_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.0)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.0)
    key = served.workspace.blobs.add_file(Path(__file__)).key
    is_back, hanging = threading.Event(), threading.Semaphore(0)
    read = type(served.workspace.blobs).read

    def hangs(*arguments: Any) -> bytes:
        hanging.release()
        is_back.wait(LONGEST_S)
        return read(*arguments)

    monkeypatch.setattr(type(served.workspace.blobs), "read", hangs)
    other = Connection(served.connection("eve")._login, answer_s=10.0)
    headers = {"Range": "bytes=0-9"}
    with requests_at_once(served, 45, "GET", f"/v1/blobs/{key}", headers=headers), closing(other):
        for _ in range(20):
            assert hanging.acquire(timeout=LONGEST_S)
        assert other.json("GET", "/v1/job-counts") is not None
        assert not is_back.is_set()
        is_back.set()


def test_large_body_does_not_block_other_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.0)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.0)
    is_read, is_there = threading.Event(), threading.Event()
    whole = bodies.object_in

    def slow(data: bytes) -> dict[str, Any]:
        if len(data) > 10_000:
            is_there.set()
            is_read.wait(10.0)
        return whole(data)

    monkeypatch.setattr(app, "object_in", slow)
    body = b'{"jobs": [' + b'"x",' * 5000 + b'"x"]}'
    with requests_at_once(served, 1, "POST", "/v1/jobs:states", data=body):
        assert is_there.wait(LONGEST_S)
        other = Connection(served.connection("eve")._login, answer_s=5.0)
        with closing(other):
            assert other.json("GET", "/v1/health") == {"ok": True}
        assert not is_read.is_set()
        is_read.set()


def test_read_request_has_a_smaller_body_limit_than_a_change(served: Served) -> None:
    body = b'{"jobs": ["' + b"x" * (2 << 20) + b'"]}'
    with pytest.raises(UsageError, match="at most 1048576 bytes"):
        served.connection().whole("POST", "/v1/jobs:states", data=body)


def test_threads_share_a_connection(served: Served) -> None:
    server, failed = served.connection(), []

    def ask() -> None:
        try:
            for _ in range(60):
                assert server.json("GET", "/v1/user")["user"] == "ada"
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LONGEST_S)
    assert failed == []
    assert 1 <= len(server._free) <= 3


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (307, "", "redirects to https://elsewhere/"),
        (200, "<html>", "with JSON"),
    ],
)
def test_server_of_another_kind_is_named(status: int, text: str, message: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "https://elsewhere/")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        login = Login(f"http://127.0.0.1:{server.server_address[1]}", "rj_x")
        with closing(Connection(login)) as client, pytest.raises(UnreachableError, match=message):
            client.json("GET", "/v1/user")
        server.shutdown()
