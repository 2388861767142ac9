"""Clients killed during a submit: acknowledged jobs exist, and none exists twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore

# The maximum time until a client is killed.
LONGEST_S = 0.08


def client(path: Path, number: int, out_pipe: int) -> None:
    """Submit jobs in sequence, each twice under one key as an uncertain client does."""
    store = SqlStore(path)
    for at in itertools.count():
        key = f"{number}-{at}"
        for _ in range(2):
            job, _new = store.submit(
                NewJob(
                    spec=JobSpec(script="train.py", name="t"),
                    experiment="t",
                    snapshot=None,
                    user="u",
                    idempotency_key=key,
                )
            )
            os.write(out_pipe, f"{key} {job.id}\n".encode())


def play(folder: Path, rounds: int) -> None:
    path = folder / "store.db"
    store = SqlStore(path)
    draw = random.Random(1)
    acknowledged: dict[str, set[str]] = {}
    for number in range(rounds):
        listen, out_pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(listen)
                client(path, number, out_pipe)
            except BaseException:
                traceback.print_exc()  # why a client ended before it was killed
            finally:
                os._exit(1)
        os.close(out_pipe)
        received = b""
        if number % 2:  # every other one has received the id of a job
            received = os.read(listen, 4096)
        time.sleep(draw.random() * LONGEST_S)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert status == signal.SIGKILL  # it ends for no other reason
        with os.fdopen(listen, "rb") as rest:
            received += rest.read()
        # Lines are complete: a write shorter than a page is atomic on a pipe.
        for line in received.decode().splitlines():
            key, job = line.split()
            acknowledged.setdefault(key, set()).add(job)
    with store._database.read() as connection:
        found = connection.execute("SELECT idempotency_key, id FROM jobs").fetchall()
        damage = connection.execute("PRAGMA integrity_check").fetchall()
        events = Counter(row["job"] for row in connection.execute("SELECT job FROM events"))
    there = {row["idempotency_key"]: row["id"] for row in found}
    assert len(there) == len(found)  # none twice
    lost = [key for key, jobs in acknowledged.items() if jobs != {there.get(key)}]
    assert not lost
    assert [tuple(row) for row in damage] == [("ok",)]
    assert events == dict.fromkeys(there.values(), 1)  # each job complete, with its first event
    assert len(acknowledged) >= rounds / 2
    store.close()


def test_fifty_killed_clients_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    play(tmp_path, 50)


@pytest.mark.slow
def test_thousand_killed_clients_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    play(tmp_path, 1000)
