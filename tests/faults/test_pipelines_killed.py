"""The target actor is killed between the steps of a pipeline: none is repeated, none is lost."""

from __future__ import annotations

import os
import signal
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.submitter import submit_pipeline
from rayjobs.store.requests import JobFilter
from tests.faults.test_processes_killed import actor_pid
from tests.jobs import Jobs, kill, until
from tests.local_target import LocalTarget

pytestmark = pytest.mark.ray

# Adds one to what the step before it made, and waits for its turn.
STEP = """
import os, pathlib, sys, time
name, out, turn, *before = sys.argv[1:]
with open(LEDGER, "a") as ledger:
    ledger.write(name + "\\n")
while not os.path.exists(turn):
    time.sleep(0.02)
values = [int(pathlib.Path(one, "n").read_text()) for one in before]
os.makedirs(out)
pathlib.Path(out, "n").write_text(str(1 + max(values, default=0)))
"""


def test_an_actor_that_dies_between_steps_repeats_and_loses_none(
    jobs: Jobs, local_target: LocalTarget, tmp_path: Path
) -> None:
    ledger, turns = tmp_path / "ledger", tmp_path / "turns"
    turns.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    (source / "step.py").write_text(f"LEDGER = {str(ledger)!r}\n{textwrap.dedent(STEP)}")
    names = ["first", "second", "third"]
    steps = {}
    for name, before in zip(names, [None, *names], strict=False):
        variables = "$AZUREML_DATAREFERENCE_"
        steps[name] = {
            "script": "step.py",
            "grace_s": 2.0,
            "outputs": {"made": {"is_folder": False}},
            "arguments": [name, f"{variables}made", str(turns / name)]
            + ([] if before is None else [f"{variables}read"]),
            "inputs": {} if before is None else {"read": f"step:{before}/made"},
        }
    spec = pipeline_of({"name": "chain", "steps": steps}, folder=source)
    run = submit_pipeline(jobs.workspace, spec).pipeline.job
    rows = {row.name: row.job for row in jobs.store.steps(run.id)}
    for name in names:
        step = jobs.store.job(rows[name])
        jobs.wait(step, JobState.RUNNING)
        root = jobs.root(step)
        # Stopped first: the step ends, and no actor records it or starts the next one.
        old = actor_pid(local_target)
        os.kill(old, signal.SIGSTOP)
        (turns / name).write_text("")
        until((root / "exit.json").exists, "the step ends while nothing follows it")
        kill(old)
    done = jobs.wait(run, JobState.COMPLETED)
    assert done.reason == "3 Completed"
    assert Counter(ledger.read_text().split()) == dict.fromkeys(names, 1)
    assert {job.attempt for job in jobs.store.jobs(JobFilter(parent=run.id))} == {1}
    last = jobs.store.job(rows["third"])
    place = jobs.workspace.path / "datastores"
    (made,) = place.rglob(f"{last.id}/made/n")
    assert made.read_text() == "3"
