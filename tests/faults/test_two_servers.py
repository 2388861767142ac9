"""One of two servers is killed during upload, submit and follow: the other continues."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rayjobs.remote import workspace as remote
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import open_workspace
from rayjobs.workspace.logins import Login
from tests.integration.test_team_workspace import SCRIPT
from tests.storage.blobs import given_keys, target
from tests.storage.postgres import server
from tests.storage.server import s3_server
from tests.support.team_servers import TeamServers, team_servers

__all__ = ["given_keys", "s3_server", "server", "target", "team_servers"]

pytestmark = pytest.mark.ray


def test_job_continues_through_the_other_server(
    team_servers: TeamServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = team_servers.all
    client = team_servers.through(first, second)
    (project := client.home / "project").mkdir()
    data = os.urandom(60 << 20)
    (project / "data.bin").write_bytes(data)  # travels with the code
    check = (
        f"assert hashlib.sha256(open('data.bin', 'rb').read()).hexdigest() == '{digest_of(data)}'"
    )
    (project / "train.py").write_text(f"import hashlib\n{check}\n{SCRIPT}")
    go = tmp_path / "go"
    with open_workspace(team_servers.folder) as workspace:
        # During the upload.
        submitting = client.begin("submit", "-d", "train.py", "--", str(go), cwd=project)
        until(lambda: any(workspace.blobs.list("uploads/")), "a piece is stored")
        first.kill()
        submitting.communicate(timeout=120)
        assert submitting.returncode == 0
        assert not list(workspace.blobs.list("uploads/"))
        # During a followed log; the first server has returned by then.
        first.start()
        with client.begin("logs", "-f", "train-1") as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "started\n"
            first.kill()
            go.touch()
            assert following.stdout.read() == "trained\n"
            assert following.wait(60) == 0
        assert client.run("wait", "train-1").returncode == 0
        # Between a submit and its response.
        first.start()
        login = Login(f"{first.address},{second.address}", team_servers.token)
        whole = Connection._exchange
        lost: list[str] = []

        def killed_after(
            self: Connection, connection: Any, verb: str, path: str, *more: Any
        ) -> Any:
            answer = whole(self, connection, verb, path, *more)
            if path == "/v1/jobs" and not lost:
                lost.append(path)
                first.kill()
                raise http.client.RemoteDisconnected("the server was killed")
            return answer

        monkeypatch.setattr(Connection, "_exchange", killed_after)
        with closing(remote.open_server(Connection(login))) as opened:
            spec = JobSpec(command="true", name="once")
            new = NewJob(spec=spec, experiment="e", snapshot=None, user="")
            job, created = opened.store.submit(new)
        assert lost and created
        named = [line.id for line in workspace.store.job_lines() if line.name == "once"]
        assert named == [job.id]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def until(fact: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)
