"""A server whose machine does not know a target of the workspace: another machine serves it."""

from __future__ import annotations

import pytest

from rayjobs.core.errors import NotFoundError, ServedElsewhereError
from rayjobs.core.paths import home
from rayjobs.injob.session_steps import SessionStep
from rayjobs.jobs.serving import Claimant, Serving
from rayjobs.policy.capacity import Capacity
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.target import elsewhere, starting, targets, wake_client
from rayjobs.target.answers import SessionAnswer, StatusAnswer
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace import server_choice
from rayjobs.workspace.connection import Connection
from tests.unit.server.conftest import Served


@pytest.fixture
def server(served: Served, monkeypatch: pytest.MonkeyPatch) -> Connection:
    claimant = Claimant(owner="other", host="gpu1", home="/h", version="0.1.0")
    serving = Serving(target="cluster", claimant=claimant, epoch="e", silent_s=0.5)
    monkeypatch.setattr(
        elsewhere, "find_quietly", lambda _, name, **__: serving if name == "cluster" else None
    )
    return served.connection()


def test_delayed_remote_target_is_not_unknown(
    server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = TargetRequest("status")
    with pytest.raises(TimeoutError):
        wake_client.ask_target("cluster", home(), request, StatusAnswer, server=server)
    with pytest.raises(NotFoundError, match="no target 'other'"):
        wake_client.ask_target("other", home(), request, StatusAnswer, server=server)
    look = server.json("POST", "/v1/targets/cluster/look")
    assert (look["standing"], look["reason"]) == (
        "running",
        "target 'cluster' of this workspace runs on gpu1",
    )


def test_remote_target_is_woken_through_the_store(
    server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []

    def wake(name: str, **_: object) -> bool:
        woken.append(name)
        return True

    monkeypatch.setattr(starting, "wake", wake)
    for query in ({}, {"start": "1"}):
        assert server.json("POST", "/v1/targets/cluster/wake", query=query, repeats=True)
    assert woken == ["cluster", "cluster"]


def test_unknown_capacity_refuses_no_job(
    server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_choice, "_is_allowed", True)
    monkeypatch.setattr(server_choice, "_active", server)
    assert targets.capacity_of("cluster") == Capacity((), 0)


def test_jobs_of_a_remote_target_need_a_server_there(served: Served, server: Connection) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")
    job, _ = served.workspace.store.submit(new)
    step = SessionStep("exec", session="s" * 16, arguments=("true",))
    request = TargetRequest("session", job=job.id, step=step)
    with pytest.raises(ServedElsewhereError, match="runs on gpu1: only a server there"):
        wake_client.ask_target("cluster", home(), request, SessionAnswer, server=server)


def test_a_client_does_not_open_a_store_that_its_own_disk_names(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    def address(workspace: object) -> str:
        opened.append(workspace)
        return "postgresql://nobody@127.0.0.1:1/none"

    monkeypatch.setattr(elsewhere, "store_address", address)
    monkeypatch.setattr(server_choice, "_is_allowed", True)
    monkeypatch.setattr(server_choice, "_active", served.connection())
    assert elsewhere.find(served.workspace.path, "local", home=home()) is None
    assert not opened
