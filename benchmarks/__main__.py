"""Measure, print one table, and say which goals are met: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, machine, machine_line, table

PARTS = (
    "warm",
    "store",
    "team",
    "http",
    "cli",
    "log",
    "first",
    "memory",
    "sweep",
    "pipelines",
    "data",
    "queue",
    "listing",
    "ddp",
    "horovod",
    "container",
    "environments",
    "images",
)
NEEDS_HEAD = ("warm", "cli", "memory", "pipelines", "ddp", "horovod")


def measure(parts: Sequence[str], *, rounds: int, quick: bool) -> list[Figure]:
    """Return the figures of the parts, in the order of `PARTS`; report progress on stderr."""
    figures: dict[str, list[Figure]] = {}
    with contextlib.ExitStack() as stack:
        head: Any = None
        for part in sorted(parts, key=lambda name: name in NEEDS_HEAD):
            print(f"measuring {part} …", file=sys.stderr, flush=True)
            if part in NEEDS_HEAD and head is None:
                from benchmarks.head import running_head

                head = stack.enter_context(running_head())
            figures[part] = _part(part, head)(rounds, quick)
    return [figure for part in PARTS if part in figures for figure in figures[part]]


def _part(name: str, head: Any) -> Callable[[int, bool], list[Figure]]:
    """Return the function that measures a part, given the rounds and whether to be quick."""

    def of(module: str) -> Any:
        return importlib.import_module(f"benchmarks.bench_{module}")

    def jobs(quick: bool) -> int:
        return 200 if quick else 10_000

    # A module is imported only when its part is measured, since some of them import Ray.
    parts: Mapping[str, Callable[[int, bool], Any]] = {
        "store": lambda n, quick: of("store").measure(rounds=n, submits=20 if quick else 200),
        "team": lambda n, quick: of("team").measure(rounds=n, submits=20 if quick else 200),
        "http": lambda n, quick: of("http").measure(
            rounds=n, jobs=jobs(quick), requests=jobs(quick)
        ),
        "log": lambda n, quick: of("log").measure(rounds=n, calls=1000 if quick else 20_000),
        "environments": lambda n, _quick: of("environments").measure(rounds=n),
        "images": lambda n, quick: of("images").measure(rounds=n, quick=quick),
        "first": lambda n, _quick: of("first").measure(rounds=n),
        "warm": lambda n, _quick: of("warm").measure(head, rounds=n),
        "cli": lambda n, _quick: of("cli").measure(head, rounds=n),
        "memory": lambda n, _quick: of("memory").measure(head, rounds=n),
        "ddp": lambda n, _quick: of("distributed").measure_ddp(head, rounds=n),
        "horovod": lambda n, _quick: of("distributed").measure_horovod(head, rounds=n),
        "container": lambda n, _quick: of("container").measure(rounds=n),
        "sweep": _sweep,
        "pipelines": lambda n, quick: of("pipelines").measure(head, rounds=n, quick=quick),
        "queue": lambda n, quick: of("queue").measure(rounds=n, jobs=jobs(quick)),
        "listing": lambda n, quick: of("listing").measure(rounds=n, jobs=jobs(quick)),
        "data": lambda n, quick: of("data").measure(rounds=n, mib=16 if quick else 512),
    }
    return parts[name]


def _sweep(rounds: int, quick: bool) -> list[Figure]:
    """Run the sweep's benchmark as a separate program, which starts and stops its own Ray heads."""
    trials = 4 if quick else 24
    command = [sys.executable, str(Path(__file__).with_name("bench_sweep.py")), "--json"]
    command += ["--trials", str(trials), "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("the sweep's benchmark failed; see above")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    name = f"sweep of {trials} trials × 5 reports"
    per_trial = found["overhead_per_trial_s"]
    return [
        Figure(name, "s", found["ours_s"], found["tune_s"], "Ray Tune, one round", faster=8),
        Figure(
            name + ", functions reused",
            "s",
            found["ours_s"],
            found["tune_reuse_s"],
            "Ray Tune, reuse_actors",
            slower=1.5,
        ),
        Figure(
            "that sweep's overhead per trial: a slot's time less the script's",
            "s",
            per_trial,
            most=0.15,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if everything was measured, whether or not goals are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure [5]")
    parser.add_argument("--quick", action="store_true", help="little data, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    given = parser.parse_args(arguments)
    facts = machine()
    figures = measure(given.only, rounds=given.rounds, quick=given.quick)
    print(machine_line(facts))
    print(f"medians of {given.rounds} rounds; peers measured in the same run\n")
    print(table(figures))
    if given.json is not None:
        report = {
            "machine": facts,
            "rounds": given.rounds,
            "figures": [one.as_dict() for one in figures],
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
