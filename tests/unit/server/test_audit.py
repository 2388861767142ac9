"""The audit of what was changed over HTTP: who, what, and when it is forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.core.clock import to_text
from rayjobs.core.errors import TargetError, UsageError
from rayjobs.jobs.records import ModelDraft
from rayjobs.remote.workspace import open_server
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.target import revive, starting
from rayjobs.target.condition import Condition, Standing
from rayjobs.target.starting import TargetStatus
from rayjobs.workspace import audit, users
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

NEW = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")


def rows_of(served: Served, number: int) -> list[Mapping[str, Any]]:
    deadline = time.monotonic() + 60
    while len(rows := users.http_audit(served.workspace.store)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return rows


def test_every_change_over_http_is_recorded(served: Served) -> None:
    ada = served.client("ada")
    job, _ = ada.store.submit(NEW)
    ada.store.jobs()
    with pytest.raises(UsageError):
        served.client("eve").store.request_cancel(job.id)
    open_server(served.connection("root", Role.ADMIN)).store.request_cancel(job.id)
    found = [(row["by"], row["change"], row["status"]) for row in rows_of(served, 3)]
    assert found == [
        ("ada", "POST /v1/jobs", 200),
        ("eve", f"POST /v1/jobs/{job.id}/cancel", 403),
        ("root", f"POST /v1/jobs/{job.id}/cancel", 200),
    ]


def test_audit_names_what_was_changed(served: Served) -> None:
    ada, connection = served.client("ada"), served.connection("ada")
    job, _ = ada.store.submit(NEW)
    ada.store.update(job.id, JobChanges(priority=5))
    pipeline = ada.store.publish_pipeline({"steps": []}, name="nightly")
    ada.store.set_published_active(pipeline.id, active=False)
    draft = ModelDraft(name="mnist", path="m", digest="", files=(), sources=(), lineage={})
    ada.store.put_model(None, draft)
    ada.store.put_program_setting("k", "a secret")
    connection.json(
        "DELETE", "/v1/datastores/workspaceblobstore/files", query={"path": "ada/data.csv"}
    )
    hook = "https://hooks.example.org/SECRET"
    made = connection.json("POST", "/v1/notifications", body={"receiver": hook})
    rows = rows_of(served, 8)
    assert [row["object"] for row in rows] == [
        job.id,
        f"{job.id} priority=5",
        f"{pipeline.id} name=nightly",
        "active=False",
        "mnist:1",
        "key=k",
        "ada/data.csv",
        f"{made['id']} https://hooks.example.org/…",
    ]
    assert "ecret" not in json.dumps(rows).lower().replace("secrets", "")


def test_a_change_whose_answer_failed_is_recorded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.server.hiding.text_for", lambda *_: 1 / 0)
    with pytest.raises(Exception, match="500"):
        served.connection("ada").json(
            "PUT", "/v1/program-setting", body={"key": "k", "value": "v"}, repeats=False
        )
    assert [(row["status"], row["object"]) for row in rows_of(served, 1)] == [(500, "key=k")]


def test_pages_of_the_audit_have_every_change_once(served: Served) -> None:
    store, begin = served.workspace.store, datetime(2026, 1, 1, tzinfo=UTC)
    expected = []
    for number in range(12):
        at = to_text(begin + timedelta(minutes=number))
        rows = [{"at": at, "change": f"{number}.{part}"} for part in range(number % 4 + 1)]
        prefix = users.HTTP_AUDIT if number % 2 else users.AUDIT
        store.set_meta(f"{prefix}{at}:x", json.dumps(rows if number % 2 else rows[0]))
        expected += [row["change"] for row in (rows if number % 2 else rows[:1])]
    for size in (1, 3, 50):
        found, cursor = [], ""
        while True:
            page, following = audit.page(store, size, cursor)
            assert len(page) <= size
            found += [row["change"] for row in page]
            if following is None:
                break
            cursor = following
        assert found == expected[::-1]


def test_prune_removes_old_changes_and_tokens(served: Served) -> None:
    store, now = served.workspace.store, datetime.now(UTC)
    long_ago = now - timedelta(days=500)
    _, ended = users.add(store, "gone", Role.VIEWER, by="root", days=7, now=long_ago)
    store.set_meta("identity:gone", None)  # as earlier versions left it
    _, valid = users.add(store, "ada", Role.VIEWER, by="root", days=3000, now=long_ago)
    _, fresh = users.add(store, "eve", Role.VIEWER, by="root", days=7, now=now - timedelta(days=20))
    at = to_text(long_ago)
    store.set_meta(f"{users.HTTP_AUDIT}{at}:x", json.dumps([{"at": at, "change": "old"}] * 3))
    served.connection("ada").json("PUT", "/v1/program-setting", body={"key": "k", "value": "v"})
    rows_of(served, 4)
    command = ["prune", "--yes", "--workspace", str(served.workspace.path)]
    shown = CliRunner().invoke(main, [*command, "--dry-run"])
    assert "5 changes in the audit" in shown.output and "1 token that expired" in shown.output
    assert len(users.http_audit(store)) == 4
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert [row["object"] for row in users.http_audit(store)] == ["key=k"]
    assert [row["user"] for row in users.audit(store)] == ["eve", "ada"]
    assert users.find(store, ended) is None
    assert users.find(store, valid) is not None and users.find(store, fresh) is not None
    with pytest.raises(UsageError, match="belongs to another"):
        someone = users.Identity(issuer="https://example.org", subject="1")
        users.login(store, "gone", Role.VIEWER, someone, days=1)


def test_old_changes_can_be_left_out(served: Served) -> None:
    store, now = served.workspace.store, datetime.now(UTC)
    for days, what in ((3, "old"), (1, "new")):
        at = to_text(now - timedelta(days=days))
        store.set_meta(f"{users.HTTP_AUDIT}{at}:x", json.dumps([{"at": at, "change": what}]))
        users.add(store, what, Role.VIEWER, by="root", now=now - timedelta(days=days))
    since = now - timedelta(days=2)
    assert [row["change"] for row in users.http_audit(store, since=since)] == ["new"]
    assert [row["user"] for row in users.audit(store, since=since)] == ["new"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_status_request_is_audited_only_if_it_started_the_target(
    served: Served, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    condition = Condition(Standing.STARTING, "text", has_begun=has_begun)
    monkeypatch.setattr(revive, "look_after", lambda *_names, **_more: condition)
    ada = served.connection("ada")
    found = ada.json("POST", "/v1/targets/local/look")
    assert found == {"standing": "starting", "reason": "text", "may_run_on": False}
    served.client("eve").store.put_program_setting("k", "v")
    rows = rows_of(served, 1 + has_begun)
    changes = [row["change"] for row in rows if row["by"] == "ada"]
    assert changes == has_begun * ["start of target local"]


@pytest.mark.parametrize("is_starting", [False, True])
def test_wake_up_is_audited_only_if_it_started_the_target(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_starting: bool
) -> None:
    monkeypatch.setattr("rayjobs.server.targets.wake_or_start", lambda *_: is_starting)
    ada = served.connection("ada")
    woken = ada.json("POST", "/v1/targets/local/wake", query={"start": "1"}, repeats=True)
    assert woken is not is_starting
    served.client("eve").store.put_program_setting("k", "v")
    rows = rows_of(served, 1 + is_starting)
    changes = [(row["change"], row["status"]) for row in rows if row["by"] == "ada"]
    assert changes == is_starting * [("start of target local", 200)]


def test_one_start_of_target_is_audited_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_awake, fails = False, False

    def ensure(name: str, **_more: object) -> TargetStatus:
        if fails:
            raise TargetError("Ray does not start")
        return TargetStatus(name=name, version="1")

    monkeypatch.setattr("rayjobs.server.targets.wake_or_start", lambda *_: not is_awake)
    monkeypatch.setattr(starting, "wake", lambda *_, **_more: is_awake)
    monkeypatch.setattr(starting, "ensure_target", ensure)
    ada = served.connection("ada")

    def wake() -> None:
        ada.json("POST", "/v1/targets/local/wake", query={"start": "1"}, repeats=True)

    def start() -> None:
        ada.json("POST", "/v1/targets/local/start", repeats=True)

    wake()
    wake()
    start()  # the same start, to its end
    is_awake = True
    wake()
    is_awake = False  # it was stopped
    wake()
    fails = True
    with pytest.raises(TargetError, match="Ray does not start"):
        start()
    wake()  # after the failure, this begins another start
    served.client("eve").store.put_program_setting("k", "v")
    rows = rows_of(served, 4)
    assert [row["change"] for row in rows if row["by"] == "ada"] == ["start of target local"] * 3


def test_forbidden_change_is_recorded_with_its_user(served: Served) -> None:
    eve = open_server(served.connection("eve", Role.VIEWER))
    with pytest.raises(UsageError, match="has the role viewer"):
        eve.store.put_program_setting("k", "v")
    eve.store.jobs()
    (row,) = rows_of(served, 1)
    assert (row["by"], row["status"]) == ("eve", 403)
    assert row["change"].startswith("PUT /v1/")
