"""A script on a real target has child runs, and reads its workspace."""

from __future__ import annotations

import json

import pytest

from rayjobs import Workspace
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray

SCRIPT = """
import json
from rayjobs import Run

run = Run.get_context()
with run.child_run("fold") as fold:
    fold.log("accuracy", 0.5)
    fold.log("accuracy", 0.75)
left = run.create_children(count=2)
workspace = run.experiment.workspace
print(json.dumps({
    "status": run.get_details()["status"],
    "children": sorted(child.name for child in run.get_children()),
    "store": workspace.get_default_datastore().name,
    "run": workspace.get_run(run.id).status,
}))
"""


def test_a_script_has_children_and_a_workspace(jobs: Jobs) -> None:
    job = jobs.submit(SCRIPT)
    jobs.wait(job, JobState.COMPLETED)
    found = json.loads(jobs.log(job).decode().splitlines()[-1])
    assert (found["status"], found["run"]) == ("Running", "Running")
    assert found["store"] == "workspaceblobstore" and len(found["children"]) == 3
    children = jobs.store.jobs(JobFilter(parent=job.id))
    assert {child.state for child in children} == {JobState.COMPLETED}  # those left open, too
    [fold] = [child for child in children if child.display_name == "fold"]
    workspace = Workspace._of(jobs.workspace)
    assert workspace.get_run(fold.id).get_metrics() == {"accuracy": [0.5, 0.75]}
    jobs.nothing_left(job)


def test_fail_in_a_script_fails_the_job(jobs: Jobs) -> None:
    job = jobs.submit("from rayjobs import Run\nRun.get_context().fail('it diverged')\n")
    ended = jobs.wait(job, JobState.FAILED)
    assert ended.failure is not None and "it diverged" in ended.failure.message
