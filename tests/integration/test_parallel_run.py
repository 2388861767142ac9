"""Parallel runs on a real target: each item has exactly one row, whichever process dies."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.datastore import Dataset, Datastore
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Distribution, Input, Output, ParallelRun, Retries
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray

COUNT = 23
# Each call leaves a file that names its process; `wait` is a file for which item 11 waits.
SCRIPT = """
import argparse, os, time
def init():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls")
    parser.add_argument("--wait")
    parser.add_argument("--side")
    options, _ = parser.parse_known_args()
    assert open(os.path.join(options.side, "side.txt")).read() == "side"

def run(mini_batch):
    names = sorted(os.path.basename(one) for one in mini_batch)
    with open(os.path.join(options.calls, f"{names[0]}-{os.getpid()}-{time.time_ns()}"), "w") as f:
        f.write(os.environ.get("RANK", "0"))
    if options.wait and "011.txt" in names:
        while not os.path.exists(options.wait):
            time.sleep(0.02)
    time.sleep(0.03)
    return [f"{os.path.basename(one)}:{open(one).read()}" for one in mini_batch]
"""


def fill(jobs: Jobs, folder: Path) -> None:
    for part, names in (("in", [f"{n:03}.txt" for n in range(COUNT)]), ("side", ["side.txt"])):
        (folder / part).mkdir(parents=True)
        for name in names:
            (folder / part / name).write_text("side" if part == "side" else name[:3])
        Datastore.get_default(jobs.workspace).upload(folder / part, part, show_progress=False)


def submit(jobs: Jobs, folder: Path, script: str = SCRIPT, **changes: Any) -> tuple[Job, Path]:
    fill(jobs, folder)
    calls = folder / "calls"
    calls.mkdir()
    parallel_run = {"inputs": ("items",), "output": "rows", "mini_batch_size": 2}
    spec: dict[str, Any] = {
        "distribution": Distribution(nodes=2, processes_per_node=2, backend="gloo"),
        "inputs": {
            "items": Input(source="workspaceblobstore/in"),
            "side": Input(source="workspaceblobstore/side"),
        },
        "outputs": {"rows": Output(destination="workspaceblobstore/rows/{run-id}")},
        "arguments": (
            *("--calls", str(calls), "--wait", str(folder / "go")),
            *("--side", "$AZUREML_DATAREFERENCE_side"),
        ),
        **changes,
        "parallel_run": ParallelRun(**{**parallel_run, **changes.get("parallel_run", {})}),
    }
    return jobs.submit(script, **spec), calls


def rows(jobs: Jobs, job: Job, name: str = "parallel_run_step.txt") -> list[str]:
    (found,) = (jobs.workspace.path / "datastores").rglob(f"rows/{job.id}/{name}")
    return found.read_text().splitlines()


EXACT = [f"{n:03}.txt:{n:03}" for n in range(COUNT)]


def at_item_11(calls: Path) -> tuple[int, int]:
    """Return the process with the mini-batch of item 11, and its rank."""

    def found() -> Path | None:
        return next((one for one in calls.glob("010.txt-*") if one.read_text()), None)

    file = until(found, "a worker has the mini-batch of item 11")
    assert file is not None
    inside = file.name.split("-")[1]
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            # Its pid in its own PID namespace comes last, if it has one.
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            words = status.with_name("cmdline").read_bytes()
            if fields["NSpid"].split()[-1] == inside and str(calls).encode() in words:
                return int(fields["Pid"]), int(fields["PPid"])
    raise AssertionError(f"no process is {inside}")


def test_a_killed_worker_loses_nothing_and_repeats_no_row(jobs: Jobs, tmp_path: Path) -> None:
    job, calls = submit(jobs, tmp_path)
    worker, _ = at_item_11(calls)
    # The others continue while it hangs.
    until(lambda: len(list(calls.iterdir())) == 12, "all mini-batches are handed out")
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(list(calls.glob("010.txt-*"))) == 2, "its mini-batch is retried")
    (tmp_path / "go").touch()
    jobs.wait(job, JobState.COMPLETED)
    assert rows(jobs, job) == EXACT
    assert jobs.job(job).attempt == 1
    done = Counter(one.name.split("-")[0] for one in calls.iterdir())
    assert done == {f"{n:03}.txt": 2 if n == 10 else 1 for n in range(0, COUNT, 2)}
    assert len({one.read_text() for one in calls.iterdir()}) > 1, "several ranks worked"
    jobs.nothing_left(job)


def test_a_killed_rank_is_a_new_attempt_with_exact_rows(jobs: Jobs, tmp_path: Path) -> None:
    job, calls = submit(jobs, tmp_path, retries=Retries(user=2, system=2))
    _, rank = at_item_11(calls)
    os.kill(rank, signal.SIGKILL)
    until(lambda: jobs.job(job).attempt == 2, "the job is retried")
    (tmp_path / "go").touch()
    jobs.wait(job, JobState.COMPLETED)
    assert rows(jobs, job) == EXACT
    jobs.nothing_left(job)


BROKEN = """
import os, time
def run(mini_batch):
    name = os.path.basename(mini_batch[0])
    if name == "004.txt":
        raise ValueError("item 4 is broken")
    if name == "008.txt":
        time.sleep(60)
    if name == "012.txt":
        return mini_batch[:1]
    return [os.path.basename(one) for one in mini_batch]
"""


def test_broken_items_are_counted_and_left_out(jobs: Jobs, tmp_path: Path) -> None:
    limits = {"run_invocation_timeout_s": 1.0, "run_max_try": 2, "error_threshold": 5}
    job, _ = submit(
        jobs, tmp_path, BROKEN, distribution=Distribution(), arguments=(), parallel_run=limits
    )
    jobs.wait(job, JobState.COMPLETED)
    found = rows(jobs, job)
    assert not {"004.txt", "005.txt", "008.txt", "009.txt", "013.txt"} & set(found)
    assert len(found) == COUNT - 5
    log = jobs.log(job)
    assert b"mini-batch 2, try 2 of 2: ValueError: item 4 is broken" in log
    assert b"mini-batch 4, try 1 of 2: run() took longer than 1 s" in log
    assert b"12 mini-batches of 23 items: 18 succeeded, 5 failed" in log


def test_more_failures_than_the_threshold_fail_the_job(jobs: Jobs, tmp_path: Path) -> None:
    limits = {"run_max_try": 1, "error_threshold": 1, "run_invocation_timeout_s": 0.5}
    shape = Distribution(processes_per_node=2, backend="gloo")
    job, _ = submit(jobs, tmp_path, BROKEN, distribution=shape, arguments=(), parallel_run=limits)
    failed = jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None and failed.failure.failure_class is FailureClass.USER
    message = " ".join([failed.failure.message, *failed.failure.lines])
    assert "items failed, and the error threshold is 1" in message
    assert not list((jobs.workspace.path / "datastores").rglob(f"rows/{job.id}/*"))


SUMMARY = """
import os
def init():
    global folder
    folder = os.environ["RAYJOBS_OUTPUT_ROWS"]
    os.makedirs(folder, exist_ok=True)
def run(mini_batch):
    for one in mini_batch:
        with open(os.path.join(folder, os.path.basename(one)), "w") as file:
            file.write("scored")
    return mini_batch
def shutdown():
    print("shut down")
"""


def test_with_summary_only_the_script_stores_its_results(jobs: Jobs, tmp_path: Path) -> None:
    job, _ = submit(
        jobs,
        tmp_path,
        SUMMARY,
        distribution=Distribution(),
        arguments=(),
        parallel_run={"output_action": "summary_only", "mini_batch_size": None},
    )
    jobs.wait(job, JobState.COMPLETED)
    (place,) = (jobs.workspace.path / "datastores").rglob(f"rows/{job.id}")
    assert sorted(one.name for one in place.iterdir()) == [f"{n:03}.txt" for n in range(COUNT)]
    log = jobs.log(job)
    assert b"3 mini-batches of 23 items: 23 succeeded, 0 failed" in log
    assert b"shut down" in log


TABLE = """
import pandas
def run(mini_batch):
    assert isinstance(mini_batch, pandas.DataFrame)
    mini_batch["twice"] = mini_batch["n"] * 2
    return mini_batch
"""


def test_rows_of_a_table_come_in_mini_batches_of_bytes(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("n,word\n" + "".join(f"{n},w{n}\n" for n in range(500)))
    store = Datastore.get_default(jobs.workspace)
    store.upload_files([str(tmp_path / "table.csv")], target_path="t", show_progress=False)
    Dataset.Tabular.from_delimited_files((store, "t/table.csv")).register(jobs.workspace, "words")
    job, _ = submit(
        jobs,
        tmp_path / "more",
        TABLE,
        distribution=Distribution(processes_per_node=2, backend="gloo"),
        arguments=(),
        inputs={"items": Input(source="dataset:words", mode="direct")},
        parallel_run={"mini_batch_size": "4KB", "append_row_file_name": "words.txt"},
    )
    jobs.wait(job, JobState.COMPLETED)
    assert rows(jobs, job, "words.txt") == [f"{n} w{n} {2 * n}" for n in range(500)]
    log = jobs.file(job, "azureml-logs/70_driver_log_0.txt")
    assert b"of 500 items: 500 succeeded" in log
    assert b"INFO parallel run: 1 mini-batch of" not in log


def test_an_entry_script_that_does_not_start_fails_the_job(jobs: Jobs, tmp_path: Path) -> None:
    script = "def init():\n    raise OSError('no model')\ndef run(mini_batch):\n    return []\n"
    job, _ = submit(jobs, tmp_path, script, distribution=Distribution(), arguments=())
    failed = jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None
    assert "the entry script does not start: OSError: no model" in " ".join(
        [failed.failure.message, *failed.failure.lines]
    )
