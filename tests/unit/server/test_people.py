"""Tokens and the audit over HTTP; blobs: their sizes, their use, and parts of them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.messages import Message
from rayjobs.target import targets, wake_client
from rayjobs.target.answers import StatusAnswer
from rayjobs.workspace import users
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.logins import Login
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

TOKENS = "/v1/tokens"


def test_users_see_and_revoke_their_own_tokens_and_admins_all(served: Served) -> None:
    ada, eve = served.connection("ada"), served.connection("eve", Role.VIEWER)
    root = served.connection("root", Role.ADMIN)
    assert {one["user"] for one in root.json("GET", TOKENS)} == {"ada", "eve", "root"}
    (of_eve,) = eve.json("GET", TOKENS)
    (of_ada,) = ada.json("GET", TOKENS)
    assert (of_eve["user"], of_eve["role"], of_eve["revoked_at"]) == ("eve", "viewer", None)
    for name in (of_ada["id"], "ada", "nothing"):
        with pytest.raises(NotFoundError, match="no token"):
            eve.json("DELETE", f"{TOKENS}/{name}")
    assert eve.json("DELETE", f"{TOKENS}/{of_eve['id']}") is True
    assert root.json("DELETE", f"{TOKENS}/{of_ada['id']}") is True
    assert root.json("DELETE", f"{TOKENS}/{of_ada['id']}") is False
    found = {one.user: one.revoked_at for one in users.all_tokens(served.workspace.store)}
    assert found["ada"] and found["eve"] and found["root"] is None
    changes = users.audit(served.workspace.store)
    assert [(one["by"], one["user"]) for one in changes if one["change"] == "revoke"] == [
        ("eve", "eve"),
        ("root", "ada"),
    ]


def test_an_admin_adds_users(served: Served) -> None:
    root = served.connection("root", Role.ADMIN)
    made = root.json("POST", TOKENS, body={"user": "grace", "role": "viewer", "days": 3})
    served.opened.append(grace := Connection(Login(served.address, made["secret"])))
    assert grace.json("GET", "/v1/user")["user"] == "grace"
    with pytest.raises(UsageError, match="needs the role admin"):
        served.connection("ada").json("POST", TOKENS, body={"user": "ada", "role": "admin"})
    bodies: tuple[dict[str, Any], ...] = ({}, {"user": "a", "days": "x"}, {"user": "a", "role": 3})
    for body in bodies:
        with pytest.raises(UsageError, match=r"the body cannot be read.*(user|days|role)"):
            root.json("POST", TOKENS, body=body)
    for body in ({"user": "a b"}, {"user": "a", "role": "king"}, {"user": "a", "days": 0}):
        with pytest.raises(UsageError):
            root.json("POST", TOKENS, body=body)


def test_admins_read_the_audit_in_pages(served: Served) -> None:
    root, ada = served.connection("root", Role.ADMIN), served.connection("ada")
    for number in range(3):
        ada.json("PUT", "/v1/program-setting", body={"key": f"k{number}", "value": "v"})
    deadline = time.monotonic() + 60
    while len(users.http_audit(served.workspace.store)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found: list[Any] = []
    query = {"page_size": "2"}
    while True:
        page = root.json("GET", "/v1/audit", query=query)
        found += page["items"]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert [one.get("object") for one in found] == ["key=k2", "key=k1", "key=k0", None, None]
    with pytest.raises(UsageError, match="needs the role admin"):
        ada.json("GET", "/v1/audit")
    for wrong in ({"page_size": "0"}, {"page_size": "x"}, {"cursor": "x"}, {"cursor": "x/-1"}):
        with pytest.raises(UsageError, match=r"page_size|not a cursor"):
            root.json("GET", "/v1/audit", query=wrong)


def test_reading_a_blob_writes_nothing_and_using_it_keeps_it(served: Served) -> None:
    key = served.workspace.blobs.put_bytes(b"x" * 10, "files/x").key
    path = next(served.workspace.path.rglob("files/x"))
    os.utime(path, (1000, 1000))
    viewer, submitter = served.client("eve", Role.VIEWER), served.client("ada")
    assert viewer.blobs.size(key) == submitter.blobs.size(key) == 10
    assert viewer.blobs.exists(key) and not viewer.blobs.exists("files/y")
    assert path.stat().st_mtime == 1000
    assert submitter.blobs.exists(key) and not submitter.blobs.exists("files/y")
    assert path.stat().st_mtime > 1000


def test_part_of_a_blob_is_transferred_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 4096
    key = served.workspace.blobs.put_bytes(data, "files/x").key
    client, sent = served.client("ada"), 0
    whole = Connection.whole

    def counted(self: Connection, *arguments: Any, **more: Any) -> bytes:
        nonlocal sent
        found = whole(self, *arguments, **more)
        sent += len(found)
        return found

    monkeypatch.setattr(Connection, "whole", counted)
    monkeypatch.setattr("rayjobs.remote.workspace.UPLOAD_BYTES", 1000)
    for start, length in ((0, 1), (300, 2500), (len(data) - 5, 100), (len(data), 1), (7, 0)):
        sent = 0
        assert client.blobs.read(key, start, length) == data[start : start + length]
        assert sent == len(data[start : start + length])
    with pytest.raises(NotFoundError):
        client.blobs.read("files/y", 0, 1)


STATUS = {
    "ok": True,
    "target": "local",
    "live": ["/ours::a", "/theirs::b"],
    "waiting": {"/ours::c": {"position": 2}, "/theirs::d": {"position": 1}},
    "nodes": [{"node_id": "n"}],
    "allocations": [
        {"name": "1", "job": "/ours::a"},
        {"name": "2", "job": "/theirs::b"},
        {"name": "3", "job": None},
    ],
    "workspaces": ["/ours", "/theirs"],
    "refused": {"/theirs": "it is a copy", "/ours": "it is locked"},
    "scaling": {"/ours::f": {"reason": "waits"}, "/theirs::g": {"reason": "waits"}},
}
EXPLANATION = {"ok": True, "decision": {"key": "/ours::c", "ahead": ["/theirs::d", "/ours::e"]}}


def test_users_of_a_workspace_do_not_see_those_of_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(served.workspace.path)
    given = {
        "status": json.loads(json.dumps(STATUS).replace("/ours", path)),
        "explain": json.loads(json.dumps(EXPLANATION).replace("/ours", path)),
    }
    asked: list[str] = []

    async def answer(_path: object, request: Any, kind: type[Message], **_more: object) -> Message:
        asked.append(request.op)
        return kind.from_json(given[request.op])

    monkeypatch.setattr(wake_client, "ask_async", answer)
    ada = served.connection("ada")
    found = ada.json("POST", "/v1/targets/local/ask", body={"op": "status"})["answer"]
    own = {
        **given["status"],
        "live": [f"{path}::a"],
        "waiting": {f"{path}::c": {"position": 2}},
        "scaling": {f"{path}::f": {"reason": "waits"}},
        "allocations": [
            {"name": "1", "job": f"{path}::a"},
            {"name": "2", "job": "another workspace 2"},
            {"name": "3", "job": None},
        ],
        "workspaces": [path],
        "refused": {path: "it is locked"},
    }
    assert found == StatusAnswer.from_json(own).to_json()
    body = {"op": "explain", "key": f"{path}::c"}
    explained = ada.json("POST", "/v1/targets/local/ask", body=body)["answer"]["decision"]
    assert (explained["key"], explained["ahead"]) == (
        f"{path}::c",
        ["another workspace", f"{path}::e"],
    )
    with pytest.raises(UsageError, match="only why jobs of its own workspace wait"):
        body = {"op": "explain", "key": "/theirs::d"}
        ada.json("POST", "/v1/targets/local/ask", body=body)
    assert asked == ["status", "explain"]
    detail = StatusAnswer.from_json(given["status"])
    view = targets.TargetView("local", "local", "running", detail=detail)
    monkeypatch.setattr(targets, "target_status", lambda *_, **__: view)
    shown = ada.json("GET", "/v1/targets/local", query={"ask": "1"})
    assert shown["detail"] == found
