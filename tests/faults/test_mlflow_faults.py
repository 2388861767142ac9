"""MLflow's calls from many threads and ranks, and a server that is killed meanwhile.

Off switches: the journal of `tracking_of`, the lock of `Tracking.call`, the restart in
`MlflowPort.child_ended`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob import mlflow_server
from rayjobs.injob.metrics_file import read_all
from rayjobs.injob.mlflow_tracking import RunState, Sink, Tracking

THREADS, CALLS = 12, 25
DEADLINE_S = 120.0


class Endpoint:
    """An attempt's port and the process that serves it, as an attempt host keeps them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "metrics").mkdir(parents=True)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.uri = f"http://127.0.0.1:{self.listener.getsockname()[1]}/api/2.0/mlflow/"
        self.start()

    def start(self) -> None:
        environment = {
            "RAYJOBS_RUN_ID": "job",
            "RAYJOBS_ATTEMPT_DIR": str(self.root),
            "RAYJOBS_METRICS_DIR": str(self.root / "metrics"),
            mlflow_server.TOKEN: "token",
        }
        program = [sys.executable, "-S", "-E", mlflow_server.__file__]
        self.process = subprocess.Popen(
            program, stdin=self.listener.fileno(), env={**os.environ, **environment}
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Make a call as MLflow does: repeat it if the connection breaks."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            request = urllib.request.Request(self.uri + path, json.dumps(body).encode())
            request.add_header("Authorization", "Bearer token")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError:
                raise
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline

    def metrics(self) -> list[tuple[str | None, int | None]]:
        records = read_all(str(self.root / "metrics" / f"rank-{mlflow_server.RANK}.jsonl"))
        return [(one.name, one.step) for one in records if one.kind == "metric"]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path / "attempt")
    yield made
    made.kill()
    made.listener.close()


def log_from_many_threads(endpoint: Endpoint, *, kill_at: frozenset[int] = frozenset()) -> None:
    """Log from all threads; kill the server after each given number of answered calls."""
    errors: list[BaseException] = []
    answered = itertools.count(1)
    due = threading.Lock()

    def work(number: int) -> None:
        try:
            for step in range(CALLS):
                endpoint.post(
                    "runs/log-batch",
                    run_id="job",
                    metrics=[{"key": f"m{number}", "value": step, "step": step}],
                    params=[{"key": "shared", "value": "same"}],
                )
                if next(answered) in kill_at:
                    with due:
                        endpoint.kill()
                        endpoint.start()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_calls_from_many_threads_are_all_kept_once(endpoint: Endpoint) -> None:
    log_from_many_threads(endpoint)
    kept = endpoint.metrics()
    assert len(kept) == len(set(kept)) == THREADS * CALLS
    for number in range(THREADS):
        history = endpoint.post("metrics/get-history", run_id="job", metric_key=f"m{number}")
        assert [one["step"] for one in history["metrics"]] == list(range(CALLS))


class OneAtATime(Sink):
    """Records concurrent entries, and waits a moment for them."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.met = threading.Event()

    def metric(self, run: RunState, key: str, value: float, step: int) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside > 1:
            self.met.set()
        self.met.wait(0.2)
        self.inside -= 1


def test_calls_change_a_run_one_after_the_other() -> None:
    """A param is written once, and points keep their order: both need a check before the write."""
    sink = OneAtATime()
    tracking = Tracking(sink)
    tracking.add_run(RunState("job", "1", "job", "file:///nowhere"))
    body = {"run_id": "job", "key": "loss", "value": 1.0}
    threads = [
        threading.Thread(target=tracking.call, args=("POST", "runs/log-metric", body))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.most == 1


def test_a_server_that_is_killed_loses_nothing_that_it_answered(endpoint: Endpoint) -> None:
    log_from_many_threads(endpoint, kill_at=frozenset({40, 110, 200}))
    # A recorded call whose response was lost with the server is recorded again.
    assert set(endpoint.metrics()) == {
        (f"m{number}", step) for number in range(THREADS) for step in range(CALLS)
    }
    endpoint.kill()
    endpoint.start()
    run = endpoint.post("runs/get", run_id="job")["run"]
    assert run["data"]["params"] == [{"key": "shared", "value": "same"}]
    assert {one["key"] for one in run["data"]["metrics"]} == {f"m{n}" for n in range(THREADS)}


def test_damaged_lines_of_the_journal_are_skipped(endpoint: Endpoint) -> None:
    endpoint.post("runs/set-tag", run_id="job", key="a", value="1")
    endpoint.kill()
    with (endpoint.root / mlflow_server.JOURNAL).open("ab") as journal:
        journal.write(b'{"k":"dropped","n":1}\n\xff\n[1]\n{"method":"POST","path":"runs/set')
    endpoint.start()
    endpoint.post("runs/set-tag", run_id="job", key="b", value="2")  # after half a line
    endpoint.kill()
    endpoint.start()
    tags = endpoint.post("runs/get", run_id="job")["run"]["data"]["tags"]
    assert {"a": "1", "b": "2"}.items() <= {one["key"]: one["value"] for one in tags}.items()


def test_the_body_of_a_client_without_the_token_is_not_read(endpoint: Endpoint) -> None:
    with socket.create_connection(endpoint.listener.getsockname(), timeout=60) as client:
        announced = mlflow_server.MOST_BYTES  # of which no byte arrives
        head = f"POST /api/2.0/mlflow/runs/get HTTP/1.1\r\nHost: a\r\nContent-Length: {announced}"
        client.sendall(f"{head}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 403 ")


def test_connections_above_the_limit_get_a_retry_response(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_server, "MOST_CONNECTIONS", 1)
    environment = {
        "RAYJOBS_RUN_ID": "job",
        "RAYJOBS_ATTEMPT_DIR": str(endpoint.root),
        "RAYJOBS_METRICS_DIR": str(endpoint.root / "metrics"),
    }
    server = mlflow_server.TrackingServer(mlflow_server.tracking_of(environment), "token")
    server.start()
    address = ("127.0.0.1", int(server.uri.rpartition(":")[2]))
    ask = b"GET /health HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer token\r\n\r\n"
    try:
        with socket.create_connection(address, timeout=60) as first:
            first.sendall(ask)
            assert first.recv(100).startswith(b"HTTP/1.1 200 ")
            with socket.create_connection(address, timeout=60) as second:
                assert second.recv(100).startswith(b"HTTP/1.1 503 ")
        deadline = time.monotonic() + DEADLINE_S
        while True:  # until the first connection is closed
            third = socket.create_connection(address, timeout=60)
            with third, suppress(ConnectionError):  # closed before it was read
                third.sendall(ask)
                if third.recv(100).startswith(b"HTTP/1.1 200 "):
                    break
            assert time.monotonic() < deadline
    finally:
        server.close()
