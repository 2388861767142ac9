"""kill -9 of each of our processes under a running job: it ends as it should, once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rayjobs.compute import starting, wakeclient
from rayjobs.injob.identity import Identity, is_alive, send_signal
from rayjobs.launch import hostclient
from rayjobs.paths import runtime_dir
from rayjobs.spec import Retries
from rayjobs.states import JobState
from tests.jobs import DEADLINE_S, Jobs, kill, until
from tests.local_target import LocalTarget

pytestmark = pytest.mark.ray

WAITS = """
    import os, time
    print("up", flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    print("done")
"""

# Submits, says which job it is, and is killed while it waits.
CLIENT = """
import sys, time
from pathlib import Path
from rayjobs.spec import JobSpec
from rayjobs.submitting import submit
from rayjobs.workspace_files import locate, open_workspace
spec = JobSpec(name="alone", script="train.py", grace_s=2.0)
made = submit(open_workspace(locate()), spec, source=Path(sys.argv[1]), experiment="test")
print(made.job.id, flush=True)
time.sleep(600)
"""


class Waiting:
    """A job that runs until it is told to go on."""

    def __init__(self, jobs: Jobs, name: str = "go", **spec: object) -> None:
        self.go = jobs.folder / name
        self.job = jobs.submit(
            WAITS,
            environment_variables={"GO": str(self.go)},
            **spec,  # type: ignore[arg-type]
        )
        jobs.says(self.job, b"up")
        jobs.wait(self.job, JobState.RUNNING)

    def end(self) -> None:
        self.go.write_text("")


def actor_pid(local_target: LocalTarget) -> int:
    """Return the pid of the target actor, once it answers."""

    def pid() -> int | None:
        socket = wakeclient.socket_of("local", local_target.home)
        try:
            answer = wakeclient.ask(socket, {"op": "ping"}, timeout_s=10.0)
        except TimeoutError:
            return None
        return int(answer["pid"]) if answer else None

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


def test_the_target_actor(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    old = actor_pid(local_target)
    kill(old)
    until(lambda: actor_pid(local_target) != old, "a new target actor answers")
    waiting.end()
    done = jobs.wait(waiting.job, JobState.COMPLETED)
    assert done.attempt == 1
    assert jobs.log(waiting.job) == b"up\ndone\n"


def test_an_actor_whose_workspace_another_one_claimed(
    jobs: Jobs, local_target: LocalTarget
) -> None:
    waiting = Waiting(jobs)
    old = actor_pid(local_target)
    jobs.store.claim_target("local", epoch="of another actor")
    until(lambda: not psutil.pid_exists(old), "the one that was replaced leaves")
    after = jobs.submit("print('served again')")  # starts the target anew, which claims it back
    waiting.end()
    assert jobs.wait(waiting.job, JobState.COMPLETED).attempt == 1
    jobs.wait(after, JobState.COMPLETED)
    assert actor_pid(local_target) != old


def test_a_cancel_while_the_actor_is_away(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    old = actor_pid(local_target)
    os.kill(old, signal.SIGSTOP)
    jobs.store.request_cancel(waiting.job.id)
    kill(old)
    jobs.wait(waiting.job, JobState.CANCELED)
    jobs.nothing_left(waiting.job)


def test_an_end_while_the_actor_is_away(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    root = jobs.root(waiting.job)
    old = actor_pid(local_target)
    os.kill(old, signal.SIGSTOP)
    waiting.end()
    until((root / "exit.json").exists, "the host writes its record alone")
    kill(old)
    done = jobs.wait(waiting.job, JobState.COMPLETED)
    assert done.attempt == 1


def test_the_node_agent(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    (pid,) = until(lambda: only_agent(local_target), "the one agent is found")
    kill(pid)
    until(lambda: set(agents(local_target)) - {pid}, "a new agent is there")
    waiting.end()
    done = jobs.wait(waiting.job, JobState.COMPLETED)
    assert done.attempt == 1
    assert jobs.log(waiting.job) == b"up\ndone\n"


def test_the_attempt_host(jobs: Jobs) -> None:
    waiting = Waiting(jobs, retries=Retries(system=1))
    first = jobs.host(waiting.job)
    kill(int(first["pid"]))
    until(lambda: jobs.job(waiting.job).attempt == 2, "the job is tried again")
    waiting.end()
    done = jobs.wait(waiting.job, JobState.COMPLETED)
    assert done.attempt == 2
    one, _two = jobs.store.attempts(waiting.job.id)
    assert one.failure is not None
    assert str(one.failure.failure_class) == "system"
    jobs.nothing_left(waiting.job)


def test_a_rank(jobs: Jobs) -> None:
    waiting = Waiting(jobs)
    pid = int(rank_pid(jobs.root(waiting.job)))
    kill(pid)
    done = jobs.wait(waiting.job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.signal == signal.SIGKILL
    assert done.attempt == 1


def test_the_warm_interpreter(jobs: Jobs, local_target: LocalTarget) -> None:
    waiting = Waiting(jobs)
    warm = until(lambda: warm_interpreters(local_target), "the warm interpreter answers")
    for identity in warm:
        send_signal(identity, signal.SIGKILL)
    for identity in warm:
        until(lambda one=identity: not is_alive(one), "it is dead")  # type: ignore[misc]
    waiting.end()
    assert jobs.wait(waiting.job, JobState.COMPLETED).attempt == 1
    after = jobs.wait(jobs.submit("print('next')"), JobState.COMPLETED)
    assert jobs.attempt(after).cold_reason is None


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


def test_the_client_that_submitted(jobs: Jobs, local_target: LocalTarget) -> None:
    """An acknowledged job needs no client: nobody but the target touches it after submit."""
    source = jobs.folder / "alone"
    source.mkdir()
    (source / "train.py").write_text("print('alone')")
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(source)], stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            job_id = client.stdout.readline().strip()
            assert client.poll() is None
        finally:
            client.kill()
    assert client.returncode == -signal.SIGKILL
    done = jobs.wait(jobs.store.job(job_id), JobState.COMPLETED)
    assert done.attempt == 1
    assert jobs.log(done) == b"alone\n"
    assert starting.wake("local", home=local_target.home, workspace=jobs.workspace.path)


def rank_pid(root: Path) -> int:
    """Return the pid of rank 0 from what its host answers."""
    connection = hostclient.HostConnection.of(str(root))
    assert connection is not None
    status = asyncio.run(connection.status(timeout_s=DEADLINE_S))
    return int(status["ranks"][0]["pid"])
