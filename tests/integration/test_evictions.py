"""A job that is evicted on purpose resumes from its checkpoint; its stacks on demand."""

from __future__ import annotations

import json

import pytest

from rayjobs.cli.main import run
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

# On SIGTERM it saves its state, if it gets the time.
TRAIN = """
import os, signal, sys, time
from rayjobs import Run, checkpoint

run = Run.get_context()
found = checkpoint.latest()
step = first = 0 if found is None else found.step + 1

def save(number, frame):
    checkpoint.save(step - 1, {"model.bin": b"%d" % step})
    sys.exit(1)

def train_for_ever():
    global step
    while first == 0 or step < first + 3:
        run.log("loss", 1 / (step + 1), step=step)
        if step == 2:
            checkpoint.save(step, {"model.bin": b"two"})
        print("step", step, flush=True)
        step += 1
        time.sleep(0.05)

signal.signal(signal.SIGTERM, save)
train_for_ever()
"""


def begin(jobs: Jobs) -> Job:
    job = jobs.submit(TRAIN)
    until(
        lambda: checkpoints.newest(jobs.store, jobs.workspace.blobs, job.id),
        "a checkpoint is stored",
    )
    return job


def curve(jobs: Jobs, job: Job) -> list[int | None]:
    return [point.step for point in jobs.store.metrics(job.id)]


def test_an_eviction_with_notice_loses_nothing(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begin(jobs)
    assert run(["simulate-eviction", job.id, "--notice", "60s"]) == 0, capsys.readouterr()
    assert "is evicted with 1m of notice" in capsys.readouterr().out
    done = jobs.wait(job, JobState.COMPLETED)
    first = jobs.store.attempts(job.id)[0]
    assert (done.attempt, first.outcome) == (2, "preempted")
    steps = curve(jobs, job)
    assert steps == list(range(len(steps)))
    (lost,) = [event for event in jobs.store.events(job.id) if event.kind == "steps_lost"]
    assert lost.data["steps_lost"] == 0
    jobs.nothing_left(job)


def test_eviction_without_notice_resumes_from_the_last_checkpoint(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begin(jobs)
    assert run(["simulate-eviction", job.id, "--json"]) == 0, capsys.readouterr()
    assert json.loads(capsys.readouterr().out)["attempt"] == 1
    jobs.wait(job, JobState.COMPLETED)
    steps = curve(jobs, job)
    assert steps == list(range(len(steps)))
    (lost,) = [event for event in jobs.store.events(job.id) if event.kind == "steps_lost"]
    assert lost.data["checkpoint_step"] == 2
    assert lost.data["steps_lost"] == lost.data["last_step"] - 2 >= 0
    # The job has ended: there is nothing to evict, and no process to inspect.
    for command in ("simulate-eviction", "stacks"):
        assert run([command, job.id]) == 2
        assert "so it has no processes" in capsys.readouterr().err


def test_the_stacks_of_a_running_job_are_shown_and_kept(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begin(jobs)
    assert run(["stacks", job.id, "--json"]) == 0, capsys.readouterr()
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["rank"] == 0 and rank["text"]
    assert jobs.job(job).state is JobState.RUNNING
    assert run(["stacks", job.id, "--rank", "7"]) == 3
    assert run(["stacks", job.id]) == 0
    assert "== rank 0 on node 0: alive" in capsys.readouterr().out
    jobs.store.request_cancel(job.id)
    jobs.wait(job, JobState.CANCELED)
    assert any(file.name.startswith("logs/stacks/rank-0-") for file in jobs.store.files(job.id))
