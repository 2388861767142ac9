"""The driver of a sweep is killed twice at random points: no trial is repeated, none is lost.

Each run kills at different points; a failure prints its seed, and ``RAYJOBS_TEST_SEED`` sets it.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from rayjobs.tuning.driver_actor import DRIVER_EVENT
from rayjobs.tuning.spec import parse_sweep
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.submitter import submit_sweep
from rayjobs.tuning.table import load_trials
from rayjobs.tuning.trials import TrialState
from tests.support.jobs import Jobs, kill, until

pytestmark = pytest.mark.ray

TRIALS = 12
# A trial ends only when its turn comes, so that the driver is busy when it is killed.
SCRIPT = """
import itertools, os, sys, time
from rayjobs import Run
run = Run.get_context()
for step in range(5):
    run.log("accuracy", float(sys.argv[2]) * (step + 1), step=step)

def take(number):
    try:
        os.close(os.open(os.path.join(FOLDER, str(number)), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

turn = next(number for number in itertools.count() if take(number))
while not os.path.exists(os.path.join(FOLDER, "go-%d" % turn)):
    time.sleep(0.02)
"""


def pids(jobs: Jobs, sweep: str) -> list[int]:
    events = jobs.store.events(sweep)
    return [int(event.data["pid"]) for event in events if event.kind == DRIVER_EVENT]


def test_a_killed_driver_repeats_and_loses_no_trial(jobs: Jobs, tmp_path: Path) -> None:
    kill_twice(jobs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("_round", range(10))
def test_drivers_killed_again_and_again_repeat_and_lose_no_trial(
    jobs: Jobs, tmp_path: Path, _round: int
) -> None:
    kill_twice(jobs, tmp_path)


def kill_twice(jobs: Jobs, tmp_path: Path) -> None:
    seed = int(os.environ.get("RAYJOBS_TEST_SEED") or secrets.randbits(32))
    print(f"killed at points of seed {seed}; again with RAYJOBS_TEST_SEED={seed}")  # if it fails
    dice = random.Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    turns = tmp_path / "turns"
    turns.mkdir()
    (source / "train.py").write_text(f"FOLDER = {str(turns)!r}\n{SCRIPT}")
    spec = parse_sweep(
        {
            "name": "killed",
            "job": {"script": "train.py", "source_directory": str(source), "grace_s": 2.0},
            "sampling": {
                "type": "random",
                "seed": seed,
                "parameters": {"--x": ["uniform", [0, 1]]},
            },
            "metric": "accuracy",
            "goal": "maximize",
            "limits": {"total": TRIALS, "concurrent": 3},
        }
    )
    sweep = submit_sweep(jobs.workspace, spec).sweep.job.id
    killed: list[int] = []
    # Trials that have ended before each kill: from a driver that has just begun to one that has
    # one trial left. Its activity at that moment is random.
    for ended in sorted(dice.choices(range(TRIALS), k=2)):
        # A driver that has started to work, other than the one killed before.
        until(lambda: [pid for pid in pids(jobs, sweep) if pid not in killed], "it has a driver")
        allow(turns, ended)
        wait_for_ends(jobs, sweep, ended)
        newest = pids(jobs, sweep)[-1]
        time.sleep(dice.uniform(0, 0.3))
        kill(newest)
        killed.append(newest)
    allow(turns, TRIALS)
    until(lambda: jobs.store.job(sweep).state.is_final, "the sweep has ended")

    parent, trials = jobs.store.job(sweep), load_trials(jobs.store, sweep)
    children = jobs.store.jobs(JobFilter(parent=sweep, newest_first=False))
    assert parent.state is JobState.COMPLETED, parent.reason
    assert len(pids(jobs, sweep)) >= 3
    SweepState(trials)  # in order, without gaps: missing=0
    assert len(trials) == TRIALS
    assert {trial.state for trial in trials} == {TrialState.COMPLETED}
    assert sorted(child.tags["trial"] for child in children) == sorted(map(str, range(TRIALS)))
    assert [child.attempt for child in children] == [1] * TRIALS  # repeated=0
    assert {trial.job_id for trial in trials} == {child.id for child in children}
    sampler = spec.sampling.sampler(spec.goal)
    assert [trial.parameters for trial in trials] == [sampler.suggest(n) for n in range(TRIALS)]
    assert all(len(trial.values) == 5 for trial in trials)
    lost: list[Any] = [event for event in jobs.store.events(sweep) if event.kind == "driver_lost"]
    assert len(lost) >= 2


def allow(turns: Path, count: int) -> None:
    """Let the first `count` trials end."""
    for number in range(count):
        (turns / f"go-{number}").touch()


def wait_for_ends(jobs: Jobs, sweep: str, count: int) -> None:
    def ended() -> bool:
        children = jobs.store.jobs(JobFilter(parent=sweep))
        return sum(child.state.is_final for child in children) >= count

    until(ended, f"{count} trials have ended")
