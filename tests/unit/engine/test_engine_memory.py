"""The memory of a target actor does not grow with the number of past jobs."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from rayjobs.engine import engine
from rayjobs.jobs.states import JobState
from rayjobs.store.rows import spec_of
from tests.fakes.world import World, play

# Allows for the fakes and the standard library's caches. A leak would show: the record and the
# supervisor of a job take about 10 KB.
MOST_BYTES_A_JOB = 1000

# Larger blocks are hash tables, which double now and then (the interpreter's table of interned
# strings has 2 MB). They are not counted; their entries are.
TABLE_BYTES = 65536


def held_bytes() -> int:
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.size < TABLE_BYTES)


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, *, jobs: int) -> float:
    """Return by how many bytes the memory grows per job while `jobs` of them run.

    They run in two halves, and the smaller growth counts: what is loaded or generated once, at the
    first use that no earlier test in this process has made, grows only one of them.
    """
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    grown: list[float] = []

    async def scene(here: World) -> None:
        here.agent.instant = 0

        async def run(count: int) -> int:
            left = count
            while left:
                some = [here.submit() for _ in range(min(25, left))]
                left -= len(some)
                for job in some:
                    await here.state(job, JobState.COMPLETED)
            # The fake agent's notes of each job belong to the test.
            here.agent.calls.clear()
            here.agent.ends.clear()
            here.agent.requests.clear()
            here.cluster.created.clear()
            await here.until(lambda: not here.engine.attempts, "all attempts have ended")
            spec_of.cache_clear()  # has a limit that is not reached here
            gc.collect()
            return held_bytes() if tracemalloc.is_tracing() else 0

        await run(50)  # fills the caches
        tracemalloc.start()
        try:
            held = [await run(count) for count in (25, jobs // 2, jobs // 2)]
        finally:
            tracemalloc.stop()
        grown.extend((after - before) / (jobs // 2) for before, after in pairwise(held))

    play(scene, folder, cpus=8.0)
    return min(grown)


@pytest.mark.long
def test_hundred_jobs_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(tmp_path, monkeypatch, jobs=100) < MOST_BYTES_A_JOB


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_jobs_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure(tmp_path, monkeypatch, jobs=5000) < MOST_BYTES_A_JOB / 5
