"""The whole log of a job is read through a server whose connection is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rayjobs.core.errors import RayjobsError, UnreachableError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.remote.workspace import open_server
from rayjobs.results import remote_logs
from rayjobs.results.logs import Logs
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import users
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.logins import Login
from rayjobs.workspace.users import Role
from tests.storage.proxy import Proxy
from tests.unit.results.played import begin, end
from tests.unit.server.conftest import Served, serve, served

__all__ = ["serve", "served"]

TEXT = b"".join(b"line %07d\n" % number for number in range(200_000))


@pytest.fixture
def proxy(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(remote_logs, "AGAIN_S", 0.01)
    monkeypatch.setattr(remote_logs, "CHUNK_BYTES", 1 << 16)
    with Proxy(served.port) as made:
        yield made


@pytest.fixture
def client(served: Served, proxy: Proxy) -> Iterator[OpenWorkspace]:
    _, token = users.add(served.workspace.store, "ada", Role.SUBMITTER, by="root")
    with closing(open_server(Connection(Login(proxy.endpoint, token)))) as made:
        yield made


def job_with_log(served: Served, folder: Path, *, has_ended: bool) -> Job:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="ada")
    job, _ = served.workspace.store.submit(new)
    begin(served.workspace, job, folder).driver_log(0).write_bytes(TEXT)
    if has_ended:
        end(served.workspace, job, folder, state=JobState.COMPLETED)
    return job


def cut(proxy: Proxy, times: int) -> None:
    proxy.mode, proxy.cut_after, proxy.cuts_left = "cut", 500_000, times


@pytest.mark.parametrize("has_ended", [False, True])
def test_interrupted_log_continues_at_its_offset(
    served: Served, proxy: Proxy, client: OpenWorkspace, tmp_path: Path, *, has_ended: bool
) -> None:
    job = job_with_log(served, tmp_path / "a1", has_ended=has_ended)
    cut(proxy, 3)
    assert Logs(client, job.id).read() == TEXT
    assert proxy.cuts_left <= 0


def test_repeatedly_interrupted_log_is_a_rayjobs_error(
    served: Served,
    proxy: Proxy,
    client: OpenWorkspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_logs, "AWAY_S", 0.2)
    job = job_with_log(served, tmp_path / "a1", has_ended=True)
    proxy.mode, proxy.cut_after = "cut", 400  # the head of a response, and little more
    with pytest.raises(UnreachableError, match=r"broke off after|cannot be reached"):
        Logs(client, job.id).read()


def test_interrupted_log_never_continues_with_another_attempt(
    served: Served, proxy: Proxy, client: OpenWorkspace, tmp_path: Path
) -> None:
    job = job_with_log(served, tmp_path / "a1", has_ended=False)
    cut(proxy, 1)
    parts = Logs(client, job.id).chunks()
    read = next(parts)
    requeue = served.workspace.store.requeue
    assert requeue(job.id, attempt=1, reason="node lost", outcome=Outcome.NODE_LOST)
    begin(served.workspace, job, tmp_path / "a2").driver_log(0).write_bytes(b"other " * 300_000)
    with pytest.raises(RayjobsError, match=r"attempt 1 of .* has ended"):
        for part in parts:
            read += part
    assert TEXT.startswith(read)
