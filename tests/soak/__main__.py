"""``python -m tests.soak [--minutes 30] [--jobs 200] [--seed N] [--report FILE]``.

Runs short jobs on its own real target while processes are killed and stopped at random, then
checks the invariants in the store, in the records of the ranks, and on the machine. The last line
is the number of violations.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from random import Random
from statistics import median

RANK = """
import json, os, sys, time
from rayjobs import Run, checkpoint

lasts, code = float(sys.argv[1]), int(sys.argv[2])
run, history = Run.get_context(), os.open(os.environ["HISTORY"], os.O_WRONLY | os.O_APPEND)
who = {"job": os.environ["AZUREML_RUN_ID"], "attempt": int(os.environ["RAYJOBS_ATTEMPT"]),
       "rank": int(os.environ.get("RANK", 0))}
found = checkpoint.latest() if who["rank"] == 0 else None
step, end = 0 if found is None else found.step + 1, time.monotonic() + lasts
who["found"] = None if found is None else found.step
while True:
    os.write(history, (json.dumps({**who, "step": step, "at": time.time()}) + "\\n").encode())
    if time.monotonic() >= end:
        break
    print("step", step, flush=True)
    if who["rank"] == 0:
        run.log("loss", 1 / (step + 1), step=step)
        if step % 5 == 0:
            checkpoint.save(step, {"state": b"%d" % step}, keep=2)
    step += 1
    time.sleep(0.05)
sys.exit(code)
"""
CPUS = 8
KILLS = Path(__file__).parents[1] / "faults" / "kills.toml"
INTRODUCTION = """\
# Reliability: a target whose processes are killed

This page is written by `make soak` (`python -m tests.soak`). All figures are from one run, except
those of the last table. Jobs run on real Ray while a process is killed (SIGKILL) or stopped
(SIGSTOP) every few seconds. Afterwards a checker (`tests/checker/`) compares the store, the
files that the ranks themselves wrote, and everything that is left on the machine, against the
invariants I1 to I11. A job whose script exits with 0 must not have failed on its own, and must
not have ended while it had a retry left; a retried job must continue from its newest whole
checkpoint, and its metrics must have neither gaps nor duplicates.\
"""
DRAIN_S = 900.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, default=Path("docs/reliability.md"))
    return parser.parse_args()


def main() -> int:
    """Run the soak; return 0 when no invariant was violated."""
    options = arguments()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    root = Path(tempfile.mkdtemp(prefix="rjs-", dir="/tmp"))
    canary = secrets.token_hex(16)
    os.environ.update(
        {
            "RAYJOBS_HOME": str(root / "h"),
            "RAYJOBS_WORKSPACE": str(root / "w"),
            "RAYJOBS_LOCAL_CPUS": str(CPUS),
            "RAYJOBS_LOCAL_DASHBOARD": "0",
            "RAYJOBS_LOCAL_IDLE_S": "3600",
            "RAYJOBS_SECRET_SOAK": canary,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
    )
    # After the environment is set: some of these modules read it at import.
    from rayjobs.target import starting, targets
    from tests.soak.figures import measure
    from tests.soak.history import Soak

    print(f"seed {seed}, {options.minutes:g} minutes, {options.jobs} jobs, in {root}", flush=True)
    violations: list[str] = ["the soak was not completed"]
    try:
        starting.ensure_target("local", home=root / "h")
        figures = [figure.row for figure in measure(root / "h", root / "f")]
        print("\n".join(figures), flush=True)
        soak = Soak(root, Random(seed), jobs=options.jobs, canary=canary, rank=RANK, cpus=CPUS)
        soak.run(minutes=options.minutes, say=lambda text: print(text, flush=True))
        violations = soak.violations(drain_s=DRAIN_S)
        options.report.write_text(report(soak, options.minutes, figures, violations))
        print(f"wrote {options.report}")
    finally:
        targets.stop_target(force=True, home=root / "h")
        if not violations:
            shutil.rmtree(root, ignore_errors=True)
    for one in violations:
        print(one)
    print(f"violations {len(violations)}")
    return 1 if violations else 0


def report(soak: object, minutes: float, figures: list[str], violations: list[str]) -> str:
    """Return the report: the faults, what users saw of them, and for how long."""
    from tests.soak.history import Soak
    from tests.soak.nemesis import FELT

    assert isinstance(soak, Soak)
    rows = []
    for event, felt in FELT.items():
        times = [one.seconds for one in soak.harms if one.event == event]
        known = [one for one in times if one is not None]
        if not times:
            continue
        worst = f"{max(known):.1f}" if len(known) == len(times) else "never"
        middle = f"{median(known):.1f}" if known else "never"
        rows.append(f"| {event} | {len(times)} | {felt} | {middle} | {worst} |")
    return "\n".join(
        [
            INTRODUCTION,
            "",
            f"{minutes:g} minutes, {len(soak.submitted)} jobs and {soak.probe_count} probes, "
            f"{len(soak.harms)} events, {soak.attempts} attempts, {soak.lines} signs of life by "
            f"ranks; {soak.resumed} attempts continued from a checkpoint; "
            f"{soak.clients_killed} clients were killed while they submitted; "
            f"{os.cpu_count()} cores at a load of {os.getloadavg()[2]:.0f}, Linux "
            f"{platform.release().split('-')[0]}, Python {platform.python_version()}.",
            "",
            "| event | times | what the user sees | seconds (median) | seconds (worst) |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "The seconds count from the kill (for a stop, from its end), and include the whole",
            "lifetime of the new job, which was submitted right afterwards.",
            "",
            f"States at the end: {soak.states}.",
            "",
            f"**violations {len(violations)}**",
            *[f"- {one}" for one in violations[:20]],
            "",
            "## Figures",
            "",
            "Measured on the same target before the kills, three times each.",
            "",
            "| figure | goal, seconds | seconds (median) | seconds (worst) |",
            "|---|---|---|---|",
            *figures,
            "",
            *kills(),
        ]
    )


def kills() -> list[str]:
    """Return the table of how a job in each state must end when a process is killed."""
    table = tomllib.loads(KILLS.read_text(encoding="utf-8"))
    states = list(next(iter(table.values())))
    rows = [
        f"| {process.replace('-', ' ')} | {' | '.join(row[state] for state in states)} |"
        for process, row in table.items()
    ]
    return [
        "## What is killed in which state of a job",
        "",
        "Each cell has the end that the job must have, and the number of attempts. The soak does",
        "not measure this: the cells are the expectations in `tests/faults/kills.toml`. The test",
        "`tests/faults/test_kill_matrix.py` brings one job into each state, kills the process, and",
        "compares. `-` means that there is no such process in that state. Failures before the",
        "retry pause are not counted.",
        "",
        f"| killed (kill -9) | {' | '.join(states)} |",
        f"|---|{'---|' * len(states)}",
        *rows,
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
