"""`rayjobs serve` under a team's load: lists, followers, simultaneous submits, and memory growth.

`python -m benchmarks.bench_http --requests 200000` measures the memory over that many requests.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import Figure, median, table
from benchmarks.head import own_folder, until
from rayjobs.core.ids import token
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import plain, users
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.shared import create_in
from rayjobs.workspace.users import Role
from tests.storage.postgres import Postgres
from tests.unit.results.played import begin

FOLLOWERS, CLIENTS, WAITING = 200, 100, 10
SHARE_S = 120.0
LAST = b"the last line\n"
# Lists whose answers grow with the jobs of a workspace.
LISTS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("POST", "/v1/jobs:list", {}),
    ("POST", "/v1/jobs:list", {"which": {"states": ["Queued"], "members": False}}),
    ("POST", "/v1/jobs:read", {}),
    ("POST", "/v1/jobs:arguments", {"serials": list(range(1, 2001))}),
    ("POST", "/v1/jobs:last-metrics", {"names": ["loss"]}),
    ("GET", "/v1/job-counts", None),
    ("GET", "/v1/metric-names", None),
    ("GET", "/v1/reports/queue", None),
    ("GET", "/v1/reports/usage", None),
    ("GET", "/v1/targets/local/live", None),
    ("GET", "/v1/targets/local/durations", None),
    ("GET", "/v1/sweeps", None),
    ("GET", "/v1/pipelines", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/datasets", None),
    ("GET", "/v1/datastores", None),
    ("GET", "/v1/environments", None),
)


class Server:
    """`rayjobs serve` as a process, and tokens for its users."""

    def __init__(self, workspace: OpenWorkspace, folder: Path) -> None:
        self.workspace = workspace
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "rayjobs", "serve", "--workspace", str(workspace.path)]
        with (folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=log
            )
        until(self._listens, "the server listens")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def token(self, user: str) -> str:
        return users.add(self.workspace.store, user, Role.SUBMITTER, by="root")[1]

    def memory_mib(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20


class Client:
    """One connection of one user."""

    def __init__(self, server: Server, text: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SHARE_S)
        self._headers = {"Authorization": f"Bearer {text}"}

    def ask(self, verb: str, path: str, body: Any = None) -> tuple[bytes, float]:
        """Return the body of the answer, and the server's time in ms."""
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(verb, path, body=data, headers=self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{verb} {path}: {answer.status} {text[:300]!r}")
        spent = (answer.getheader("Server-Timing") or "dur=0").rpartition("dur=")[2]
        return text, float(spent)

    def close(self) -> None:
        self._connection.close()


def measure(
    *, rounds: int, jobs: int = 10_000, requests: int = 2_000, stores: tuple[str, ...] = ()
) -> list[Figure]:
    """Measure with the records in SQLite, and in PostgreSQL."""
    figures = []
    for kind in stores or ("SQLite", "PostgreSQL"):
        with own_folder() as folder, _workspace(kind, folder) as workspace:
            (folder / "h").mkdir(exist_ok=True)
            _fill(workspace, jobs, folder)
            server = Server(workspace, folder)
            try:
                figures += _measured(server, folder, kind, rounds, jobs, requests)
            finally:
                server.process.kill()
                server.process.wait()
    return figures


def _measured(
    server: Server, folder: Path, kind: str, rounds: int, jobs: int, requests: int
) -> list[Figure]:
    listed = [_ls(server, folder) for _ in range(rounds)]
    name, slowest = _lists(server, rounds)
    submits = [_submits(server) for _ in range(rounds)]
    with _followed(server, folder / "one", 1):
        with_one_log = [_submits(server) for _ in range(rounds)]
    with _followed(server, folder / "many", FOLLOWERS):
        with_many_logs = [_submits(server) for _ in range(rounds)]
    arrived, growth = _followers(server, folder), _memory(server, requests)
    where = f"{jobs} jobs, {kind}"
    return [
        Figure(f"ls over HTTP as a command, {where}", "s", median(listed), most=0.4),
        Figure(f"server's time for the slowest list ({name}), {where}", "ms", slowest, most=100),
        Figure(
            f"a submit of {CLIENTS} clients at once, 95th percentile, {where}",
            "s",
            median(submits),
            most=0.5,
        ),
        Figure(
            f"the same while {FOLLOWERS} clients follow one log, {where}",
            "s",
            median(with_one_log),
            most=0.5,
        ),
        Figure(
            f"the same while {FOLLOWERS} clients follow {FOLLOWERS} logs, {where}",
            "s",
            median(with_many_logs),
            most=0.5,
        ),
        Figure(f"a line to {FOLLOWERS} followers, 95th percentile, {where}", "s", arrived),
        Figure(
            f"the server's memory grows over the later half of {requests} requests, {where}",
            "MiB",
            growth,
        ),
    ]


@contextmanager
def _workspace(kind: str, folder: Path) -> Iterator[OpenWorkspace]:
    if kind == "SQLite":
        with open_workspace(folder / "w", create=True) as workspace:
            yield workspace
        return
    server = Postgres(durable=True)
    try:
        with create_in(folder / "w", server.url) as workspace:
            yield workspace
    finally:
        server.close()


def _fill(workspace: OpenWorkspace, jobs: int, folder: Path) -> None:
    """Submit the jobs; all but a few have ended."""
    for number in range(jobs):
        spec = JobSpec(script="train.py", name="mnist", arguments=("--seed", str(number)))
        workspace.store.submit(NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada"))
    end = "UPDATE jobs SET state = 'Canceled', ended_at = submitted_at WHERE serial <= "
    database = folder / "w" / "store.db"
    if database.exists():
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(end + str(jobs - WAITING))
        return
    import psycopg

    from rayjobs.store.postgres_address import parsed
    from rayjobs.workspace.folder import store_address

    address, schema = parsed(str(store_address(workspace.path)))[:2]
    with psycopg.connect(address) as server:
        server.execute(f'SET search_path TO "{schema}"')
        server.execute(end + str(jobs - WAITING))


def _ls(server: Server, folder: Path) -> float:
    address = f"http://127.0.0.1:{server.port}"
    environment = {**os.environ, "RAYJOBS_ADDRESS": address, "RAYJOBS_HOME": str(folder / "c")}
    environment["RAYJOBS_TOKEN"] = server.token("ada")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rayjobs", "ls"], env=environment, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    if done.returncode or "mnist" not in done.stdout:
        raise SystemExit(f"rayjobs ls failed:\n{done.stderr[-3000:]}")
    return seconds


def _lists(server: Server, rounds: int) -> tuple[str, float]:
    """Return the list that took the server longest, and its time."""
    client = Client(server, server.token("ada"))
    found: dict[str, float] = {}
    for verb, path, body in LISTS:
        times = [client.ask(verb, path, body)[1] for _ in range(rounds)]
        found[path] = max(median(times), found.get(path, 0.0))
    client.close()
    slowest = max(found, key=lambda path: found[path])
    return slowest.removeprefix("/v1/"), found[slowest]


def _submits(server: Server) -> float:
    """Have the clients submit at the same moment; check that nothing is lost or duplicated."""
    spec = plain.encoder(JobSpec)(JobSpec(name="bench", command="true"))
    before = sum(server.workspace.store.counts().values())
    clients = [Client(server, server.token(f"user{number}")) for number in range(CLIENTS)]
    for client in clients:
        client.ask("GET", "/v1/user")  # connected, and the token is known
    times: list[float] = []
    ids: set[str] = set()
    go = threading.Barrier(CLIENTS)

    def submit(client: Client) -> None:
        key = f"bench-{token(8)}"
        new = {"spec": spec, "experiment": "bench", "snapshot": None, "idempotency_key": key}
        go.wait()
        began = time.monotonic()
        text, _ = client.ask("POST", "/v1/jobs", {"new": new})
        times.append(time.monotonic() - began)
        ids.add(json.loads(text)[0]["id"])

    _at_once([partial(submit, client) for client in clients])
    for client in clients:
        client.close()
    assert len(ids) == CLIENTS
    assert sum(server.workspace.store.counts().values()) == before + CLIENTS
    return sorted(times)[int(0.95 * CLIENTS)]


@contextmanager
def _followed(server: Server, folder: Path, logs: int) -> Iterator[None]:
    """Have a process follow growing logs; check that every follower gets every byte."""
    folder.mkdir()
    followed, files = [], []
    for number in range(logs):
        new = NewJob(
            spec=JobSpec(name="followed", command="true"),
            experiment="bench",
            snapshot=None,
            user="ada",
        )
        job, _ = server.workspace.store.submit(new)
        files.append(begin(server.workspace, job, folder / f"a{number}").driver_log(0))
        files[-1].write_bytes(b"first\n")
        followed.append(job.id)
    texts = [server.token(f"reader-{logs}-{number}") for number in range(10)]
    pairs = [(followed[number % logs], texts[number % 10]) for number in range(FOLLOWERS)]
    context = multiprocessing.get_context("spawn")
    ready, found = context.Event(), context.Queue()
    process = context.Process(target=_follow_all, args=(server.port, pairs, ready, found))
    process.start()
    assert ready.wait(SHARE_S)
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(files, stop))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
    written = {job: file.read_bytes() for job, file in zip(followed, files, strict=True)}
    assert found.get(timeout=SHARE_S) == [written[job] for job, _ in pairs]
    process.join()


def _write(files: list[Path], stop: threading.Event) -> None:
    """Write lines to logs, each at 10 lines/s or at its share of 100 lines/s; then a last one."""
    number = 0
    while not stop.wait(max(0.1, len(files) / 100)):
        number += 1
        for file in files:
            with file.open("ab") as log:
                log.write(b"step %07d loss 0.1234\n" % number)
    for file in files:
        with file.open("ab") as log:
            log.write(LAST)


def _follow_all(
    port: int, followed: list[tuple[str, str]], ready: Event, found: Queue[list[bytes]]
) -> None:
    """Follow jobs, each with a token; `found` gets what each follower was sent."""
    seen, begun = [b""] * len(followed), threading.Barrier(len(followed) + 1)

    def follow(number: int) -> None:
        job, text = followed[number]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SHARE_S)
        headers = {"Authorization": f"Bearer {text}"}
        connection.request("GET", f"/v1/jobs/{job}/log-stream", headers=headers)
        answer = connection.getresponse()
        while not seen[number]:
            seen[number] += base64.b64decode(json.loads(answer.readline())["data"])
        begun.wait()
        while not seen[number].endswith(LAST):
            seen[number] += base64.b64decode(json.loads(answer.readline())["data"])
        connection.close()

    def all_begun() -> None:
        begun.wait()
        ready.set()

    _at_once([all_begun, *(partial(follow, number) for number in range(len(followed)))])
    found.put(seen)


def _followers(server: Server, folder: Path) -> float:
    """Have all clients follow one job; return how long a line takes to reach 95 % of them."""
    spec = JobSpec(name="followed", command="true")
    new = NewJob(spec=spec, experiment="bench", snapshot=None, user="ada")
    job, _ = server.workspace.store.submit(new)
    log = begin(server.workspace, job, folder / "a1").driver_log(0)
    log.write_bytes(b"first\n")
    texts = [server.token(f"reader{number}") for number in range(10)]
    ready, late = threading.Barrier(FOLLOWERS + 1), [0.0] * FOLLOWERS
    written: list[float] = []

    def follow(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SHARE_S)
        headers = {"Authorization": f"Bearer {texts[number % len(texts)]}"}
        connection.request("GET", f"/v1/jobs/{job.id}/log-stream", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        seen = b""
        while seen != b"first\n":
            seen += base64.b64decode(json.loads(answer.readline())["data"])
        ready.wait()
        while seen != b"first\nsecond\n":
            seen += base64.b64decode(json.loads(answer.readline())["data"])
        late[number] = time.monotonic() - written[0]
        connection.close()

    def write() -> None:
        ready.wait()
        time.sleep(1.0)
        written.append(time.monotonic())
        with log.open("ab") as file:
            file.write(b"second\n")

    _at_once([write, *(partial(follow, number) for number in range(FOLLOWERS))])
    return sorted(late)[int(0.95 * FOLLOWERS)]


def _memory(server: Server, requests: int) -> float:
    """Return by how much the server's memory grows over the second half of the requests.

    Caches and the allocator's pools fill over some 60,000 requests.
    """
    texts = [server.token(f"many{number}") for number in range(16)]
    calls = [(verb, path, body) for verb, path, body in LISTS if "jobs:read" not in path]
    small = {"which": {"limit": 20}}

    def ask(text: str, number: int) -> None:
        client = Client(server, text)
        for each in range(number):
            # Most requests of clients are small; each hundredth is a long list.
            verb, path, body = (
                calls[each // 100 % len(calls)]
                if each % 100 == 99
                else ("POST", "/v1/jobs:list", small)
            )
            try:
                client.ask(verb, path, body)
            except SystemExit as error:
                if " 429 " not in str(error):
                    raise
                time.sleep(0.5)
        client.close()

    def all_of(number: int) -> None:
        each = -(-number // len(texts))
        _at_once([partial(ask, text, each) for text in texts])

    all_of(requests // 2)
    before = server.memory_mib()
    all_of(requests - requests // 2)
    return server.memory_mib() - before


def _at_once(calls: list[Callable[[], None]]) -> None:
    """Run the calls in threads; raise what one of them raised."""
    failures: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def main() -> None:
    """Run only this benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--store", choices=("SQLite", "PostgreSQL"), action="append", default=[])
    given = parser.parse_args()
    print(
        table(
            measure(
                rounds=given.rounds,
                jobs=given.jobs,
                requests=given.requests,
                stores=tuple(given.store),
            )
        )
    )


if __name__ == "__main__":
    main()
