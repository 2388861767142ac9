"""A new target actor and a lost node: the lease delays only its own job."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.engine.attempt import settling
from rayjobs.jobs.states import JobState
from tests.fakes.world import World, play

LEASE_S = 3600.0


@pytest.mark.long
def test_other_jobs_start_while_the_lease_of_a_lost_node_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "ANSWER_S", 600.0)  # nothing else ends the wait

    async def scene(here: World) -> None:
        lost = here.submit()
        await here.launched(lost)
        await here.crash()
        here.cluster.lose("node0")
        here.cluster.groups.clear()
        await here.restart()
        here.cluster.agents["node1"].instant = 0
        other = here.submit()
        await here.state(other, JobState.COMPLETED)
        waiting = here.store.job(lost.id)
        assert (waiting.state, waiting.attempt) == (JobState.RUNNING, 1)

    play(scene, tmp_path, lease_s=LEASE_S, nodes=2, cpus=1.0)
