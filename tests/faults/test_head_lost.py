"""The whole Ray head is killed under a full queue, or restarts with the state that it kept."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rayjobs.core.files import write_private
from rayjobs.core.paths import home
from rayjobs.injob.identity import is_alive, send_signal
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Resources
from rayjobs.store.requests import JobFilter
from rayjobs.target import local_head, starting, targets, wake_client
from rayjobs.target.answers import StatusAnswer, TargetAnswer
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace.folder import locate, open_workspace
from tests.checker.evidence import collect, read_history
from tests.checker.invariants import check
from tests.faults.stages import DONE, TELLS, WAITS
from tests.faults.test_kill_matrix import is_another
from tests.faults.test_pipelines_killed import submit_chain
from tests.faults.test_processes_killed import actor_pid
from tests.support.jobs import Jobs, until
from tests.support.local_target import LocalTarget, remove_runtime_folder

pytestmark = pytest.mark.ray

JOBS = 10
PLACES = 4


def submit(jobs: Jobs, history: Path, go: Path, **spec: object) -> Job:
    """Submit a job that records its start, waits for `go`, and records its successful end."""
    variables = {"HISTORY": str(history), "GO": str(go)}
    return jobs.submit(TELLS + WAITS + DONE, environment_variables=variables, **spec)


def check_all(jobs: Jobs, history: Path) -> None:
    """Check that each job succeeded once, and that no invariant is violated."""
    evidence = collect(jobs.workspace)
    evidence.ran = read_history(history)
    assert [str(one) for one in check(evidence)] == []
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    ended = Counter(one["job"] for one in lines if one["what"] == "done")
    assert ended == {job.id: 1 for job in evidence.jobs}


@pytest.fixture
def own_jobs(short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """A workspace on a head for this test only, which it may kill."""
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", str(PLACES))
    monkeypatch.setenv("RAYJOBS_LOCAL_DASHBOARD", "0")  # half the time of a start
    workspace = open_workspace(locate())
    yield Jobs(workspace, tmp_path)
    workspace.close()
    targets.stop_target(force=True, home=short_path / "h")


def test_head_killed_between_steps_repeats_and_loses_no_step(
    own_jobs: Jobs, short_path: Path, tmp_path: Path
) -> None:
    jobs, target = own_jobs, LocalTarget(short_path / "h", ())
    chain = submit_chain(jobs, tmp_path, "first", "second")
    starting.ensure_target("local", home=home(), workspace=jobs.workspace.path)
    first = jobs.store.job(chain.steps["first"])
    jobs.wait(first, JobState.RUNNING)
    root = jobs.root(first)
    # The actor is stopped first, so that the step ends while nothing can record it.
    psutil.Process(actor_pid(target)).suspend()
    (chain.turns / "first").write_text("")
    until((root / "exit.json").exists, "the step ends while no actor follows it")
    head = target.head
    for identity in local_head.processes_of(Path(head.temp_dir)):
        send_signal(identity, signal.SIGKILL)
    until(lambda: is_another(target, head), "its keeper starts another head")
    (chain.turns / "second").write_text("")
    chain.check(jobs)


def test_ten_jobs_survive_the_loss_of_actor_and_head(
    own_jobs: Jobs, short_path: Path, tmp_path: Path
) -> None:
    jobs, history, go = own_jobs, tmp_path / "history", tmp_path / "go"
    history.touch()
    target = LocalTarget(short_path / "h", ())
    starting.ensure_target("local", home=home(), workspace=jobs.workspace.path)
    made = [submit(jobs, history, go) for _ in range(JOBS)]

    def running() -> list[Job]:
        return jobs.store.jobs(JobFilter(states=[JobState.RUNNING]))

    until(lambda: len(running()) == PLACES, "all CPUs are in use")
    first = {job.id for job in running()}

    old = actor_pid(target)
    psutil.Process(old).kill()
    until(lambda: actor_pid(target) != old, "a new target actor answers")
    until(lambda: live(target) == first, "it has taken over the running jobs")
    assert {job.id: job.attempt for job in running()} == dict.fromkeys(first, 1)

    head = target.head
    killed = list(local_head.processes_of(Path(head.temp_dir)))
    for identity in killed:
        send_signal(identity, signal.SIGKILL)
    until(lambda: not any(is_alive(one) for one in killed), "Ray is dead")
    until(lambda: is_another(target, head), "its keeper starts another head")
    # A job that ended meanwhile would correctly count as done.
    until(
        lambda: all(jobs.store.attempts(job)[0].ended_at for job in first),
        "the survivors are ended",
    )
    go.write_text("")

    for job in made:
        done = jobs.wait(job, JobState.COMPLETED)
        attempts = jobs.store.attempts(job.id)
        assert done.attempt == (2 if job.id in first else 1)
        classes = [str(one.failure.failure_class) for one in attempts if one.failure]
        assert classes == (["node_lost"] if job.id in first else [])
        jobs.nothing_left(job)
    assert len(jobs.store.jobs()) == JOBS
    until(
        lambda: all(row.job is None for row in jobs.store.allocations("local")),
        "every allocation is free",
    )
    check_all(jobs, history)


def live(target: LocalTarget, name: str = "local") -> set[str]:
    """Return the ids of the jobs that the target actor supervises."""
    answer = wake_client.ask(
        wake_client.socket_of(name, target.home),
        TargetRequest("status"),
        StatusAnswer,
        timeout_s=10.0,
    )
    return set() if answer is None else {key.rpartition("::")[2] for key in answer.live}


class DurableHead:
    """A Ray head that keeps its state in a folder, and a node that takes the jobs."""

    def __init__(self, folder: Path, own_home: Path) -> None:
        self.folder = folder
        self.token = folder / "token"
        write_private(self.token, secrets.token_hex(32))
        self.ip = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
        self.port = local_head.free_port()
        self.address = f"{self.ip}:{self.port}"
        self._environment = {
            **local_head.head_environment(own_home, self.token),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(folder / "gcs"),
            # How long a node waits for a lost head; the default of a minute is too short here.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
            "RAY_health_check_initial_delay_ms": "2000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "3",
        }
        self._starters: list[subprocess.Popen[bytes]] = []

    def start_head(self) -> subprocess.Popen[bytes]:
        """Start the head, or restart it at the same address with the state that it kept."""
        # With this record, Ray refuses the port of a cluster whose other nodes are alive.
        (self.folder / "r" / "ray_current_cluster").unlink(missing_ok=True)
        return self._start(
            "--head",
            f"--node-ip-address={self.ip}",
            f"--port={self.port}",
            f"--temp-dir={self.folder / 'r'}",
            "--num-cpus=0",
            "--include-dashboard=false",
        )

    def start_node(self) -> subprocess.Popen[bytes]:
        """Start the node, at another address of this machine."""
        ip = f"{self.ip.rpartition('.')[0]}.2"
        return self._start(
            f"--address={self.address}", f"--node-ip-address={ip}", f"--num-cpus={PLACES}"
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        ray = Path(sys.executable).with_name("ray")
        log = self.folder / f"ray-{len(self._starters)}.log"
        with log.open("wb") as file:
            starter = subprocess.Popen(
                [
                    *(str(ray), "start", "--block", "--disable-usage-stats"),
                    *("--object-store-memory=80000000", *arguments),
                ],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        self._starters.append(starter)

        def is_up() -> bool:
            assert starter.poll() is None, log.read_text()
            return "runtime started" in log.read_text() and self._answers()

        until(is_up, "Ray has started")
        return starter

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.ip, self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def end(self) -> None:
        """Kill the processes that are still alive."""
        for starter in self._starters:
            kill_tree(starter)


def kill_tree(starter: subprocess.Popen[bytes]) -> None:
    """Kill a `ray start` with all its descendants."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(starter.pid)
        for process in [*top.children(recursive=True), top]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    starter.wait()


@pytest.fixture
def durable_head(session_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DurableHead]:
    own_home = session_root / "k"
    folder = Path(tempfile.mkdtemp(prefix="rjk-", dir="/tmp"))
    monkeypatch.setenv("RAYJOBS_HOME", str(own_home))
    made = DurableHead(folder, own_home)
    try:
        yield made
    finally:
        with suppress(Exception):
            targets.stop_target("kept", force=True, home=own_home)
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
        remove_runtime_folder(own_home)


@pytest.mark.slow
def test_jobs_continue_while_a_durable_head_restarts(
    durable_head: DurableHead, tmp_path: Path
) -> None:
    head, own_home = durable_head, home()
    first = head.start_head()
    head.start_node()
    save_target(
        TargetRecord("kept", address=head.address, token_file=str(head.token), lease_s=300.0),
        home=own_home,
    )
    before = targets.start_target("kept", home=own_home)
    history, go = tmp_path / "history", tmp_path / "go"
    history.touch()
    workspace = open_workspace(locate())
    jobs = Jobs(workspace, tmp_path)
    target = LocalTarget(own_home, (), "kept")
    runs = [submit(jobs, history, go, target="kept") for _ in range(2)]
    for job in runs:
        jobs.wait(job, JobState.RUNNING)
    waits = submit(jobs, history, go, target="kept", resources=Resources(cpus=PLACES))

    kill_tree(first)
    head.start_head()

    def served_again() -> bool:
        socket_path = wake_client.socket_of("kept", own_home)
        request = TargetRequest("ping")
        answer = wake_client.ask(socket_path, request, TargetAnswer, timeout_s=10.0)
        return answer is not None and answer.ok and answer.epoch != before.epoch

    until(served_again, "Ray starts the target actor again, on another node or the new head")
    until(lambda: live(target, "kept") == {job.id for job in runs}, "it has the running jobs")
    go.write_text("")
    for job in [*runs, waits]:
        assert jobs.wait(job, JobState.COMPLETED).attempt == 1
        jobs.nothing_left(job)
    check_all(jobs, history)
    workspace.close()
