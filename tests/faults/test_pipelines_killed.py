"""The target actor is killed between the steps of a pipeline: none is repeated, none is lost."""

from __future__ import annotations

import os
import signal
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.submitter import submit_pipeline
from rayjobs.store.requests import JobFilter
from tests.faults.test_processes_killed import actor_pid
from tests.support.jobs import Jobs, kill, until
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray

# Adds one to the output of the previous step, and waits for its turn.
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


@dataclass(frozen=True)
class Chain:
    """A submitted pipeline in which each step reads the previous one, and waits for its turn.

    Attributes:
        run: The pipeline run.
        steps: The job of each step.
        turns: Folder of the files that let steps end.
        ledger: A line for each start of a step.
    """

    run: Job
    steps: Mapping[str, str]
    turns: Path
    ledger: Path

    def check(self, jobs: Jobs) -> None:
        """Wait for the end; check that no step was repeated and none was lost."""
        done = jobs.wait(self.run, JobState.COMPLETED)
        assert done.reason == f"{len(self.steps)} Completed"
        assert Counter(self.ledger.read_text().split()) == dict.fromkeys(self.steps, 1)
        ran = jobs.store.jobs(JobFilter(parent=self.run.id))
        assert {job.attempt for job in ran} == {1}
        (made,) = (jobs.workspace.path / "datastores").rglob(f"{[*self.steps.values()][-1]}/made/n")
        assert made.read_text() == str(len(self.steps))


def submit_chain(jobs: Jobs, folder: Path, *names: str) -> Chain:
    """Submit a chain of steps."""
    ledger, turns, source = folder / "ledger", folder / "turns", folder / "source"
    turns.mkdir()
    source.mkdir()
    (source / "step.py").write_text(f"LEDGER = {str(ledger)!r}\n{textwrap.dedent(STEP)}")
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
    return Chain(run, rows, turns, ledger)


def test_actor_killed_between_steps_repeats_and_loses_no_step(
    jobs: Jobs, local_target: LocalTarget, tmp_path: Path
) -> None:
    chain = submit_chain(jobs, tmp_path, "first", "second", "third")
    for name, job_id in chain.steps.items():
        step = jobs.store.job(job_id)
        jobs.wait(step, JobState.RUNNING)
        root = jobs.root(step)
        # Stopped first: the step ends, and no actor records it or starts the next one.
        old = actor_pid(local_target)
        os.kill(old, signal.SIGSTOP)
        (chain.turns / name).write_text("")
        until((root / "exit.json").exists, "the step ends while no actor follows it")
        kill(old)
    chain.check(jobs)
