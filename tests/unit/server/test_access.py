"""Tokens and roles on every route of the server."""

from __future__ import annotations

import http.client
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.routing import Route

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.session_steps import SessionStep
from rayjobs.jobs.records import ModelDraft
from rayjobs.server import access
from rayjobs.spec.model import JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace import users
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.logins import Login, drop_login, login_file, read_login, save_login
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

OPEN = {"/v1/health", "/healthz", "/v1/openapi.json"}


def status_of(served: Served, verb: str, path: str, token: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request(verb, re.sub(r"{\w+}", "x", path), body=b"{}", headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def routes(served: Served) -> list[tuple[str, str, Role]]:
    document = served.connection().json("GET", "/v1/openapi.json")
    return [
        (verb.upper(), path, users.role_of(entry["description"].split()[-1].rstrip(".")))
        for path, entries in document["paths"].items()
        for verb, entry in entries.items()
    ]


def test_every_route_refuses_a_token_that_is_missing_wrong_expired_revoked_or_foreign(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAILED_BURST", 1e6)
    store = served.workspace.store
    past = datetime.now(UTC) - timedelta(days=2)
    _, expired = users.add(store, "old", Role.ADMIN, by="root", days=1, now=past)
    _, revoked = users.add(store, "gone", Role.ADMIN, by="root")
    users.revoke(store, "gone", by="root")
    with open_workspace(tmp_path / "other", create=True) as other:
        _, foreign = users.add(other.store, "ada", Role.ADMIN, by="root")
    listed = routes(served)
    assert len(listed) > 80
    for verb, path, _ in listed:
        for token in (None, "", "rj_wrong", expired, revoked, foreign):
            assert status_of(served, verb, path, token) == 401, (verb, path, token)


def test_every_route_refuses_a_role_below_its_own(served: Served) -> None:
    _, viewer = users.add(served.workspace.store, "eve", Role.VIEWER, by="root")
    _, submitter = users.add(served.workspace.store, "ada", Role.SUBMITTER, by="root")
    for verb, path, role in routes(served):
        for token, has in ((viewer, Role.VIEWER), (submitter, Role.SUBMITTER)):
            if has < role:
                assert status_of(served, verb, path, token) == 403, (verb, path)


def test_every_route_of_the_application_is_in_the_document(served: Served) -> None:
    from rayjobs.server.app import make_app

    documented = {(verb, path) for verb, path, _ in routes(served)}
    every = [one for one in make_app(served.workspace).routes if isinstance(one, Route)]
    assert len(every) > 100
    for route in every:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        for verb in (route.methods or set()) - {"HEAD"}:
            assert path in OPEN or (verb, path) in documented


@pytest.mark.parametrize(
    "method",
    ["start", "move", "finish", "claim_target", "set_meta", "prune_records", "requeue"],
)
def test_target_only_methods_cannot_be_called(served: Served, method: str) -> None:
    assert hasattr(Store, method)
    client = served.client("root", Role.ADMIN)
    with pytest.raises(UsageError, match="server's own machine"):
        getattr(client.store, method)("x")


def test_user_is_taken_from_the_token(served: Served) -> None:
    client = served.client("ada")
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="root")
    job, created = client.store.submit(new)
    assert created and job.user == "ada"


def test_only_an_admin_changes_objects_of_others(served: Served) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")
    job, _ = served.client("ada").store.submit(new)
    with pytest.raises(UsageError, match="ada's"):
        served.client("eve").store.request_cancel(job.id)
    with pytest.raises(UsageError, match="ada's"):
        served.client("eve").store.update(job.id, JobChanges(priority=5))
    assert str(served.client("root", Role.ADMIN).store.request_cancel(job.id)) == "Canceled"


def test_a_submitter_changes_published_pipelines_and_models_that_are_own(served: Served) -> None:
    ada, eve = served.client("ada").store, served.client("eve").store
    root = served.client("root", Role.ADMIN).store
    nightly = ada.publish_pipeline({}, name="nightly")
    draft = ModelDraft(name="mnist", path="m", digest="", files=(), sources=(), lineage={})
    model, _ = ada.put_model(None, draft)
    root.put_model(None, replace(draft, digest="other"))  # the newest version is not ada's
    with pytest.raises(UsageError, match="ada made it"):
        eve.set_published_active(nightly.id, active=False)
    with pytest.raises(UsageError, match="ada made it"):
        eve.update_model("mnist", model.version, tags={"is": "eve's"})
    for store in (ada, root):
        store.set_published_active(nightly.id, active=False)
        assert store.update_model("mnist", model.version, tags={"a": "b"}).tags == {"a": "b"}
    eve.set_model_alias("mnist", "live", model.version)  # without an owner: shared


def test_session_on_a_job_of_another_user_is_refused(served: Served) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")
    job, _ = served.client("ada").store.submit(new)
    asked = TargetRequest("session", job=job.id, step=SessionStep("exec", "0" * 32)).to_json()
    for user, role in (("eve", Role.SUBMITTER), ("ada", Role.VIEWER)):
        with pytest.raises(UsageError, match=r"ada's|needs the role submitter"):
            served.connection(user, role).json("POST", "/v1/targets/local/ask", body=asked)
    answer = served.connection("ada").json("POST", "/v1/targets/local/ask", body=asked)
    assert answer == {"is_late": False, "answer": None}  # nothing runs jobs here


def test_idempotency_keys_are_separate_for_each_user(served: Served) -> None:
    new = NewJob(
        spec=JobSpec(command="true"), experiment="e", snapshot=None, user="", idempotency_key="k"
    )
    first, _ = served.client("ada").store.submit(new)
    again, is_new = served.client("ada").store.submit(new)
    other, is_others = served.client("eve").store.submit(new)
    assert (again.id, is_new) == (first.id, False)
    assert other.id != first.id and is_others


def test_a_token_is_kept_as_a_digest_and_changes_are_recorded(served: Served) -> None:
    store = served.workspace.store
    made, text = users.add(store, "ada", Role.VIEWER, by="root")
    users.revoke(store, made.id, by="grace")
    assert text not in str(store.meta_under(""))
    assert [(one["by"], one["change"], one["user"]) for one in users.audit(store)] == [
        ("root", "add", "ada"),
        ("grace", "revoke", "ada"),
    ]
    with pytest.raises(NotFoundError):
        users.revoke(store, "nobody-here", by="root")


def test_expired_tokens_are_not_reported_as_revoked(served: Served) -> None:
    store, long_ago = served.workspace.store, datetime(2020, 1, 1, tzinfo=UTC)
    expired, _ = users.add(store, "ada", Role.VIEWER, by="root", days=1, now=long_ago)
    valid, _ = users.add(store, "ada", Role.VIEWER, by="root")
    assert [one.id for one in users.revoke(store, "ada", by="root")] == [valid.id]
    assert not users.revoke_token(store, expired.id, by="root")


def test_the_login_can_be_read_by_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path))
    save_login(Login("https://here", "rj_x"))
    assert login_file().stat().st_mode & 0o777 == 0o600
    assert read_login() == Login("https://here", "rj_x")
    save_login(Login("https://here", "rj_x", "/etc/team.pem"))
    assert read_login() == Login("https://here", "rj_x", "/etc/team.pem")
    assert drop_login() and not drop_login() and read_login() is None


def test_unknown_tokens_are_limited_by_address_and_known_ones_continue(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAILED_BURST", 3.0)
    monkeypatch.setattr(access, "FAILED_PER_SECOND", 0.0)
    monkeypatch.setattr(access, "KNOWN_FOR_S", 1e6)
    _, good = users.add(served.workspace.store, "ada", Role.VIEWER, by="root")
    assert status_of(served, "GET", "/v1/user", good) == 200
    tried = [status_of(served, "GET", "/v1/user", f"rj_guess{number}") for number in range(5)]
    assert tried == [401, 401, 401, 429, 429]
    assert status_of(served, "GET", "/v1/user", good) == 200
