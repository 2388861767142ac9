"""The cost of `run.log` for a script, and the values that a kill -9 loses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from benchmarks.figures import Figure, median
from benchmarks.head import own_folder

SCRIPT = """
import os, signal, sys, time
from rayjobs import Run
run = Run.get_context()
calls = int(sys.argv[1])
began = time.perf_counter()
for step in range(calls):
    run.log("loss", 0.25 + step, step=step)
print((time.perf_counter() - began) / calls * 1e6, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def measure(*, rounds: int, calls: int = 20_000) -> list[Figure]:
    """Log in a separate process, which kills itself right after its last call."""
    from rayjobs.injob.metrics_file import read_all

    taken_us, lost = [], 0
    for _ in range(rounds):
        with own_folder() as folder:
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(calls)],
                env={
                    **os.environ,
                    "RAYJOBS_RUN_ID": "bench",
                    "RAYJOBS_ATTEMPT": "1",
                    "RAYJOBS_METRICS_DIR": str(folder),
                },
                capture_output=True,
                text=True,
            )
            if done.returncode != -signal.SIGKILL:
                raise SystemExit(f"the script failed:\n{done.stderr[-3000:]}")
            taken_us.append(float(done.stdout))
            steps = {record.step for record in read_all(str(folder / "rank-0.jsonl"))}
            lost += len(set(range(calls)) - steps)
    return [
        Figure("run.log, one call", "µs", median(taken_us), most=20),
        Figure("values lost at kill -9", "", float(lost), most=0),
    ]
