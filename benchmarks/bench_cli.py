"""`rayjobs submit -d` as a command, beside `ray job submit --no-wait`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.head import TRIVIAL, Head


def measure(head: Head, *, rounds: int) -> list[Figure]:
    """Run both commands in turn."""
    source = head.source(TRIVIAL)
    url = head.peer()._address
    ours, peers = [], []
    for _ in range(rounds):
        ours.append(_run([sys.executable, "-m", "rayjobs", "submit", "-d", "train.py"], source))
        program = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
        entry = [sys.executable, str(source / "train.py")]
        peers.append(_run([*program, "--address", url, "--no-wait", "--", *entry], source))
    head.wait(list(head.workspace.store.jobs()))
    return [
        Figure(
            "submit -d as a command",
            "s",
            median(ours),
            median(peers),
            "ray job submit --no-wait",
            most=0.5,
        )
    ]


def _run(command: list[str], folder: Path) -> float:
    environment = {**os.environ}
    # Compiled modules are kept, as for everybody but some build machines.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return seconds
