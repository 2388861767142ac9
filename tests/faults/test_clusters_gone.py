"""A cluster is lost permanently: how its jobs are shown, and every remedy."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from rayjobs.core.files import write_private
from rayjobs.core.paths import home
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.target import local_head, targets
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.workspace.folder import locate, open_workspace
from tests.faults.stages import TELLS, WAITS
from tests.faults.test_head_lost import kill_tree
from tests.support.jobs import Jobs, until
from tests.support.local_target import remove_runtime_folder
from tests.unit.cli.conftest import Terminal

pytestmark = pytest.mark.ray

CPUS = 2
RAYJOBS = Path(sys.executable).with_name("rayjobs")


class Cluster:
    """A separate Ray head with the usual settings: its processes end soon after its GCS."""

    def __init__(self, folder: Path, own_home: Path) -> None:
        token, log = folder / "token", folder / "ray.log"
        write_private(token, secrets.token_hex(32))
        ip = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
        self.address = f"{ip}:{local_head.free_port()}"
        self.record = TargetRecord("gone", address=self.address, token_file=str(token))
        with log.open("wb") as file:
            self._starter = subprocess.Popen(
                [
                    *(str(RAYJOBS.with_name("ray")), "start", "--head", "--block"),
                    *("--disable-usage-stats", "--object-store-memory=80000000"),
                    *(f"--node-ip-address={ip}", f"--port={self.address.rpartition(':')[2]}"),
                    *(f"--temp-dir={folder / 'r'}", f"--num-cpus={CPUS}"),
                    "--include-dashboard=false",
                ],
                env=local_head.head_environment(own_home, token),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )

        def is_up() -> bool:
            assert self._starter.poll() is None, log.read_text()
            return "Ray runtime started" in log.read_text()

        until(is_up, "the head runs")

    def die(self) -> None:
        """End the GCS, and the other processes before they can react."""
        if self._starter.poll() is not None:
            return
        top = psutil.Process(self._starter.pid)
        for process in top.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # else the target would still requeue its job
        kill_tree(self._starter)


@pytest.fixture
def cluster(session_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    own_home = session_root / "g"
    folder = Path(tempfile.mkdtemp(prefix="rjg-", dir="/tmp"))
    monkeypatch.setenv("RAYJOBS_HOME", str(own_home))
    made = Cluster(folder, own_home)
    try:
        yield made
    finally:
        made.die()
        shutil.rmtree(folder, ignore_errors=True)
        remove_runtime_folder(own_home)


def test_dead_cluster_is_named_with_a_remedy_until_its_jobs_have_ended(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_target(cluster.record, home=home())
    targets.start_target("gone", home=home())
    workspace = open_workspace(locate())
    jobs, terminal = Jobs(workspace, tmp_path), Terminal(capsys)
    history, go = tmp_path / "history", tmp_path / "go"
    history.touch()

    def submit() -> Job:
        variables = {"HISTORY": str(history), "GO": str(go)}
        return jobs.submit(
            TELLS + WAITS,
            environment_variables=variables,
            target="gone",
            resources={"cpus": CPUS},
        )

    runs = jobs.wait(submit(), JobState.RUNNING)
    waits = submit()
    short = runs.id.rpartition("_")[2]
    remedy = f"rayjobs cancel --force {short}"
    followers = {name: _follow(tmp_path, name, runs) for name in ("wait", "logs")}

    cluster.die()

    for name in ("ls", "why", "show"):  # none of them waits for it
        output = terminal.type(name, *([runs.id] if name != "ls" else [])).out
        assert f"reached at {cluster.address}: Connection refused" in output, name
        assert "NotResponding" in output and remedy in output, name
    assert cluster.address in terminal.type("why", waits.id).out

    def names_the_remedy(name: str) -> bool:
        return remedy in _output(tmp_path, name)

    for name in followers:
        until(partial(names_the_remedy, name), f"{name} names the remedy")

    done = terminal.type("cancel", short)
    assert done.code == 0 and remedy in done.err
    for name in ("ls", "why"):
        output = terminal.type(name, *([runs.id] if name == "why" else [])).out
        assert "cancel requested" in output and remedy in output, name

    done = terminal.type("target", "stop", "gone", "--cancel")
    assert done.code == 0, done.err
    assert "1 running job may still run there" in done.err
    assert "rayjobs target rm gone --cancel" in done.err
    assert workspace.store.job(waits.id).state is JobState.CANCELED
    for name in ("ls", "why"):
        output = terminal.type(name, *([runs.id] if name == "why" else [])).out
        assert "was stopped" in output and remedy in output, name

    assert terminal.type("target", "rm", "gone").code == 5
    done = terminal.type("cancel", "--force", short)
    assert (done.code, done.out) == (0, f"{runs.id}: Canceled\n")
    codes = {name: follower.wait(120) for name, follower in followers.items()}
    assert codes == {"wait": 1, "logs": 0}
    assert terminal.type("target", "rm", "gone").code == 0
    assert "unknown whether its processes have ended" in terminal.type("why", runs.id).out
    go.touch()
    workspace.close()


def _follow(folder: Path, name: str, job: Job) -> subprocess.Popen[bytes]:
    with (folder / name).open("wb") as file:
        command = ["logs", "-f"] if name == "logs" else [name]
        follower = subprocess.Popen([RAYJOBS, *command, job.id], stdout=file, stderr=file)
    until(lambda: "Running" in _output(folder, name), f"{name} follows")
    return follower


def _output(folder: Path, name: str) -> str:
    return (folder / name).read_text()
