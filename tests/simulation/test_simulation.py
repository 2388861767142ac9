"""2,000 job lifecycles under faults in virtual time; `make soak` plays 100,000.

``python -m tests.simulation SEED [JOBS] [apart]`` replays a seed that failed, and prints its
history; `apart`: each node is a separate machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.world import simulate

JOBS = 40
HISTORIES = 50
PART = 10
LONG = int(os.environ.get("SIMULATION_LIFECYCLES", "100000")) // JOBS

# A killed actor leaves coroutines that were never awaited.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


def play(
    seed: int, folder: Path, *, jobs: int = JOBS, moves_clock: bool = False, apart: bool = False
) -> None:
    world = simulate(seed, folder, jobs=jobs, moves_clock=moves_clock, apart=apart)
    try:
        violations = world.violations()
        assert len(world.made) == jobs
        assert len(world.machine.history) > jobs / 4  # enough jobs ran for the faults to hit them
    finally:
        world.store.close()
    text, again = "\n".join(violations), f"{seed} {jobs} {'apart' if apart else ''}"
    assert not violations, f"python -m tests.simulation {again}   replays it:\n{text}"


@pytest.mark.parametrize("first", range(0, HISTORIES, PART))
def test_every_history_keeps_the_invariants(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PART):
        play(seed, tmp_path)


def test_few_jobs_with_many_faults_keep_the_invariants(tmp_path: Path) -> None:
    for seed in range(170, 215):
        play(seed, tmp_path, jobs=10)


def test_wall_clock_changes_affect_nothing(tmp_path: Path) -> None:
    for seed in range(300, 312):
        play(seed, tmp_path, jobs=20, moves_clock=True)


def test_lost_frozen_or_disconnected_machines_never_run_alongside_a_retry(
    tmp_path: Path,
) -> None:
    for seed in range(8, 32):
        play(seed, tmp_path, jobs=12, apart=True)


@pytest.mark.parametrize("apart", [False, True])
def test_same_seed_replays_the_same_history(apart: bool, tmp_path: Path) -> None:
    histories = []
    for _ in range(2):
        world = simulate(7, tmp_path, jobs=10, apart=apart)
        hosts = [(host.began_at, host.ended_at) for host in world.machine.history]
        histories.append((hosts, [line.split(" of ")[0] for line in world.trace]))
        world.store.close()
    assert histories[0] == histories[1]
    assert len(histories[0][0]) > 5


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_hundred_thousand_jobs_keep_the_invariants(tmp_path: Path) -> None:
    for seed in range(HISTORIES, HISTORIES + LONG):
        play(seed, tmp_path)
        play(seed, tmp_path, jobs=12, apart=True)
