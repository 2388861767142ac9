"""One decision of the policy over a long queue: 16 nodes, 12 users, sweeps, arrays, all limits."""

from __future__ import annotations

import random
import time

from benchmarks.figures import Figure, median
from rayjobs.policy import Limits, NodeCapacity, Running, Shape, Situation, Waiting, decide, explain

NODES = 16


def measure(*, rounds: int, jobs: int = 10_000) -> list[Figure]:
    """Decide about `jobs` waiting jobs while all GPUs are in use: nearly all are examined."""
    plain, limited, explained_ms = [], [], []
    for number in range(rounds):
        situation = crowd(jobs, seed=number, limits=Limits())
        plain.append(_decide_ms(situation))
        limits = Limits(jobs=500, jobs_per_user=40, gpus_per_user=60.0)
        limited.append(_decide_ms(crowd(jobs, seed=number, limits=limits)))
        decisions = decide(situation)
        began = time.perf_counter()
        explain(decisions, decisions.queue[-1])
        explained_ms.append((time.perf_counter() - began) * 1e3)
    return [
        Figure(f"a decision, {jobs} jobs queued", "ms", median(plain), most=50),
        Figure(f"a decision with limits of users, {jobs} queued", "ms", median(limited), most=50),
        Figure(f"why the last of {jobs} waits, with estimates", "ms", median(explained_ms)),
    ]


def _decide_ms(situation: Situation) -> float:
    began = time.perf_counter()
    decisions = decide(situation)
    took_ms = (time.perf_counter() - began) * 1e3
    assert decisions.line
    return took_ms


def crowd(jobs: int, *, seed: int, limits: Limits) -> Situation:
    """Return a full target with a long queue of many shapes, the same for the same seed."""
    draw = random.Random(seed)
    running = [
        Running(
            key=f"r{node}-{slot}",
            priority=0,
            order=("", slot, f"r{node}-{slot}"),
            shape=Shape(cpus=8, gpus=1),
            nodes=(f"n{node}",),
            started_s=draw.uniform(0, 9e4),
            user=f"u{slot}",
            preemptible=draw.random() < 0.5,
            max_duration_s=draw.choice((7200.0, 2_592_000.0)),
        )
        for node in range(NODES)
        for slot in range(8)
    ]
    capacities = [NodeCapacity(f"n{node}", 80, 8, 0, 16, 0, 0) for node in range(NODES)]
    waiting = [
        Waiting(
            key=f"w{number}",
            priority=draw.choice((0, 0, 0, 5)),
            order=("", number, f"w{number}"),
            shape=Shape(
                nodes=draw.choice((1, 1, 1, 2, 4)),
                cpus=draw.choice((4.0, 8.0, 16.0)),
                gpus=draw.choice((1.0, 2.0, 8.0)),
                spread=True,
            ),
            submitted_s=9e4 + number,
            user=f"u{draw.randrange(12)}",
            group=draw.choice((None, None, "s1", "s2", "a1")),
            max_duration_s=draw.choice((600.0, 7200.0, 2_592_000.0)),
            expected_s=draw.choice((None, 1800.0)),
        )
        for number in range(jobs)
    ]
    return Situation(
        waiting=waiting, running=running, capacities=capacities, limits=limits, now_s=9e4 + jobs
    )
