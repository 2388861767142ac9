"""`rayjobs exec` and `rayjobs port` on real jobs, on the target's machine and through a server."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.server.app import make_app
from rayjobs.workspace import users
from rayjobs.workspace.users import Role
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

WAITS = """
import os, time
os.environ["SET_BY_SCRIPT"] = "1"
open("here.txt", "w").write("of the rank")
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.02)
"""
LISTENS = """
import os, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def echo(one):
    while data := one.recv(65536):
        one.sendall(data.upper())
    one.close()
def serve():
    while True:
        one, _ = listener.accept()
        threading.Thread(target=echo, args=(one,), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
print("port", listener.getsockname()[1], flush=True)
while not os.path.exists("stop"):
    time.sleep(0.02)
"""
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def running(jobs: Jobs, script: str, **spec: object) -> Job:
    job = jobs.submit(script, **spec)
    jobs.wait(job, JobState.RUNNING)
    jobs.wait_for_output(job, b"\n")
    return job


@pytest.fixture(params=["here", "http"])
def variables(request: pytest.FixtureRequest, jobs: Jobs) -> Iterator[dict[str, str]]:
    """The variables of a client on the target's machine, and of a server's client."""
    if request.param == "here":
        yield {"RAYJOBS_WORKSPACE": str(jobs.workspace.path)}
        return
    with serving(jobs) as address:
        _, token = users.add(jobs.store, job_user(), Role.SUBMITTER, by="root")
        yield {"RAYJOBS_ADDRESS": address, "RAYJOBS_TOKEN": token, "RAYJOBS_WORKSPACE": ""}


def job_user() -> str:
    from rayjobs.core.users import user_name

    return user_name()


class serving:
    """A server of the workspace in this process."""

    def __init__(self, jobs: Jobs) -> None:
        app = make_app(jobs.workspace)
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
        )
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        until(lambda: self._server.started, "the server listens")
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_error: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def command(variables: dict[str, str], *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, **variables}
    return [sys.executable, "-m", "rayjobs", *arguments], environment


@pytest.fixture
def run(variables: dict[str, str]) -> Run:
    def do(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        program, environment = command(variables, *arguments)
        return subprocess.run(
            program, env=environment, input=given, capture_output=True, timeout=100
        )

    return do


def test_a_command_has_the_ranks_folder_and_environment_and_its_code_comes_back(
    jobs: Jobs, run: Run
) -> None:
    job = running(jobs, WAITS, environment_variables={"OF_JOB": "yes"})
    shell = 'cat here.txt; echo "$OF_JOB $RAYJOBS_RUN_ID" >&2; cat; exit 7'
    done = run("exec", job.id, "--", "sh", "-c", shell, given=b"\0bytes\xff" * 100_000)
    assert done.returncode == 7, done.stderr
    assert done.stdout == b"of the rank" + b"\0bytes\xff" * 100_000
    assert done.stderr == f"yes {job.id}\n".encode()
    run("exec", job.id, "--", "touch", "stop")  # the attempt's end may come before its own
    jobs.wait(job, JobState.COMPLETED)
    jobs.nothing_left(job)


def test_session_ends_with_the_attempt_without_delaying_it(
    jobs: Jobs, variables: dict[str, str]
) -> None:
    job = running(jobs, WAITS)
    program, environment = command(
        variables, "exec", job.id, "--", "sh", "-c", "trap '' TERM HUP; echo on; sleep 1000"
    )
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"on\n"
        (Path(jobs.root(job)) / "work" / "stop").touch()
        assert session.wait(60) == 128 + signal.SIGKILL
    jobs.wait(job, JobState.COMPLETED)
    jobs.nothing_left(job)


def test_a_command_whose_client_is_interrupted_is_ended(
    jobs: Jobs, variables: dict[str, str]
) -> None:
    job = running(jobs, WAITS)
    program, environment = command(
        variables, "exec", job.id, "--", "sh", "-c", "echo $$; sleep 1000"
    )
    session = subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert session.stdout is not None and session.stdin is not None
    session.stdout.readline()
    session.send_signal(signal.SIGINT)
    assert session.wait(60) == 130
    session.stdout.close()
    session.stdin.close()
    look = command(variables, "exec", job.id, "--", "sh", "-c", "pgrep -f 'sleep 100[0]' || true")

    def is_gone() -> bool:
        found = subprocess.run(
            look[0], env=look[1], stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        return not found.stdout

    until(is_gone, "the command is ended")
    jobs.store.request_cancel(job.id, by="test")
    jobs.wait(job)


def test_a_shell_at_a_terminal(jobs: Jobs, variables: dict[str, str]) -> None:
    job = running(jobs, WAITS)
    program, environment = command(variables, "exec", job.id, "--", "sh")
    master, slave = pty.openpty()
    session = subprocess.Popen(
        program, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    shown = os.read(master, 4096)  # its prompt: earlier keys belong to this terminal
    os.write(master, b"tty >/dev/null && echo terminal=$((6*7)); stty size; exit 5\n")
    while True:
        try:
            shown += os.read(master, 4096)
        except OSError:
            break
    os.close(master)
    assert session.wait(60) == 5, shown
    assert b"terminal=42" in shown
    jobs.store.request_cancel(job.id, by="test")
    jobs.wait(job)


def test_only_ports_of_the_job_are_forwarded(jobs: Jobs, variables: dict[str, str]) -> None:
    job = running(jobs, LISTENS)
    number = int((jobs.root(job) / "log" / "driver_0.log").read_bytes().split()[1])
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        other = foreign.getsockname()[1]
        assert _through(variables, job, other, b"x") == b""
    data = os.urandom(300_000).hex().encode()
    assert _through(variables, job, number, data) == data.upper()
    jobs.store.request_cancel(job.id, by="test")
    jobs.wait(job)


def _through(variables: dict[str, str], job: Job, number: int, data: bytes) -> bytes:
    """Return the response of a port of the job to data, through a tunnel."""
    program, environment = command(variables, "port", job.id, f"0:{number}")
    with subprocess.Popen(
        program, env={**environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE
    ) as tunnel:
        assert tunnel.stdout is not None
        here = int(tunnel.stdout.readline().split()[0].rpartition(b":")[2])
        try:
            with socket.create_connection(("127.0.0.1", here), timeout=60) as client:
                sender = threading.Thread(target=_send, args=(client, data))
                sender.start()
                answer = b""
                while len(answer) < len(data):
                    try:
                        part = client.recv(65536)
                    except ConnectionError:
                        break
                    if not part:
                        break
                    answer += part
                sender.join()
        finally:
            tunnel.send_signal(signal.SIGINT)
    return answer


def _send(client: socket.socket, data: bytes) -> None:
    try:
        client.sendall(data)
    except OSError:
        return


def test_another_users_job_is_not_reached(jobs: Jobs) -> None:
    job = running(jobs, WAITS)
    with serving(jobs) as address:
        for role, code in ((Role.SUBMITTER, 2), (Role.VIEWER, 2), (Role.ADMIN, 0)):
            _, token = users.add(jobs.store, f"eve-{role.name.lower()}", role, by="root")
            variables = {
                "RAYJOBS_ADDRESS": address,
                "RAYJOBS_TOKEN": token,
                "RAYJOBS_WORKSPACE": "",
            }
            program, environment = command(variables, "exec", job.id, "--", "true")
            done = subprocess.run(
                program, env=environment, stdin=subprocess.DEVNULL, capture_output=True
            )
            assert done.returncode == code, (role, done.stderr)
    jobs.store.request_cancel(job.id, by="test")
    jobs.wait(job)


def test_failing_session_reports_the_reason(jobs: Jobs, run: Run) -> None:
    job = running(jobs, WAITS)
    assert run("exec", job.id, "--", "no-such-program").returncode == 127
    far = run("exec", job.id, "--rank", "3", "--", "true")
    assert far.returncode == 3 and b"no running rank 3" in far.stderr
    jobs.store.request_cancel(job.id, by="test")
    jobs.wait(job)
    over = run("exec", job.id, "--", "true")
    assert over.returncode == 2 and b"has ended" in over.stderr
