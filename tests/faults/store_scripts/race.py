"""Start and hold the same jobs from two processes: PATH JOBS; prints what each process won."""

from __future__ import annotations

import json
import sys

from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from tests.faults.store_scripts.forks import at_once

JOBS = [f"job_{number}" for number in range(int(sys.argv[2]))]


def prepare(_: int) -> None:
    store = SqlStore(sys.argv[1], busy_timeout_s=100)
    for job in JOBS:
        store.submit(
            NewJob(spec=JobSpec(script="train.py"), experiment="x", snapshot=None, user="", id=job)
        )
        store.add_allocation(f"rj-{job}", target="local", shape={"nodes": 1})
        store.place_allocation(f"rj-{job}", nodes=["n"], gpus=[[]])
    store.close()


def race(number: int) -> dict[str, list[str]]:
    store = SqlStore(sys.argv[1], busy_timeout_s=100)
    started = [job for job in JOBS if store.start(job, attempt=0, allocation=f"rj-{job}-{number}")]
    held = [job for job in JOBS if store.hold_allocation(f"rj-{job}", job=job, attempt=number)]
    store.close()
    return {"started": started, "held": held}


at_once(1, prepare)
print(json.dumps(at_once(2, race)))
