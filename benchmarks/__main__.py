"""Measure, print one table, and say which goals are met: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_log, bench_store
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
    """Return the figures of the parts, in their order; says on stderr what is being measured."""
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
    # Ray is imported by those that need it alone.
    if name == "store":
        return lambda rounds, quick: bench_store.measure(
            rounds=rounds, submits=20 if quick else 200
        )
    if name in ("team", "http"):
        return _of_a_team(name)
    if name == "log":
        return lambda rounds, quick: bench_log.measure(
            rounds=rounds, calls=1000 if quick else 20_000
        )
    if name == "environments":
        from benchmarks import bench_environments

        return lambda rounds, _quick: bench_environments.measure(rounds=rounds)
    if name == "images":
        from benchmarks import bench_images

        return lambda rounds, quick: bench_images.measure(rounds=rounds, quick=quick)
    if name == "first":
        from benchmarks import bench_first

        return lambda rounds, _quick: bench_first.measure(rounds=rounds)
    if name == "warm":
        from benchmarks import bench_warm

        return lambda rounds, _quick: bench_warm.measure(head, rounds=rounds)
    if name == "cli":
        from benchmarks import bench_cli

        return lambda rounds, _quick: bench_cli.measure(head, rounds=rounds)
    if name == "memory":
        from benchmarks import bench_memory

        return lambda rounds, _quick: bench_memory.measure(head, rounds=rounds)
    if name == "ddp":
        from benchmarks import bench_distributed

        return lambda rounds, _quick: bench_distributed.measure_ddp(head, rounds=rounds)
    if name == "horovod":
        from benchmarks import bench_distributed

        return lambda rounds, _quick: bench_distributed.measure_horovod(head, rounds=rounds)
    if name == "container":
        from benchmarks import bench_container

        return lambda rounds, _quick: bench_container.measure(rounds=rounds)
    if name == "sweep":
        return _sweep
    if name == "pipelines":
        from benchmarks import bench_pipelines

        return lambda rounds, quick: bench_pipelines.measure(head, rounds=rounds, quick=quick)
    if name == "queue":
        from benchmarks import bench_queue

        return lambda rounds, quick: bench_queue.measure(
            rounds=rounds, jobs=200 if quick else 10_000
        )
    if name == "listing":
        from benchmarks import bench_listing

        return lambda rounds, quick: bench_listing.measure(
            rounds=rounds, jobs=200 if quick else 10_000
        )
    from benchmarks import bench_data

    return lambda rounds, quick: bench_data.measure(rounds=rounds, mib=16 if quick else 512)


def _of_a_team(name: str) -> Callable[[int, bool], list[Figure]]:
    if name == "team":
        from benchmarks import bench_team

        return lambda rounds, quick: bench_team.measure(rounds=rounds, submits=20 if quick else 200)
    from benchmarks import bench_http

    return lambda rounds, quick: bench_http.measure(
        rounds=rounds, jobs=200 if quick else 10_000, requests=200 if quick else 10_000
    )


def _sweep(rounds: int, quick: bool) -> list[Figure]:
    """Run the sweep's own program, which starts and ends its heads."""
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
            "overhead per trial of it: a place's time, less its script's", "s", per_trial, most=0.15
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 whenever everything could be measured, goals met or not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured [5]")
    parser.add_argument("--quick", action="store_true", help="small amounts: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    given = parser.parse_args(arguments)
    facts = machine()
    figures = measure(given.only, rounds=given.rounds, quick=given.quick)
    print(machine_line(facts))
    print(f"medians of {given.rounds} rounds; the peer in the same run\n")
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
