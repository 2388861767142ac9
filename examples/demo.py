"""The demo of ``make demo``: data in, a job that resumes, a sweep, the best model registered.

Each line that begins with ``$`` is a command that can be typed by hand; everything else is what
it prints. Results stay in ``demo-output/``; nothing keeps running.

    python examples/demo.py [--epochs 5] [--trials 12] [--output demo-output]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("rayjobs")
PATIENCE_S = 300.0  # a wait that takes longer is a fault, not slowness

SWEEP = ROOT / "examples" / "sweep" / "sweep.yaml"


def tell(text: str) -> None:
    """Print a line of the story."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)


def type_(*words: str) -> None:
    """Run a command of rayjobs as a user would type it."""
    print(f"$ rayjobs {shlex.join(words)}", flush=True)
    done = subprocess.run([str(COMMAND), *words], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"rayjobs {shlex.join(words)} exited with {done.returncode}")


def ask(*words: str) -> str:
    """Return what a command prints."""
    return subprocess.run(
        [str(COMMAND), *words], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()


def main() -> None:
    """Tell the story, and leave nothing running whatever happens."""
    parser = argparse.ArgumentParser(description="Data in, a job that resumes, a sweep, a model.")
    parser.add_argument("--epochs", type=int, default=5, help="of the job that resumes; 3 or more")
    parser.add_argument("--trials", type=int, default=12, help="of the sweep")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-output", help="made anew")
    given = parser.parse_args()
    if given.epochs < 3 or given.trials < 1:
        parser.error("the job is killed in its third epoch, and a sweep has a trial at least")
    results: Path = given.output.resolve()
    began = time.monotonic()
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    # A home of its own: the demo meets no job of yours, and stops only what it started.
    home = Path(tempfile.mkdtemp(prefix="rj-demo-"))
    os.environ["RAYJOBS_HOME"] = str(home)
    os.environ["RAYJOBS_WORKSPACE"] = str(results / "workspace")
    try:
        data(results)
        training(results, given.epochs)
        sweep(results, given.trials)
    finally:
        tell("Stop the target: nothing is left running")
        subprocess.run([str(COMMAND), "target", "stop", "local", "--force"], cwd=ROOT, check=False)
        shutil.rmtree(home, ignore_errors=True)
    print(f"\nThe demo took {time.monotonic() - began:.0f} s. Results: {results}", flush=True)


def data(results: Path) -> None:
    """Store 5,000 real digits and give them a name and a version."""
    tell("1. Data: 5,000 real handwritten digits become version 1 of a dataset")
    folder = results / "digits"
    prepare = ROOT / "examples" / "mnist" / "prepare_data.py"
    subprocess.run([sys.executable, str(prepare), str(folder)], check=True)
    type_("data", "put", str(folder), "workspaceblobstore/digits")
    type_("data", "register", "digits", "workspaceblobstore/digits")


def training(results: Path, epochs: int) -> None:
    """Train on the mounted data, be killed, and go on from the newest checkpoint."""
    tell("2. A job: train on the dataset, be killed in the middle, go on from the checkpoint")
    words = ["submit", "examples/mnist/train.py", "-q", "--input", "data=dataset:digits"]
    words += ["--retries", "1", "--", "--epochs", str(epochs)]
    words += ["--data-dir", "$AZUREML_DATAREFERENCE_data"]
    print(f"$ rayjobs {shlex.join(words)}", flush=True)
    job = ask(*words)
    print(job, flush=True)
    pid = rank_after(job, f"epoch 2/{epochs}")
    os.kill(pid, 9)
    print(f"(the script was just ended by kill -9 {pid}, in its third epoch)", flush=True)
    type_("logs", "-f", job)
    type_("wait", job)
    tell("What is known of it, what it measured, what it stored")
    type_("show", job)
    type_("metrics", job, "--plot", str(results / "metrics.png"))
    type_("download", job, "outputs/model.pt", "--output", str(results / "model.pt"))
    attempts = json.loads(ask("show", job, "--json"))["attempts"]
    expect(len(attempts) == 2, "the job was to be tried twice")
    expect("resumed after epoch" in ask("logs", job), "the second attempt was to resume")
    points = [value for value in metric(job, "accuracy") if value is not None]
    expect(len(points) == epochs, f"{epochs} epochs without gap or double, not {points}")
    expect(points[-1] > 0.9, f"an accuracy of {points[-1]} is not what this network reaches")
    print(f"\naccuracy on 1,000 digits it has not seen: {points[-1]:.3f}", flush=True)


def sweep(results: Path, trials: int) -> None:
    """Search some settings with early stopping, and register the best model."""
    tell(f"3. A sweep: {trials} settings, hopeless ones stopped early, the best model registered")
    file = results / "sweep.yaml"
    source = os.path.relpath(ROOT / "examples" / "mnist", results)
    kept = SWEEP.read_text().splitlines(keepends=True)
    text = "".join(line for line in kept if not line.startswith("#"))
    for old, new in (("../mnist", source), ("total: 8", f"total: {trials}")):
        expect(old in text, f"{SWEEP} was to have {old!r}")
        text = text.replace(old, new)
    file.write_text(text)
    print(text, flush=True)
    type_("sweep", "create", "-f", str(file), "--attach")
    name = json.loads(ask("sweep", "ls", "--json"))[0]["id"]
    type_("sweep", "show", name)
    type_("sweep", "plot", name, "--output", str(results))
    tell("The best model, and where it comes from")
    type_("model", "ls")
    type_("model", "lineage", "digits:1")
    type_("model", "alias", "digits:1", "champion")
    type_("model", "download", "digits@champion", "--output", str(results / "champion"))


def rank_after(job: str, line: str) -> int:
    """Return the pid of the job's script once it has printed `line`."""
    end = time.monotonic() + PATIENCE_S
    host: dict[str, Any] = {}
    while time.monotonic() < end:
        if "pid" not in host:
            shown: dict[str, Any] = json.loads(ask("show", job, "--json"))
            hosts = [one for attempt in shown["attempts"] for one in attempt["hosts"]]
            host = hosts[-1] if hosts else {}
            continue
        # Without another command: an epoch may take less time than one does.
        log = Path(host["root"]) / "log" / "driver_0.log"
        if log.exists() and line in log.read_text():
            children = Path(f"/proc/{host['pid']}/task/{host['pid']}/children")
            return int(children.read_text().split()[0])
        time.sleep(0.02)
    raise SystemExit(f"{job} never printed {line!r}")


def metric(job: str, name: str) -> list[float | None]:
    """Return a metric's values from what ``metrics --json`` prints."""
    found = json.loads(ask("metrics", job, "--json"))
    values = found["metrics"][name]
    return [point["value"] if isinstance(point, dict) else point for point in values]


def expect(fact: bool, what: str) -> None:
    """Fail the demo where the story is not what happened."""
    if not fact:
        raise SystemExit(f"the demo went wrong: {what}")


if __name__ == "__main__":
    main()
