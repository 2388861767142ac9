"""A workspace in PostgreSQL and S3: a whole job from a machine without the target's disk."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.workspace import shared
from tests.storage.blobs import address_in, given_keys, target
from tests.storage.postgres import Postgres, server
from tests.storage.server import S3Server, s3_server
from tests.support.jobs import leaving
from tests.support.local_target import LocalTarget
from tests.support.machines_apart import OtherMachine, needs_mounts

__all__ = ["given_keys", "s3_server", "server", "target"]

pytestmark = pytest.mark.ray

SCRIPT = """
import sys
import time
from pathlib import Path

import rayjobs.injob.checkpoint as checkpoint
import rayjobs.injob.run as run

print("started", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
for step in range(5):
    run.Run.get_context().log("loss", 1 / (step + 1), step=step)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/model.txt").write_text("weights")
Path("outputs/big.bin").write_bytes(bytes(range(256)) * 80_000)
print("trained")
"""


@pytest.fixture
def team(
    target: LocalTarget,
    server: Postgres,
    s3_server: S3Server,
    given_keys: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[OtherMachine]:
    """A second machine that joined the workspace served by the target of the first one."""
    needs_mounts()
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    with shared.create(here / "w", server.url, blobs=address_in(s3_server)).workspace:
        pass
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(here / "w"))
    (here / "hello.py").write_text("print('hello')")
    assert run(["submit", "--attach", str(here / "hello.py")]) == 0
    assert run(["workspace", "show", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out.partition("{")[2].join(["{", ""]))
    assert shown["targets"][0]["live"]
    other = OtherMachine(
        there / "home", [target.home, here], {"RAYJOBS_WORKSPACE": str(there / "w")}
    )
    other.home.mkdir()
    store = shown["join"].split("'")[1]
    joined = other.run("workspace", "add", str(there / "w"), "--store", store)
    assert joined.returncode == 0, joined.stderr
    with leaving(here / "w"):
        yield other


def test_whole_job_lifecycle_from_another_machine(team: OtherMachine, tmp_path: Path) -> None:
    script = team.home / "train.py"
    script.write_text(SCRIPT)
    go = tmp_path / "go"
    submitted = team.run("submit", "-d", str(script), "--", str(go))
    assert submitted.returncode == 0, submitted.stderr
    assert "runs on" in submitted.stderr
    with team.begin("logs", "-f", "train-1") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "started\n"  # while it runs
        assert team.run("ls", "--json").returncode == 0
        assert "started" in team.run("logs", "train-1").stdout
        go.touch()
        assert following.stdout.read() == "trained\n"
        assert following.wait(60) == 0
    metrics = json.loads(team.run("metrics", "train-1", "--json").stdout)
    assert len(metrics["metrics"]["loss"]) == 5
    got = team.run("download", "train-1", "outputs/model.txt", "-o", "-")
    assert got.stdout == "weights", got.stderr
    registered = team.run("model", "register", "digits", "--run", "train-1", "--path", "outputs")
    assert registered.returncode == 0, registered.stderr
    fetched = team.run("model", "download", "digits", "-o", str(team.home / "model"))
    assert fetched.returncode == 0, fetched.stderr
    found = list((team.home / "model").rglob("big.bin"))
    assert len(found) == 1 and found[0].stat().st_size == 256 * 80_000
    assert team.run("logs", "train-1").stdout == "started\ntrained\n"
    # No target was started on that machine, and its folder has no file of the job.
    assert not list(team.home.glob("targets/local/head.json"))


def test_another_machine_cancels_a_job(team: OtherMachine, tmp_path: Path) -> None:
    script = team.home / "train.py"
    script.write_text(SCRIPT)
    assert team.run("submit", "-d", str(script), "--", str(tmp_path / "never")).returncode == 0
    until_running(team)
    assert team.run("cancel", "train-1").returncode == 0
    assert team.run("wait", "train-1").returncode == 1
    assert json.loads(team.run("show", "train-1", "--json").stdout)["state"] == "Canceled"


def until_running(team: OtherMachine) -> None:
    end_s = time.monotonic() + 60
    while json.loads(team.run("show", "train-1", "--json").stdout)["state"] != "Running":
        assert time.monotonic() < end_s
        time.sleep(0.2)
