"""A team's workspace: durable submits in PostgreSQL, and a first line through a server and S3."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_http import Server
from benchmarks.bench_store import fsync_ms
from benchmarks.figures import Figure, median
from benchmarks.head import IMPORTS_TORCH, make_source, own_folder, written_time
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.target import targets
from rayjobs.workspace import shared
from rayjobs.workspace.s3_address import S3Address
from tests.storage import server as s3
from tests.storage.postgres import Postgres

CLIENTS = 8
# A user's program, with nothing but the server's address. Each round changes the code, so that a
# new snapshot is uploaded.
CLIENT = """
import json, sys, time
from pathlib import Path
from rayjobs import Experiment, ScriptRunConfig, Workspace

experiment = Experiment(Workspace.from_config(), "bench")
source, outputs, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
text = (source / "train.py").read_text()
for number in range(rounds + 1):
    (source / "train.py").write_text(f"{text}# {number}\\n")
    output = outputs / str(number)
    began = time.time()
    run = experiment.submit(
        ScriptRunConfig(source_directory=str(source), script="train.py", arguments=[str(output)])
    )
    print(json.dumps([began, str(output)]), flush=True)
    run.wait_for_completion()
"""


def measure(*, rounds: int, submits: int = 200) -> list[Figure]:
    """Let 8 processes submit at once; each call returns after its row is on the server's disk."""
    rates, worst_ms, syncs_ms = [], [], []
    first_line = _first_line(rounds)
    server = Postgres(durable=True)
    try:
        syncs_ms.append(_sync())
        for _ in range(rounds):
            rate, slow_ms = _round(server.schema(), submits)
            rates.append(rate)
            worst_ms.append(slow_ms)
    finally:
        server.close()
    return [
        Figure(
            f"durable submits in PostgreSQL, {CLIENTS} clients", "1/s", median(rates), least=300
        ),
        Figure("one such submit, 95th percentile", "ms", median(worst_ms)),
        Figure("fsync of this disk", "ms", median(syncs_ms)),
        Figure(
            "submit → first line through HTTP, PostgreSQL and S3, imports torch",
            "s",
            first_line,
            most=0.25,
        ),
    ]


def _first_line(rounds: int) -> float:
    """Return the median time from a client's submit to the script's first line."""
    postgres = Postgres(durable=True)
    with own_folder() as folder:
        storage = s3.start_server(folder)
        keys = {"AWS_ACCESS_KEY_ID": s3.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": s3.SECRET_KEY}
        os.environ.update(keys)  # `own_folder` restores them
        try:
            targets.start_target(home=folder / "h")
            blobs = S3Address(s3.BUCKET, "team", storage.endpoint)
            with shared.create(folder / "w", postgres.url, blobs=blobs).workspace as workspace:
                server = Server(workspace, folder)
                try:
                    return _through(server, folder, rounds)
                finally:
                    server.process.kill()
                    server.process.wait()
        finally:
            targets.stop_target(force=True, home=folder / "h")
            storage.kill()
            postgres.close()


def _through(server: Server, folder: Path, rounds: int) -> float:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAYJOBS_", "AWS_"))
    }
    environment |= {
        "RAYJOBS_ADDRESS": f"http://127.0.0.1:{server.port}",
        "RAYJOBS_TOKEN": server.token("ada"),
        "RAYJOBS_HOME": str(folder / "c"),
    }
    source = make_source(folder, IMPORTS_TORCH)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(source), str(folder), str(rounds)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the client failed:\n{done.stderr[-3000:]}")
    submits = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    # The first one opens connections and loads modules.
    return median([written_time(Path(output)) - began for began, output in submits[1:]])


def _sync() -> float:
    with own_folder() as folder:
        return fsync_ms(folder)


def _round(address: str, submits: int) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Barrier(CLIENTS + 1), context.Event()
    taken = context.Queue()
    SqlStore(address).close()
    clients = [
        context.Process(target=_client, args=(address, submits, ready, go, taken))
        for _ in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    ready.wait()
    began = time.monotonic()
    go.set()
    found = sorted(one for _ in clients for one in taken.get())
    elapsed_s = time.monotonic() - began
    for client in clients:
        client.join()
    with contextlib.closing(SqlStore(address)) as store:
        assert len(store.jobs()) == CLIENTS * submits  # nothing lost, nothing doubled
    return CLIENTS * submits / elapsed_s, found[int(len(found) * 0.95)] * 1e3


def _client(address: str, submits: int, ready: Any, go: Any, taken: Any) -> None:
    with contextlib.closing(SqlStore(address, busy_timeout_s=60)) as store:
        spec = JobSpec(name="bench", script="train.py")
        new = NewJob(spec=spec, experiment="bench", snapshot="sha256:0", user="u")
        store.submit(new)
        _ = store.counts()
        ready.wait()
        go.wait()
        times = []
        for _ in range(submits - 1):
            began = time.monotonic()
            store.submit(new)
            times.append(time.monotonic() - began)
        taken.put(times)
