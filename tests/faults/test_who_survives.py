"""Which processes survive which death: a job ends with its host or rank, and with no other."""

from __future__ import annotations

import pytest

from tests.soak.survivors import ACTOR, AGENT, HOST, OF_THE_JOB, RANK, WARM, Scene
from tests.support.jobs import DEADLINE_S, Jobs
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    ("killed", "end"), [(HOST, "Completed, 2 attempts"), (RANK, "Failed, 1 attempt")]
)
def test_killed_host_or_rank_ends_the_whole_job(
    jobs: Jobs, local_target: LocalTarget, killed: str, end: str
) -> None:
    scene = Scene(jobs, local_target)
    outcome = scene.killed(killed, DEADLINE_S, lambda living: not living & set(OF_THE_JOB))
    assert outcome.living == {ACTOR, AGENT, WARM}, outcome.dead_s
    assert outcome.end == end


@pytest.mark.parametrize("killed", [ACTOR, AGENT, WARM])
def test_killed_supervisor_leaves_the_job_running(
    jobs: Jobs, local_target: LocalTarget, killed: str
) -> None:
    scene = Scene(jobs, local_target)
    outcome = scene.killed(killed, DEADLINE_S, lambda living: killed not in living)
    assert outcome.living >= set(OF_THE_JOB), outcome.dead_s
    assert outcome.end == "Completed, 1 attempt"
