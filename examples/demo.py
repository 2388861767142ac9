"""The demo of ``make demo``: one job on real digits, typed as a user would type it.

Each line that begins with ``$`` is a command that can be typed by hand; everything else is what
it prints. Results stay in ``build/demo/``; nothing keeps running.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "demo"
COMMAND = Path(sys.executable).with_name("rayjobs")


def tell(text: str) -> None:
    """Print a line of the story."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)


def type_(*words: str, show: bool = True) -> str:
    """Run a command of rayjobs and show it; return what it printed if it is not shown."""
    if show:
        print(f"$ rayjobs {shlex.join(words)}", flush=True)
    done = subprocess.run(
        [str(COMMAND), *words],
        cwd=ROOT,
        check=False,
        text=True,
        stdout=None if show else subprocess.PIPE,
    )
    if done.returncode != 0:
        raise SystemExit(f"rayjobs {shlex.join(words)} exited with {done.returncode}")
    return done.stdout or ""


def main() -> None:
    """Tell the story."""
    began = time.monotonic()
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    # A home of its own: the demo meets no job of yours, and stops only what it started.
    home = Path(tempfile.mkdtemp(prefix="rj-demo-"))
    os.environ["RAYJOBS_HOME"] = str(home)
    os.environ["RAYJOBS_WORKSPACE"] = str(RESULTS / "workspace")
    try:
        story()
    finally:
        tell("Stop the target: nothing is left running")
        subprocess.run([str(COMMAND), "target", "stop", "local", "--force"], cwd=ROOT, check=False)
        shutil.rmtree(home, ignore_errors=True)
    print(f"\nThe demo took {time.monotonic() - began:.0f} s. Results: {RESULTS}", flush=True)


def story() -> None:
    """Submit, watch, look at what is stored."""
    tell("Train a CNN on 4,000 real handwritten digits, as a job on Ray")
    job = type_("submit", "examples/mnist/train.py", "-q", "--", "--epochs", "3", show=False)
    job = job.strip()
    print(f"$ rayjobs submit examples/mnist/train.py -q -- --epochs 3\n{job}", flush=True)
    tell("Its lines, live")
    type_("logs", "-f", job)
    type_("wait", job)
    tell("What is known of it")
    type_("show", job)
    tell("What it measured")
    type_("metrics", job, "--plot", str(RESULTS / "metrics.png"))
    tell("What it stored")
    type_("files", job)
    type_("download", job, "--output", str(RESULTS / "files"))
    metrics = json.loads(type_("metrics", job, "--json", show=False))
    accuracy = final_value(metrics, "accuracy")
    print(f"\naccuracy on 1,000 digits it has not seen: {accuracy:.3f}", flush=True)
    if not accuracy > 0.9:
        raise SystemExit(f"accuracy {accuracy} is not what this network reaches")
    if not (RESULTS / "metrics.png").stat().st_size:
        raise SystemExit("the plot is empty")


def final_value(metrics: object, name: str) -> float:
    """Return the last value of a metric from what ``metrics --json`` printed."""
    assert isinstance(metrics, dict)
    values = metrics["metrics"][name] if "metrics" in metrics else metrics[name]
    return float(values[-1] if isinstance(values, list) else values)


if __name__ == "__main__":
    main()
