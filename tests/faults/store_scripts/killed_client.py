"""Kill a submitting client repeatedly: PATH ROUNDS; prints {key: acknowledged id}."""

from __future__ import annotations

import json
import os
import random
import signal
import sys

from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore


def submit_for_ever(round_number: int, pipe: int) -> None:
    store = SqlStore(sys.argv[1], busy_timeout_s=100)
    number = 0
    while True:
        key = f"{round_number}-{number}"
        job, _ = store.submit(
            NewJob(
                spec=JobSpec(script="train.py"),
                experiment="mnist",
                snapshot=None,
                user="ada",
                idempotency_key=key,
            )
        )
        os.write(pipe, f"{key} {job.id}\n".encode())
        number += 1


acknowledged: dict[str, str] = {}
chance = random.Random(1)
for round_number in range(int(sys.argv[2])):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            submit_for_ever(round_number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        for _ in range(chance.randint(1, 12)):
            key, job = pipe.readline().split()
            acknowledged[key] = job
        # The child is somewhere in its next submit.
        os.kill(child, signal.SIGKILL)
        for line in pipe:
            if line.endswith("\n"):
                key, job = line.split()
                acknowledged[key] = job
    os.waitpid(child, 0)
print(json.dumps(acknowledged))
