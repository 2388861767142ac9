"""Programs of our own, in the form of Azure ML's pipeline programs, run unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.api.workspace import Workspace
from rayjobs.core.paths import home
from rayjobs.jobs.states import JobState
from rayjobs.target import timekeeper
from tests.azure.running import copy_twin, ran
from tests.support.jobs import until
from tests.support.local_target import LocalTarget

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_steps_parameters_reuse_mpi_and_a_sweep(local_target: LocalTarget, own_home: Path) -> None:
    folder = copy_twin("pipelines", own_home)
    done = ran(folder, "driver.py")
    lines = done.stdout.splitlines()
    for line in (
        "problems []",
        "status Finished",
        "step search Finished ['best_model', 'metrics_data']",
        'model {"total": 12}',
        "log level low",
        "ranks 2",
        "best 9.0",
        "compare trials 2 best rate 0.75",
        "reused ['prepare', 'search', 'spread', 'train']",
        "other 30",
        "reused []",
        "published twin 1.0 Active",
        "endpoint 1 ['0', '1']",
        "active 0",
    ):
        assert line in lines, done.stdout
    workspace = Workspace()
    store = workspace.opened.store
    rest, newest, again, first = store.pipelines()
    assert rest.published == store.published_pipelines(active=False)[0].id
    assert {one.job.state for one in (rest, newest, again, first)} == {JobState.COMPLETED}
    steps = {row.name: row for row in store.steps(first.job.id)}
    spread = store.job(steps["spread"].job)
    assert (spread.spec.distribution.nodes, spread.spec.distribution.backend) == (2, "mpi")
    assert spread.spec.environment_variables["MINE"] == "1"
    assert store.job(store.steps(newest.job.id)[2].job).spec.distribution.nodes in (1, 2)
    reused = store.steps(again.job.id)
    assert [row.original is None for row in reused].count(True) == 1
    assert all(not store.attempts(row.job) for row in reused if row.original)
    workspace.close()


def test_outputs_as_inputs_many_files_and_a_schedule(
    local_target: LocalTarget, own_home: Path
) -> None:
    folder = copy_twin("pipeline_data", own_home)
    done = ran(folder, "driver.py")
    lines = done.stdout.splitlines()
    for line in (
        "status Finished",
        "steps ['write', 'measure', 'add', 'show']",
        f"lengths {[f'page{n}.txt={n}' for n in range(6)]}",
        "show ['total', '15', '6']",
        "schedule every-day Active Day",
        "scheduled Finished",
        "reused ['add', 'measure', 'show', 'write']",
        "listed [True]",
        "now Disabled []",
    ):
        assert line in lines, done.stdout
    until(lambda: timekeeper.running(home()) is None, "without schedules the timekeeper ends")
