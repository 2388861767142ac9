"""However a job ends early, it resumes from its checkpoint with a complete curve."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from rayjobs.core.paths import TargetPaths, home
from rayjobs.injob.identity import is_alive, send_signal
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results.metrics import series
from rayjobs.submit import submitting
from rayjobs.target import local_head, starting, targets
from rayjobs.workspace.folder import locate, open_workspace
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

# Runs forever unless it resumes from a checkpoint. The rank records each step in a file,
# independently of rayjobs.
TRAIN = """
import json, os, time
from rayjobs import Run, checkpoint

run = Run.get_context()
found = checkpoint.latest()
first = 0 if found is None else found.step + 1
attempt = int(os.environ["RAYJOBS_ATTEMPT"])
resumed = "RAYJOBS_RESUME_FROM" in os.environ
step = first
while not resumed or step < first + 10:
    run.log("loss", 1 / (step + 1), step=step)
    if step % 4 == 0:
        checkpoint.save(step, {"model.bin": b"weights %d" % step}, keep=2)
    with open(os.environ["HISTORY"], "a") as file:
        print(json.dumps([os.environ["AZUREML_RUN_ID"], attempt, step, time.time()]), file=file)
    print("step", step, flush=True)
    step += 1
    time.sleep(0.05)
"""


def history(path: Path) -> list[tuple[str, int, int, float]]:
    """Return (job, attempt, step, epoch seconds) as the ranks wrote them, without torn lines."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def submit(jobs: Jobs, history_file: Path, **spec: object) -> Job:
    job = jobs.submit(TRAIN, environment_variables={"HISTORY": str(history_file)}, **spec)
    until(
        lambda: any(step > 9 for _, _, step, _ in history(history_file)),
        "some checkpoints are saved",
    )
    return job


def test_job_ended_by_its_time_limit_is_resumed_manually(jobs: Jobs, tmp_path: Path) -> None:
    history_file = tmp_path / "history"
    job = submit(jobs, history_file, max_duration_s=8.0)
    ended = jobs.wait(job, JobState.FAILED)
    assert ended.failure is not None
    assert str(ended.failure.failure_class) == "time_limit"
    before = series(jobs.store.metrics(job.id))["loss"].steps
    assert before == tuple(range(len(before)))

    again = submitting.resume(jobs.workspace, job.id, changes={"max_duration_s": 600.0}).job
    jobs.wait(again, JobState.COMPLETED)
    after = series(jobs.store.metrics(again.id))["loss"].steps
    # It starts after the newest checkpoint: together the two jobs have every step.
    newest = max(step for step in before if step % 4 == 0)
    assert after == tuple(range(after[0], after[0] + 10))
    assert after[0] in (newest + 1, newest - 3), "the last save may have been cut short"


@pytest.fixture
def own_jobs(short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """A workspace on a head for this test only, which it may kill."""
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "2")
    monkeypatch.setenv("RAYJOBS_LOCAL_DASHBOARD", "0")  # half the time of a start
    workspace = open_workspace(locate())
    yield Jobs(workspace, tmp_path)
    workspace.close()
    targets.stop_target(force=True, home=short_path / "h")


def test_job_continues_after_the_ray_head_was_killed(own_jobs: Jobs, tmp_path: Path) -> None:
    jobs, history_file = own_jobs, tmp_path / "history"
    job = submit(jobs, history_file)
    jobs.wait(job, JobState.RUNNING)
    host = jobs.host_process(job)
    record = local_head.load_record(TargetPaths.of("local", under=home()))
    assert record is not None
    killed = list(local_head.processes_of(Path(record.temp_dir)))
    for identity in killed:
        send_signal(identity, signal.SIGKILL)
    until(lambda: not any(is_alive(one) for one in killed), "Ray is dead")
    assert is_alive(host), "the attempt outlives Ray"
    starting.ensure_target("local", home=home(), workspace=jobs.workspace.path)

    done = jobs.wait(job, JobState.COMPLETED)
    assert done.attempt == 2
    first, _ = jobs.store.attempts(job.id)
    assert first.failure is not None
    assert str(first.failure.failure_class) == "node_lost"
    jobs.nothing_left(job)
    # The surviving attempt was dead before the next one began: it has no later step.
    of_attempt = {
        number: [one for one in history(history_file) if one[1] == number] for number in (1, 2)
    }
    assert max(at for *_, at in of_attempt[1]) < min(at for *_, at in of_attempt[2])
    curve = series(jobs.store.metrics(job.id))["loss"]
    assert all(later - earlier == 1 for earlier, later in pairwise(curve.steps))
    assert curve.steps[0] == 0
    assert len(curve.steps) > 18
