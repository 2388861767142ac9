"""Replays one seed and prints its history: ``python -m tests.simulation SEED [JOBS] [apart]``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.test_simulation import JOBS
from tests.simulation.world import simulate


def main(seed: int, jobs: int, *, apart: bool) -> int:
    """Print the faults, and the history and hosts of each job that violates an invariant."""
    with TemporaryDirectory() as folder:
        world = simulate(seed, Path(folder), jobs=jobs, apart=apart)
        violations = world.violations()
        print("\n".join(world.trace))
        for job in world.store.jobs():
            if not any(job.id in text for text in violations):
                continue
            print(f"\n{job.id}: {job.state}")
            for event in world.store.events(job.id):
                print(f"  {event.at:%H:%M:%S.%f} a{event.attempt} {event.kind} {event.message}")
            for host in world.machine.history:
                on = host.on
                if on.job == job.id:
                    ended = "" if host.record is None else host.record.outcome
                    print(
                        f"  host a{on.attempt} n{on.node} on {host.node_id}: "
                        f"{host.began_at:.3f} to {host.ended_at} {ended}"
                    )
        print("\n".join(violations) or "no violation")
        return 1 if violations else 0


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
    sys.exit(main(*(*numbers, JOBS)[:2], apart="apart" in sys.argv))
