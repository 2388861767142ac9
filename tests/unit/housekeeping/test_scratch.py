"""Scratch of a machine: what ended attempts, old snapshots and unused inputs left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rayjobs.core import ids
from rayjobs.core.clock import to_text
from rayjobs.core.paths import AttemptPaths
from rayjobs.housekeeping import scratch
from rayjobs.injob.data_file import DataFile
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.snapshots import NodeSnapshots
from tests.support.attempts import write_plan
from tests.unit.housekeeping.conftest import DAY_S, Runs, age

KEY = "ab" * 32


@pytest.fixture
def node(own_home: Path) -> Path:
    folder = own_home / "h" / "node"
    folder.mkdir(parents=True)
    return folder


def plan(runs: Runs, *, older_than_s: float = DAY_S) -> scratch.ScratchPlan:
    home = Path(os.environ["RAYJOBS_HOME"])
    return scratch.plan(home, workspace=runs.workspace.path, older_than_s=older_than_s)


def attempt_of(node: Path, job_id: str, marker: str = "rj-none") -> Path:
    """Make an attempt's folder with a link out of it."""
    folder = node / "attempts" / job_id / "a1"
    (folder / "work").mkdir(parents=True)
    write_plan(folder, job=job_id, marker=marker)
    (folder / "work" / "data").symlink_to("/")
    return folder


def ended_long_ago(runs: Runs, job: Job) -> Job:
    """Move the end of a finished job to some hours ago; return the job."""
    then = to_text(datetime.now(UTC) - timedelta(hours=5))
    with runs.store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute("UPDATE jobs SET ended_at = ? WHERE id = ?", (then, job.id))
    return job


def set_back(path: Path, seconds: float = 2 * DAY_S) -> None:
    then = time.time() - seconds
    for one in (path, *path.iterdir()):
        os.utime(one, (then, then), follow_symlinks=False)


def test_attempts_of_finished_jobs_are_removed(runs: Runs, node: Path) -> None:
    job = ended_long_ago(runs, runs.finished("old"))
    attempt_of(node, job.id)
    made = plan(runs)
    assert [(item.kind, item.name) for item in made.items] == [("attempt", f"attempts/{job.id}/a1")]
    scratch.apply(made)
    assert list((node / "attempts").iterdir()) == []


def test_a_scratch_folder_that_the_user_names_is_searched(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    job = ended_long_ago(runs, runs.finished("old"))
    attempt_of(tmp_path / "fast", job.id)
    made = plan(runs)
    assert made.root == tmp_path / "fast"
    assert [item.name for item in made.items] == [f"attempts/{job.id}/a1"]


def with_output(folder: Path, job: str, *stored: str, outcome: str = "completed") -> None:
    """Write the files of an ended attempt with outputs a and b, of which `stored` are stored."""
    (folder / "exit.json").write_text(json.dumps({"job": job, "outcome": outcome}))
    place = {"name": "x", "record": {"name": "st", "kind": "local"}, "path": "made"}
    entry = {"path": "/x", "output": place, "folder": "/x"}
    file = DataFile.from_json(
        {"job": job, "attempt": 1, "outputs": {"a": entry, "b": entry}, "stored": stored}
    )
    AttemptPaths(folder).data.write_text(json.dumps(file.to_json()))


def test_the_only_copy_of_outputs_stays_for_a_week(runs: Runs, node: Path) -> None:
    job = ended_long_ago(runs, runs.queue.failed())
    folder = attempt_of(node, job.id)
    with_output(folder, job.id, "a")
    made = plan(runs)
    assert made.items == []
    (left,) = made.unstored
    assert (left.name, left.job, left.outputs) == (f"attempts/{job.id}/a1", job.id, ("b",))
    assert made.kept == [
        f"attempts/{job.id}/a1: the only copy of output b; `rayjobs store {job.id}` stores it"
    ]
    set_back(folder, scratch.UNSTORED_S + 60)
    assert [one.name for one in plan(runs).items] == [f"attempts/{job.id}/a1"]


@pytest.mark.parametrize("how", ["stored", "marked", "failed"])
def test_folder_without_unstored_outputs_is_removed(runs: Runs, node: Path, how: str) -> None:
    job = ended_long_ago(runs, runs.queue.failed())
    folder = attempt_of(node, job.id)
    with_output(
        folder,
        job.id,
        *(("a", "b") if how == "stored" else ()),
        outcome="failed" if how == "failed" else "completed",
    )
    if how == "marked":
        AttemptPaths(folder).stored.touch()
    assert [one.name for one in plan(runs).items] == [f"attempts/{job.id}/a1"]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_attempts_of_other_jobs_stay(state: JobState, runs: Runs, node: Path) -> None:
    job = runs.submit()
    if state is JobState.RUNNING:
        runs.queue.start(job)
    set_back(attempt_of(node, job.id))
    assert plan(runs, older_than_s=0.0).items == []


def test_agent_gets_time_to_clean_up(runs: Runs, node: Path) -> None:
    attempt_of(node, runs.finished("just-now").id)
    assert plan(runs, older_than_s=0.0).items == []


def test_old_unknown_attempts_are_removed(runs: Runs, node: Path) -> None:
    folder = attempt_of(node, "other_1_ab")
    assert plan(runs).items == []
    set_back(folder)
    assert len(plan(runs).items) == 1


def test_unknown_attempts_stay_while_a_workspace_is_unreadable(
    runs: Runs, node: Path, tmp_path: Path
) -> None:
    set_back(attempt_of(node, "other_1_ab"))
    (tmp_path / "workspace.json").write_text("{")
    record = node.parent / "targets" / "local" / "workspaces" / "1.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"path": str(tmp_path)}))
    assert plan(runs).items == []


@pytest.mark.parametrize("plan_text", [None, "", "[]", '{"marker": ', '{"version": 2}'])
def test_an_attempt_with_a_living_process_stays(
    runs: Runs, node: Path, plan_text: str | None
) -> None:
    """Even if its plan is damaged or of a later version: the marker contains the attempt's name."""
    job = ended_long_ago(runs, runs.finished("old"))
    marker = ids.marker(job.id, 1, 0)
    folder = attempt_of(node, job.id, marker if plan_text is None else "rj-none")
    if plan_text is not None:
        (folder / "plan.json").write_text(plan_text)
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, "RAYJOBS_MARKER": marker})
    try:
        deadline = time.monotonic() + 60
        while marker not in scratch.living_markers() and time.monotonic() < deadline:
            time.sleep(0.01)
        made = plan(runs)
        assert made.items == []
        assert "still run" in made.kept[0]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    made = plan(runs)
    scratch.apply(made)
    assert not folder.exists()


def snapshot_of(node: Path) -> Path:
    folder = node / "snapshots" / KEY
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (node / "snapshots" / f"{KEY}.json").write_text(json.dumps({"boot_id": boot}))
    return folder


def test_unused_unpacked_snapshots_are_removed_after_a_while(runs: Runs, node: Path) -> None:
    folder = snapshot_of(node)
    assert plan(runs).items == []
    age(node)
    scratch.apply(plan(runs))
    assert not folder.exists()
    assert not folder.with_name(f"{KEY}.json").exists()


def test_a_snapshot_that_is_used_after_the_plan_stays(runs: Runs, node: Path) -> None:
    folder = snapshot_of(node)
    age(node)
    made = plan(runs)

    def open_blob() -> Path:
        raise AssertionError("it is there")

    assert NodeSnapshots(node / "snapshots").ensure(f"sha256:{KEY}", open_blob) == folder
    assert scratch.apply(made).spared == 1
    assert (folder / "train.py").exists()


def test_a_snapshot_that_is_being_copied_stays(runs: Runs, node: Path) -> None:
    folder = snapshot_of(node)
    age(node)
    made = plan(runs)
    with (node / "snapshots" / f"{KEY}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert scratch.apply(made).spared == 1
    assert (folder / "train.py").exists()


def test_unused_cached_inputs_are_removed(runs: Runs, node: Path, tmp_path: Path) -> None:
    objects = node / "data" / "cache" / "objects" / "ab"
    objects.mkdir(parents=True)
    for name in ("unused", "linked", "used-later"):
        (objects / name).write_bytes(b"x" * 10)
        (objects / f"{name}.seal").write_text("[]")
    os.link(objects / "linked", tmp_path / "input")
    age(node)
    made = plan(runs)
    assert sorted(item.name.rpartition("/")[2] for item in made.items) == ["unused", "used-later"]
    os.link(objects / "used-later", tmp_path / "later")
    scratch.apply(made)
    assert sorted(path.name for path in objects.iterdir()) == [
        "linked",
        "linked.seal",
        "used-later",
        "used-later.seal",
    ]


def test_a_scratch_that_is_a_link_is_refused(runs: Runs, node: Path, tmp_path: Path) -> None:
    node.rmdir()
    node.symlink_to(tmp_path)
    with pytest.raises(Exception, match="is a link"):
        plan(runs)
