"""Writes the shipped traces: `python -m rayjobs.policy.simulate.make_traces`.

The random seeds are fixed, so the traces are always the same. Both are for a pool of 4 nodes with
8 GPUs and 64 CPUs, which they load to about nine tenths.

- `many-small`: 1,000 jobs of 12 users in 24 hours. One node each, 1 GPU (80 %), 2 (15 %) or 4
  (5 %); the time is log-normal with median 24 minutes (sigma 0.9), the limit twice the time,
  rounded up to 10 minutes. A tenth has priority 10; about a third are preemptible.
- `mixed`: 300 jobs in 132 hours. 70 % small (1 or 2 GPUs, median 40 minutes), 20 % of one whole
  node (8 GPUs, median 2 hours), 10 % of two to four whole nodes (median 3 hours). Limits, priority
  and preemptible as above, though no multi-node job is preemptible.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = ("job", "submit", "nodes", "gpus", "duration", "cap", "priority", "user", "preemptible")
Row = tuple[str, int, int, int, int, int, int, str, int]


def many_small(seed: int = 1) -> Iterator[Row]:
    """Yield the rows of the trace of many small jobs."""
    draw = random.Random(seed)  # noqa: S311 - a trace, no secret
    times = sorted(draw.uniform(0, 24 * 3600) for _ in range(1000))
    for number, at_s in enumerate(times):
        gpus = draw.choices((1, 2, 4), weights=(80, 15, 5))[0]
        yield _row(draw, number, at_s, 1, gpus, median_s=24 * 60)


def mixed(seed: int = 2) -> Iterator[Row]:
    """Yield the rows of the trace of large and small jobs."""
    draw = random.Random(seed)  # noqa: S311 - a trace, no secret
    times = sorted(draw.uniform(0, 132 * 3600) for _ in range(300))
    for number, at_s in enumerate(times):
        kind = draw.choices(("small", "node", "nodes"), weights=(70, 20, 10))[0]
        if kind == "small":
            yield _row(draw, number, at_s, 1, draw.choice((1, 2)), median_s=40 * 60)
        elif kind == "node":
            yield _row(draw, number, at_s, 1, 8, median_s=2 * 3600)
        else:
            yield _row(draw, number, at_s, draw.choice((2, 2, 3, 4)), 8, median_s=3 * 3600)


def _row(
    draw: random.Random, number: int, at_s: float, nodes: int, gpus: int, *, median_s: float
) -> Row:
    duration_s = max(30, round(draw.lognormvariate(math.log(median_s), 0.9)))
    cap_s = math.ceil(2 * duration_s / 600) * 600
    priority = 10 if draw.random() < 0.1 else 0
    preemptible = int(nodes == 1 and draw.random() < 1 / 3)
    user = f"user{draw.randrange(12):02}"
    name = f"j{number:04}"
    return (name, round(at_s), nodes, gpus, duration_s, cap_s, priority, user, preemptible)


def write(folder: Path) -> None:
    """Write both traces into a folder."""
    for name, rows in (("many-small", many_small()), ("mixed", mixed())):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            file.write(f"# {name}: see rayjobs/policy/simulate/make_traces.py; times in seconds.\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows(rows)


if __name__ == "__main__":
    write(Path(__file__).parent / "traces")
