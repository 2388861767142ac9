"""The examples on two nodes without a shared disk reach the accuracy of one process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.jobs.states import JobState
from tests.support.jobs import Jobs, until
from tests.support.mpi_hosts import needs_horovod, needs_mpi
from tests.support.raylets import RAYLETS, TARGET, Cluster

pytestmark = [*RAYLETS, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS = 2
# The validation set has 1000 digits: this is two standard deviations of an accuracy of 0.95.
AS_GOOD = 0.014


def one_process(script: Path, folder: Path) -> float:
    """Train without a queue; return the accuracy that the script prints last."""
    done = subprocess.run(
        [sys.executable, str(script), "--epochs", str(EPOCHS)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return float(re.findall(r"accuracy ([0-9.]+)", done.stdout)[-1])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("example", "backend"),
    [
        ("ddp", "gloo"),
        pytest.param("horovod", "mpi", marks=[needs_mpi, needs_horovod]),
    ],
)
def test_job_keeps_its_accuracy_when_a_raylet_is_killed(
    pool_jobs: Jobs, raylets: Cluster, tmp_path: Path, example: str, backend: str
) -> None:
    script = EXAMPLES / example / "train.py"
    alone = one_process(script, tmp_path)
    raylets.ensure(3)
    words = [str(script), "--target", TARGET, "--nodes", "2", "--procs-per-node", "2"]
    words += ["--backend", backend, "--json", "--detach", "--", "--epochs", str(EPOCHS)]
    submitted = subprocess.run(
        [sys.executable, "-m", "rayjobs", "submit", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    job = pool_jobs.store.job(json.loads(submitted.stdout)["id"])

    def values() -> dict[int, float]:
        points = [one for one in pool_jobs.store.metrics(job.id) if one.name == "accuracy"]
        assert len({one.step for one in points}) == len(points), "no step is reported twice"
        return {one.step: float(one.value) for one in points if one.step is not None}

    until(lambda: EPOCHS // 2 in values(), "half of the epochs are done", deadline_s=600.0)
    lost = raylets.node_at(pool_jobs.attempt(job).hosts[1].address)
    lost.raylet.kill()
    pool_jobs.wait(job, JobState.COMPLETED, deadline_s=600.0)
    first, second = pool_jobs.store.attempts(job.id)
    assert first.outcome == "node_lost"
    scratches = {Path(host.root).parents[2] for host in second.hosts}
    assert len(scratches) == 2
    assert lost.scratch not in scratches
    found = values()
    assert sorted(found) == list(range(1, EPOCHS + 1))
    print(f"\n{example} {backend}: {alone:.4f} as one process, {found[EPOCHS]:.4f} on two nodes")
    assert found[EPOCHS] >= alone - AS_GOOD
    raylets.remove(lost)
