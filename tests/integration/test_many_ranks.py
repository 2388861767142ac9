"""The launcher's cost of each further rank: 8 to 64 ranks on four nodes of one machine."""

from __future__ import annotations

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Resources
from tests.support.jobs import Jobs

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NODES = 4
SIZES = (8, 16, 32, 64)


def seconds_per_rank(jobs: Jobs, ranks: int) -> float:
    """Run a job whose ranks do nothing; return the seconds per rank from allocation to end."""
    shape = Distribution(nodes=NODES, processes_per_node=ranks // NODES, backend="gloo")
    job = jobs.submit("print('here')", distribution=shape, resources=Resources(cpus=0.1))
    jobs.wait(job, JobState.COMPLETED)
    attempt = jobs.attempt(job)
    ended = [rank for record in attempt.exits for rank in record.ranks]
    assert sorted(rank.rank for rank in ended) == list(range(ranks))
    last = max(rank.ended_at or 0.0 for rank in ended)
    jobs.nothing_left(job)
    return float(last - attempt.created_at.timestamp()) / ranks


def test_the_cost_of_a_rank_does_not_grow_with_their_number(jobs: Jobs) -> None:
    seconds_per_rank(jobs, NODES)  # the first job waits for the warm interpreter
    # The best of three: other load on the machine is not a cost of the launcher.
    costs = {ranks: min(seconds_per_rank(jobs, ranks) for _ in range(3)) for ranks in SIZES}
    figures = ", ".join(f"{ranks}: {1000 * cost:.0f} ms" for ranks, cost in costs.items())
    print(f"\nfrom allocation to end, per rank: {figures}")
    few, *more = costs.values()
    assert max(more) <= few * 1.2, figures
