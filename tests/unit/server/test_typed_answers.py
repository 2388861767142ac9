"""Clients read the answers of earlier and later servers, or say clearly that they cannot."""

from __future__ import annotations

import http.server
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from rayjobs.core.errors import (
    NotFoundError,
    Problem,
    SpecError,
    UnreachableError,
    UsageError,
)
from rayjobs.datastore.errors import DataNotFound
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.policy.capacity import Capacity
from rayjobs.server import access
from rayjobs.target import wake_client
from rayjobs.target.answers import ForwardedAnswer, StacksAnswer
from rayjobs.target.condition import ServedCondition
from rayjobs.target.requests import TargetRequest
from rayjobs.target.targets import TargetView
from rayjobs.workspace import connection, plain
from rayjobs.workspace import http_messages as messages
from rayjobs.workspace.blobs import Blob
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.logins import Login

AT = "2026-11-28T07:09:48.000001Z"
EVENT = {
    "serial": 3,
    "job": "j-1",
    "at": AT,
    "kind": "queued",
    "message": "waits",
    "attempt": 0,
    "data": {"a": [1, None]},
}
TOKEN = {
    "id": "t1",
    "user": "ada",
    "role": "submitter",
    "created_at": AT,
    "created_by": "root",
    "expires_at": AT,
    "revoked_at": None,
}
FILE = {"path": "a/b", "size": 5, "etag": "e", "digest": ""}
NODE = {"cpus": 4.0, "gpus": 1.0, "memory_bytes": 7, "count": 2, "node_type": "gpu"}
TYPE = {
    "name": "gpu",
    "cpus": 4.0,
    "gpus": 1.0,
    "memory_bytes": 7,
    "min_nodes": 0,
    "max_nodes": 2,
    "vm_size": "",
    "is_spot": True,
}
# What the first servers and clients wrote.
FIRST: list[tuple[Any, Any]] = [
    (messages.WorkspaceFacts, {"id": "w", "name": "n", "path": "/w", "default_target": "local"}),
    (messages.CurrentUser, {"user": "ada", "role": "admin", "token": "t", "expires_at": AT}),
    (messages.TokenRow, TOKEN),
    (messages.NewTokenRow, {**TOKEN, "secret": "rj_x"}),
    (messages.NewToken, {"user": "ada", "role": "viewer", "days": 3.0}),
    (messages.AuditPage, {"items": [{"at": AT, "by": "ada", "status": 200}], "next": None}),
    (
        messages.LoginProvider,
        {
            "issuer": "https://id",
            "client_id": "c",
            "device_authorization_endpoint": None,
            "token_endpoint": "https://id/token",
            "scope": "openid",
        },
    ),
    (messages.LoginRequest, {"id_token": "x"}),
    (messages.LoginAnswer, {"token": "rj_x", "expires_at": AT}),
    (messages.NotificationRow, {"id": "n", "user": None, "receiver": "a@b.c", "by": "root"}),
    (messages.NewNotification, {"receiver": "a@b.c", "everyone": True}),
    (messages.LogTimes, {"notes": [[1.5, 10]], "after": None, "is_live": False}),
    (messages.LogPiece, {"attempt": 1, "data": "eA=="}),
    (messages.NewEvent | messages.StreamPosition, {"event": EVENT}),
    (messages.NewEvent | messages.StreamPosition, {"after": 3}),
    (messages.StreamEnd, {"is_end": True}),
    (Blob | None, {"key": "k", "size": 1, "digest": "sha256:0"}),
    (messages.KeepRequest, {"key": None, "digest": "d", "size": 1, "direct": False}),
    (messages.PartsRequest, {"size": 1}),
    (messages.Parts | None, {"part_bytes": 5, "missing": [{"number": 1, "url": "http://s"}]}),
    (messages.DatastoreFile | None, FILE),
    (
        list[messages.ListedFile | messages.ListedFolder],
        [{**FILE, "is_folder": False}, {"path": "a", "is_folder": True}],
    ),
    (messages.PutFileRequest, {"upload": "u", "path": "a/b", "size": 5}),
    (messages.StartedTarget, {"version": "0.1.0"}),
    (ServedCondition, {"standing": "stopped", "reason": "why", "may_run_on": True}),
    (
        Capacity,
        {
            "nodes": [NODE],
            "max_nodes": 2,
            "shares_machine": False,
            "types": {"types": [TYPE], "max_nodes": 2},
            "running": [NODE],
        },
    ),
    (ForwardedAnswer, {"is_late": False, "answer": {"ok": True, "version": "0.1.0"}}),
]


PROBLEM: dict[str, Any] = {
    "path": "resources.gpus",
    "message": "too many",
    "remedy": "",
    "is_missing": False,
    "is_unknown_key": False,
}
# Errors of the first servers, with the entries of some kinds only.
ERRORS: list[tuple[dict[str, Any], type[Exception], dict[str, Any]]] = [
    ({"kind": "UsageError", "message": "no"}, UsageError, {"message": "no"}),
    (
        {"kind": "SpecError", "message": "bad", "problems": [PROBLEM]},
        SpecError,
        {"problems": (Problem(**PROBLEM),)},
    ),
    (
        {"kind": "NotFoundError", "message": "two", "matches": ["a-1", "a-2"]},
        NotFoundError,
        {"values": {"matches": ("a-1", "a-2")}},
    ),
    ({"kind": "DataNotFound", "message": "gone"}, DataNotFound, {}),
    ({"kind": "LaterError", "message": "new"}, UnreachableError, {}),
    ({"code": 7}, UnreachableError, {}),
    ({"kind": 7, "message": None}, UnreachableError, {}),
]


@pytest.mark.parametrize(("sent", "kind", "facts"), ERRORS)
def test_errors_keep_the_form_of_the_first_version(
    sent: dict[str, Any], kind: type[Exception], facts: dict[str, Any]
) -> None:
    for more in ({}, {"of_a_later_version": 1}):
        body = json.dumps({"error": {**sent, **more}, **more}).encode()
        found = connection.error_of(409, body, "https://head.example.org")
        assert type(found) is kind
        assert {name: getattr(found, name) for name in facts} == facts


def test_an_error_has_only_the_entries_of_its_kind() -> None:
    facts = messages.ErrorFacts("UsageError", "no")
    assert access.answer_of(400, facts).body == b'{"error":{"kind":"UsageError","message":"no"}}'
    facts = messages.ErrorFacts("SpecError", "bad", problems=[Problem(**PROBLEM)])
    (error,) = json.loads(bytes(access.answer_of(422, facts).body)).values()
    assert error == {"kind": "SpecError", "message": "bad", "problems": [PROBLEM]}


@pytest.fixture
def client() -> Connection:
    return Connection(Login("https://head.example.org:8400", "rj_x"))


@pytest.mark.parametrize(("kind", "first"), FIRST, ids=lambda one: getattr(one, "__name__", None))
def test_answers_and_bodies_keep_the_form_of_the_first_version(
    client: Connection, kind: Any, first: Any
) -> None:
    value = client.read_answer(kind, json.loads(json.dumps(first)), "GET /v1/x")
    assert plain.written(kind, value) == first
    if isinstance(first, Mapping):  # a later version adds entries
        assert client.read_answer(kind, {**first, "of_a_later_version": [1]}, "") == value


def test_entries_that_earlier_servers_do_not_send_have_defaults(client: Connection) -> None:
    read = client.read_answer
    condition = read(ServedCondition, {"standing": "running"}, "")
    assert (condition.standing, condition.reason, condition.may_run_on) == ("running", "", False)
    view = read(TargetView, {"name": "gpu", "kind": "attached", "state": "running"}, "")
    assert (view.busy, view.nodes, view.problem) == (None, (), "")
    capacity = read(Capacity, {"nodes": [{"cpus": 2}], "max_nodes": 1}, "")
    assert (capacity.types, capacity.running) == (None, None)


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (messages.CurrentUser, {"user": "ada"}, "CurrentUser needs expires_at, role, token"),
        (messages.LogTimes, {"notes": [1], "after": 1, "is_live": 1}, "notes: 1 is not"),
        (list[str], {"a": 1}, r"\{'a': 1\} is not of the type list"),
        (int, "12", "'12' is not of the type int"),
        (ServedCondition, {"standing": "dancing"}, "'dancing' is not a valid Standing"),
        (TargetView, [], "a target view is one JSON object"),
    ],
)
def test_an_answer_that_cannot_be_read_names_the_server_and_the_remedy(
    client: Connection, kind: Any, values: Any, why: str
) -> None:
    with pytest.raises(UnreachableError, match=why) as failed:
        client.read_answer(kind, values, "GET /v1/x")
    message = str(failed.value)
    assert message.startswith("the answer of https://head.example.org:8400 to GET /v1/x cannot")
    assert message.endswith("install the same version of rayjobs here and on the server")


@dataclass(frozen=True)
class Measured(Message):
    """A message with numbers and texts."""

    value: float
    text: str = ""


def test_a_message_keeps_numbers_and_texts_that_stores_refuse() -> None:
    sent = plain.written(Measured, Measured(math.inf, "a\0b"))
    assert json.dumps(sent, allow_nan=False)
    assert plain.read(Measured, sent) == Measured(math.inf, "a\0b")


@pytest.fixture
def answers() -> Iterator[Callable[[bytes], Connection]]:
    """Return a client of a server that answers all requests with these bytes."""
    running: list[http.server.HTTPServer] = []

    def serve(body: bytes) -> Connection:
        class Fixed(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Fixed)
        running.append(server)
        threading.Thread(target=server.serve_forever).start()
        return Connection(Login(f"http://127.0.0.1:{server.server_port}", "rj_x"))

    yield serve
    for one in running:
        one.shutdown()
        one.server_close()


def test_a_stream_record_that_cannot_be_read_ends_the_stream_at_once(
    answers: Callable[[bytes], Connection],
) -> None:
    with closing(answers(b'{"attempt": 1, "data": "eA=="}\n{"attempt": "one"}\n')) as client:
        records = client.stream("/v1/jobs/j/log-stream", messages.LogPiece, dict)
        assert next(records) == messages.LogPiece(1, b"x")
        with pytest.raises(UnreachableError, match="to GET /v1/jobs/j/log-stream cannot be read"):
            next(records)


def test_a_stream_that_always_ends_without_data_is_given_up(
    answers: Callable[[bytes], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "AWAY_S", 0.05)
    monkeypatch.setattr(connection, "AGAIN_S", 0.01)
    with closing(answers(b"")) as client:
        records = islice(client.stream("/v1/jobs/j/log-stream", messages.LogPiece, dict), 100)
        with pytest.raises(UnreachableError, match="ends before any data arrives"):
            assert set(records) == {None}


def test_a_forwarded_answer_is_read_by_the_class_of_its_operation(
    answers: Callable[[bytes], Connection], tmp_path: Any
) -> None:
    body = {"is_late": False, "answer": {"ok": True, "attempt": 2, "ranks": []}}
    request = TargetRequest("stacks", job="j")
    with closing(answers(json.dumps(body).encode())) as client:
        found = wake_client.ask_target("gpu", tmp_path, request, StacksAnswer, server=client)
    assert found is not None and (found.ok, found.attempt) == (True, 2)
