"""Durable submits per second from one client, and the disk's fsync latency."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.head import TRIVIAL, make_source, own_folder
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import submit
from rayjobs.workspace.folder import open_workspace

SYNCS = 50


def measure(*, rounds: int, submits: int = 200) -> list[Figure]:
    """Submit repeatedly without waking a target; each call returns after its row is on disk."""
    rates, syncs_ms = [], []
    for _ in range(rounds):
        with own_folder() as folder, open_workspace(folder / "w") as workspace:
            source = make_source(folder, TRIVIAL)
            spec = JobSpec(name="bench", script="train.py")
            submit(workspace, spec, source=source, wake=False)
            syncs_ms.append(fsync_ms(folder))
            began = time.monotonic()
            for _ in range(submits):
                submit(workspace, spec, source=source, wake=False)
            rates.append(submits / (time.monotonic() - began))
            assert len(workspace.store.jobs()) == submits + 1
    return [
        Figure("durable submits, one client", "1/s", median(rates), least=200),
        Figure("fsync of this disk", "ms", median(syncs_ms)),
    ]


def fsync_ms(folder: Path) -> float:
    """Return how long one small appended write takes to reach the disk, in milliseconds."""
    taken = []
    descriptor = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(SYNCS):
            began = time.monotonic()
            os.write(descriptor, b"x" * 4096)
            os.fsync(descriptor)
            taken.append((time.monotonic() - began) * 1e3)
    finally:
        os.close(descriptor)
    return median(taken)
