"""Servers in front of PostgreSQL and S3, two at once: a client uses either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_team_workspace import SCRIPT
from tests.storage.blobs import given_keys, target
from tests.storage.postgres import server
from tests.storage.server import s3_server
from tests.support.team_servers import TeamServers, team_servers

__all__ = ["given_keys", "s3_server", "server", "target", "team_servers"]

pytestmark = pytest.mark.ray


def test_whole_job_lifecycle_through_either_server(
    team_servers: TeamServers, tmp_path: Path
) -> None:
    one, two = (team_servers.through(each) for each in team_servers.all)
    (project := one.home / "project").mkdir()
    (project / "train.py").write_text(SCRIPT)
    go = tmp_path / "go"
    submitted = one.run("submit", "-d", "train.py", "--", str(go), cwd=project)
    assert submitted.returncode == 0, submitted.stderr
    with two.begin("logs", "-f", "train-1") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "started\n"  # while it runs
        listed = json.loads(one.run("ls", "--json").stdout)
        assert [job["state"] for job in listed if job["name"] == "train-1"] == ["Running"]
        go.touch()
        assert following.stdout.read() == "trained\n"
        assert following.wait(60) == 0
    assert one.run("wait", "train-1").returncode == 0
    metrics = json.loads(two.run("metrics", "train-1", "--json").stdout)
    assert len(metrics["metrics"]["loss"]) == 5
    for client in (one, two):
        got = client.run("download", "train-1", "outputs/model.txt", "-o", "-")
        assert got.stdout == "weights", got.stderr
    registered = one.run("model", "register", "digits", "--run", "train-1", "--path", "outputs")
    assert registered.returncode == 0, registered.stderr
    fetched = two.run("model", "download", "digits", "-o", str(two.home / "model"))
    assert fetched.returncode == 0, fetched.stderr
    (found,) = (two.home / "model").rglob("big.bin")
    assert found.read_bytes() == bytes(range(256)) * 80_000
    shown = json.loads(two.run("show", "train-1", "--json").stdout)
    assert shown["user"] == "ada"
