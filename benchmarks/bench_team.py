"""A store in PostgreSQL under several clients: durable submits per second, from processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import Any

from benchmarks.bench_store import fsync_ms
from benchmarks.figures import Figure, median
from benchmarks.head import own_folder
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from tests.storage.postgres import Postgres

CLIENTS = 8


def measure(*, rounds: int, submits: int = 200) -> list[Figure]:
    """Let 8 processes submit at once; each call returns after its row is on the server's disk."""
    rates, worst_ms, syncs_ms = [], [], []
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
    ]


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
