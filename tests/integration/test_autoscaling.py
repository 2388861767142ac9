"""Nodes start when jobs need them and stop when none does, by Ray's own autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.core.errors import CannotBePlacedError
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Resources
from rayjobs.workspace.folder import locate, open_workspace
from tests.support.autoscaling import TARGET, FakeCloud, fake_cloud, node_type
from tests.support.jobs import Jobs, until

# Minutes on a busy machine; what the queue does with nodes that may start is tested without Ray in
# tests/unit/engine/test_engine_grows.py.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

TWO = Distribution(nodes=2, backend="gloo")


@pytest.fixture
def cloud(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    """A cluster of at most two workers with one CPU each, none of them running."""
    home = short_path / "h"
    for name, value in (("RAYJOBS_HOME", str(home)), ("RAYJOBS_PRELOAD", "json")):
        monkeypatch.setenv(name, value)
    types = {"plain": node_type("plain", cpus=1, max_workers=2)}
    with fake_cloud(home, types, workers=2) as running:
        yield running


def why(job_id: str) -> str:
    """The output of `rayjobs why`."""
    done = CliRunner().invoke(main, ["why", job_id], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_nodes_start_with_the_first_job_and_stop_after_the_last(
    cloud: FakeCloud, tmp_path: Path
) -> None:
    """Off switch: `PendingNodes.capacities` is always empty; or an agent never leaves."""
    go_on = tmp_path / "go-on"
    waits = f"""
        import os, pathlib, time
        while os.environ["RANK"] == "0" and not pathlib.Path({str(go_on)!r}).exists():
            time.sleep(0.05)
    """
    with open_workspace(locate()) as workspace:
        jobs = Jobs(workspace, tmp_path)
        with pytest.raises(CannotBePlacedError, match="at most"):
            jobs.submit("", target=TARGET, distribution=Distribution(nodes=3, backend="gloo"))
        with pytest.raises(CannotBePlacedError, match="plain"):
            jobs.submit("", target=TARGET, resources=Resources(node_types=("Standard_NC6",)))

        assert cloud.workers() == []
        first = jobs.submit(waits, target=TARGET, distribution=TWO)
        until(lambda: "waits for nodes to start" in why(first.id), "`why` names what it waits for")
        assert jobs.job(first).state is JobState.PROVISIONING
        jobs.wait(first, JobState.RUNNING)
        used = {host.node_id for host in jobs.attempt(first).hosts}
        assert used == set(cloud.workers())
        assert len(used) == 2

        # No more nodes may start. Ray would give the small job the first free one.
        large = jobs.submit("", target=TARGET, distribution=TWO)
        small = jobs.submit("", target=TARGET)
        until(lambda: "number 2 in the queue" in why(small.id), "both wait in their order")
        go_on.touch()
        for job in (first, large, small):
            jobs.wait(job, JobState.COMPLETED)
            assert jobs.attempt(job).number == 1, [e.message for e in jobs.store.events(job.id)]
            assert jobs.attempt(job).cold_reason is None  # a warm interpreter ran on each node
        started = [jobs.attempt(job).started_at for job in (first, large, small)]
        begun = [at for at in started if at is not None]
        assert len(begun) == 3 and begun == sorted(begun)

        until(lambda: cloud.workers() == [], "all workers are gone")
