"""No request or end is lost during an outage of the target actor or Ray's control service.

For each process killed in each state of a job, see `test_kill_matrix.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from rayjobs.core.paths import runtime_dir
from rayjobs.injob.identity import Identity, send_signal
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch import hostclient
from rayjobs.spec.model import Resources
from rayjobs.target import wake_client
from rayjobs.target.answers import TargetAnswer
from rayjobs.target.requests import TargetRequest
from tests.support.jobs import DEADLINE_S, Jobs, kill, until, wake
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray

WAITS = """
    import os, time
    print("up", flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    print("done")
"""


class Waiting:
    """A job that runs until it is released."""

    def __init__(self, jobs: Jobs, name: str = "go", **spec: object) -> None:
        self.go = jobs.folder / name
        self.job = jobs.submit(
            WAITS,
            environment_variables={"GO": str(self.go)},
            **spec,
        )
        jobs.wait_for_output(self.job, b"up")
        jobs.wait(self.job, JobState.RUNNING)

    def end(self) -> None:
        self.go.write_text("")


def actor_pid(local_target: LocalTarget) -> int:
    """Return the pid of the target actor, once it answers."""

    def pid() -> int | None:
        socket = wake_client.socket_of("local", local_target.home)
        try:
            answer = wake_client.ask(socket, TargetRequest("ping"), TargetAnswer, timeout_s=10.0)
        except TimeoutError:
            return None
        return answer.pid if answer is not None and answer.pid else None

    return until(pid, "the target actor answers")  # type: ignore[return-value]


def agents(local_target: LocalTarget) -> list[int]:
    """Return the pids of the target's node agents."""
    # Ray renames a worker after what it runs; the log that only the agent writes stays.
    found = []
    for process in psutil.process_iter():
        try:
            names = [file.path for file in process.open_files()]
        except psutil.Error:
            continue  # it has just ended
        if any(Path(name).match(f"{local_target.paths.log}/agent-*.log") for name in names):
            found.append(process.pid)
    return found


def only_agent(local_target: LocalTarget) -> list[int]:
    """Return the one agent's pid; nothing while there are none or several."""
    found = agents(local_target)
    # A child of the agent shares its open log for an instant, between its fork and its exec.
    return found if len(found) == 1 else []


def test_actor_stops_when_another_claims_its_workspace(
    jobs: Jobs, local_target: LocalTarget
) -> None:
    waiting = Waiting(jobs)
    old = actor_pid(local_target)
    jobs.store.claim_target("local", epoch="of another actor")
    until(lambda: not psutil.pid_exists(old), "the replaced actor ends")
    after = jobs.submit("print('served again')")  # restarts the target, which claims it again
    waiting.end()
    assert jobs.wait(waiting.job, JobState.COMPLETED).attempt == 1
    jobs.wait(after, JobState.COMPLETED)
    assert actor_pid(local_target) != old


def test_cancel_during_an_actor_outage(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    old = actor_pid(local_target)
    os.kill(old, signal.SIGSTOP)
    jobs.store.request_cancel(waiting.job.id)
    kill(old)
    jobs.wait(waiting.job, JobState.CANCELED)
    jobs.nothing_left(waiting.job)


def test_job_end_during_an_actor_outage(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    root = jobs.root(waiting.job)
    old = actor_pid(local_target)
    os.kill(old, signal.SIGSTOP)
    waiting.end()
    until((root / "exit.json").exists, "the host writes its record without the actor")
    kill(old)
    done = jobs.wait(waiting.job, JobState.COMPLETED)
    assert done.attempt == 1


def test_deadline_during_an_actor_outage(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs, max_duration_s=3.0)
    root = jobs.root(waiting.job)
    old = actor_pid(local_target)
    os.kill(old, signal.SIGSTOP)
    until((root / "exit.json").exists, "the host enforces the deadline without the actor")
    kill(old)
    done = jobs.wait(waiting.job, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "time_limit"
    assert done.attempt == 1
    jobs.nothing_left(done)


def has_ended(jobs: Jobs, job: Job, root: Path) -> bool:
    """Whether an attempt's host has recorded its end; a fast collection removes that file."""
    # In this order: the end is in the store before the file is removed.
    if (root / "exit.json").exists():
        return True
    return bool(jobs.store.attempts(job.id)[-1].exits) or jobs.job(job).state.is_final


def test_unresponsive_control_service_fails_no_job(jobs: Jobs, local_target: LocalTarget) -> None:
    """All calls of the target to Ray hang: the running job is healthy, and continues."""
    waiting = Waiting(jobs)
    root = jobs.root(waiting.job)
    gcs = local_target.head.identity("gcs_server")
    assert gcs is not None
    assert send_signal(gcs, signal.SIGSTOP)
    try:
        after = jobs.submit("print('after')", resources=Resources(cpus=3))
        wake(jobs.workspace)
        waiting.end()
        until(lambda: has_ended(jobs, waiting.job, root), "it ends without Ray")
    finally:
        send_signal(gcs, signal.SIGCONT)
    for job in (waiting.job, after):
        assert jobs.wait(job, JobState.COMPLETED).attempt == 1


def warm_interpreters(local_target: LocalTarget) -> list[Identity]:
    """Return the interpreters that fork hosts; hosts and ranks show the same command line."""
    sockets = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("injob/warm.py" in word for word in words) and "--socket" in words:
            sockets.add(words[words.index("--socket") + 1])
    home = str(local_target.home)
    own = str(runtime_dir(local_target.home))
    answers = [
        asyncio.run(hostclient.ping_warm(one)) for one in sockets if one.startswith((home, own))
    ]
    return [one.identity for one in answers if one is not None]


def rank_pid(root: Path) -> int:
    """Return the pid of rank 0, as its host reports it."""
    connection = hostclient.HostConnection.of(str(root))
    assert connection is not None
    status = asyncio.run(connection.status(timeout_s=DEADLINE_S))
    return status.ranks[0].pid
