"""Jobs on real Ray: every part of a job's lifecycle, as its user sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import CannotBePlacedError, SpecError
from rayjobs.core.paths import runtime_dir
from rayjobs.jobs.records import AllocationState
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Resources, Retries, SecretRef
from rayjobs.submit.submitting import Entry, submit
from rayjobs.target.secrets import TargetSecrets
from rayjobs.workspace.folder import open_workspace
from tests.support.jobs import Jobs, until, wake
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray


def test_a_job_logs_measures_stores_and_completes(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        import os, sys
        from rayjobs import Run
        run = Run.get_context()
        print("argument", sys.argv[1:], flush=True)
        for step in range(4):
            run.log("loss", 1 / (step + 1), step=step)
        run.tag("colour", "red")
        with open("outputs/model.txt", "w") as file:
            file.write("weights")
        with open("logs/own.txt", "w") as file:
            file.write("line")
        """,
        arguments=("--run", "$RAYJOBS_RUN_ID"),
    )
    done = jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job) == f"argument ['--run', '{job.id}']\n".encode()
    assert [point.value for point in jobs.store.metrics(job.id)] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert jobs.file(job, "outputs/model.txt") == b"weights"
    assert jobs.file(job, "logs/own.txt") == b"line"
    assert done.tags["colour"] == "red"
    assert done.started_at is not None
    assert done.ended_at is not None
    jobs.nothing_left(job)


def test_a_script_makes_sockets_in_its_temporary_folder_whatever_the_experiments_name(
    jobs: Jobs,
) -> None:
    # Workers of a DataLoader send tensors through such sockets: without one, the loader hangs.
    job = jobs.submit(
        """
        import os, tempfile
        from multiprocessing.connection import Listener
        with Listener(family="AF_UNIX") as listener:
            assert os.path.dirname(os.path.dirname(listener.address)) == os.environ["TMPDIR"]
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == os.environ["AZ_BATCHAI_JOB_TEMP"]
        print(os.path.realpath(os.environ["TMPDIR"]))
        """,
        experiment="an-experiment-as-long-as-a-sentence-since-paths-of-sockets-have-107-bytes",
    )
    done = jobs.wait(job, JobState.COMPLETED)
    tmp = Path(jobs.log(done).decode().strip())
    assert tmp.parts[-3:] == (job.id, "a1", "tmp")
    jobs.nothing_left(job)
    until(lambda: str(tmp) not in _links(), "the link is removed with the folder")


def _links() -> list[str]:
    return [str(one.readlink()) for one in runtime_dir().glob("tmp-*")]


def test_the_second_job_is_warm_and_gets_the_first_ones_allocation(jobs: Jobs) -> None:
    pairs = []
    for _ in range(5):  # on a busy machine a pair may take longer than an idle allocation is kept
        first = jobs.wait(jobs.submit("print(1)"), JobState.COMPLETED)
        name = jobs.attempt(first).allocation
        until(lambda name=name: is_free_or_gone(jobs, name), "the allocation is free")  # type: ignore[misc]
        second = jobs.wait(jobs.submit("print(2)"), JobState.COMPLETED)
        attempts = [jobs.attempt(first), jobs.attempt(second)]
        assert [attempt.cold_reason for attempt in attempts] == [None, None]
        pairs.append((name, attempts[1].allocation))
        if name == attempts[1].allocation:
            return
    pytest.fail(f"no second job got the allocation of the first: {pairs}")


def is_free_or_gone(jobs: Jobs, name: str | None) -> bool:
    """Return whether an allocation may be reused, or was already released."""
    states = {row.name: row.state for row in jobs.store.allocations("local")}
    return states.get(str(name), AllocationState.RELEASED) in (
        AllocationState.IDLE,
        AllocationState.RELEASED,
    )


def test_a_cold_start_names_its_reason(jobs: Jobs) -> None:
    cold = jobs.submit("print('cold')", cold=True)
    set_early = jobs.submit("print('env')", environment_variables={"PYTHONHASHSEED": "1"})
    jobs.wait(cold, JobState.COMPLETED)
    jobs.wait(set_early, JobState.COMPLETED)
    assert "--cold" in str(jobs.attempt(cold).cold_reason)
    assert "PYTHONHASHSEED" in str(jobs.attempt(set_early).cold_reason)
    assert jobs.log(cold) == b"cold\n"


def test_a_script_that_raises_is_named_with_its_line(jobs: Jobs) -> None:
    job = jobs.submit("import math\nmath.sqrt(-1)\n")
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert done.failure.exit_code == 1
    assert "ValueError: math domain error" in done.failure.message
    text = jobs.log(job).decode()
    assert text.startswith("Traceback (most recent call last):\n")
    assert "rayjobs" not in text.replace(str(jobs.folder), "").replace("/node/attempts/", "")
    assert done.attempt == 1


@pytest.mark.parametrize("code", [0, 3])
def test_exit_codes(jobs: Jobs, code: int) -> None:
    job = jobs.submit(f"import sys\nsys.exit({code})")
    done = jobs.wait(job)
    assert done.state is (JobState.COMPLETED if code == 0 else JobState.FAILED)
    assert code == 0 or (done.failure is not None and done.failure.exit_code == code)


def test_cancel_ends_a_stubborn_tree(jobs: Jobs) -> None:
    job = jobs.submit(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
            os._exit(0)
        print("ready", flush=True)
        time.sleep(600)
        """,
        grace_s=0.5,
    )
    jobs.wait_for_output(job, b"ready")
    for _ in range(2):
        jobs.store.request_cancel(job.id)
        wake(jobs.workspace)
    jobs.wait(job, JobState.CANCELED)
    jobs.nothing_left(job)
    (record,) = jobs.attempt(job).exits
    assert record.leftovers.proven_dead
    assert record.leftovers.killed >= 1


def test_time_limit_has_its_own_failure_class(jobs: Jobs) -> None:
    job = jobs.submit("import time\ntime.sleep(600)", max_duration_s=0.5, grace_s=0.2)
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "time_limit"


def test_out_of_memory_is_named_and_others_live(jobs: Jobs) -> None:
    neighbour = jobs.submit("import time\nprint('up', flush=True)\ntime.sleep(600)")
    jobs.wait_for_output(neighbour, b"up")
    jobs.wait(neighbour, JobState.RUNNING)
    hog = jobs.submit(
        """
        import time
        blocks = [bytearray(b"x" * 10 * 2**20) for _ in range(205)]  # 2 GiB and no more
        time.sleep(600)
        """,
        resources=Resources(memory_gib=0.75),
    )
    done = jobs.wait(hog, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "out_of_memory", done.failure
    assert jobs.job(neighbour).state is JobState.RUNNING


def test_gpu_ids_are_exclusive_to_the_job(jobs: Jobs) -> None:
    script = """
        import os, time
        print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.02)
    """
    go = jobs.folder / "go"
    pair = [
        jobs.submit(script, resources=Resources(gpus=2), environment_variables={"GO": str(go)})
        for _ in range(2)
    ]
    for job in pair:
        jobs.wait_for_output(job, b"\n")
    third = jobs.submit("print('third')", resources=Resources(gpus=1))
    go.write_text("")
    seen = []
    for job in pair:
        jobs.wait(job, JobState.COMPLETED)
        seen += jobs.log(job).decode().strip().split(",")
    assert sorted(seen) == ["0", "1", "2", "3"]
    jobs.wait(third, JobState.COMPLETED)


def test_unsatisfiable_job_is_refused_at_submit(jobs: Jobs) -> None:
    with pytest.raises(CannotBePlacedError, match="1000"):
        jobs.submit("print()", resources=Resources(gpus=1000))
    assert jobs.store.jobs() == []


def test_a_missing_script_is_refused_and_a_broken_one_fails_once(
    jobs: Jobs, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"tran\.py"):
        jobs.submit_folder(tmp_path, script="tran.py")
    job = jobs.submit("print('open", retries=Retries())
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert "SyntaxError" in done.failure.message
    assert done.attempt == 1


def test_secrets_reach_the_script_and_nothing_else(jobs: Jobs, tmp_path: Path) -> None:
    canary = "canary-3b1f"
    secret = tmp_path / "secret"
    secret.write_text(canary + "\n")
    job = jobs.submit(
        """
        import os
        assert os.environ["TOKEN"] == "canary" + "-3b1f"
        print(sorted(name for name in os.environ if name.startswith("RAY_")))
        """,
        secrets={"TOKEN": SecretRef(file=str(secret))},
        max_duration_s=300,
    )
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job) == b"[]\n"
    secret.unlink()
    for folder in (jobs.workspace.path, Path(os.environ["RAYJOBS_HOME"])):
        for path in files_below(folder):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # scratch of an attempt that has just ended
            assert canary.encode() not in data, path


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the plain files below a folder, which other processes may change meanwhile."""
    for where, _folders, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink():
                yield path


def test_secret_missing_on_the_target_is_refused_until_it_is_set(
    jobs: Jobs, local_target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: leave out `credentials.missing`, or `NodeSecrets.bring`."""
    name = "RAYJOBS_SECRET_GIVEN_LATER"
    script = "import os\nprint(len(os.environ['TOKEN']))"
    secrets = {"TOKEN": SecretRef(env=name)}
    with pytest.raises(SpecError, match=f"rayjobs target secret set {name}"):
        jobs.submit(script, secrets=secrets)
    kept = TargetSecrets("local", home=local_target.home)
    try:
        kept.set(name, "abc")  # by a user, while the target runs
        done = jobs.wait(jobs.submit(script, secrets=secrets), JobState.COMPLETED)
        assert jobs.log(done) == b"3\n"
        kept.remove(name)
        monkeypatch.setenv(name, "abcde")  # by a submit, from the shell
        done = jobs.wait(jobs.submit(script, secrets=secrets), JobState.COMPLETED)
        assert jobs.log(done) == b"5\n"
    finally:
        kept.remove(name)


def test_secret_removed_before_the_start_is_an_environment_failure(
    jobs: Jobs, local_target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "RAYJOBS_SECRET_THAT_GOES"
    monkeypatch.setenv(name, "abc")
    gate = jobs.folder / "gate"
    first = jobs.submit(
        f"""
        import pathlib, time
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.05)
        """
    )
    job = jobs.submit(
        "print()",
        secrets={"TOKEN": SecretRef(env=name)},
        depends_on=({"job": first.id},),
        retries={"environment": 3},
    )
    TargetSecrets("local", home=local_target.home).remove(name)
    gate.touch()
    done = jobs.wait(job, JobState.FAILED)
    assert done.failure is not None
    assert str(done.failure.failure_class) == "environment"
    assert f"rayjobs target secret set {name}" in done.failure.message
    assert done.attempt == 1  # a retry cannot help


def test_a_script_may_remove_its_own_directory(jobs: Jobs) -> None:
    job = jobs.submit("import os, shutil\nshutil.rmtree(os.getcwd())\nprint('gone')")
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job) == b"gone\n"


def test_bytes_are_kept_as_they_were_printed(jobs: Jobs) -> None:
    job = jobs.submit("import os\nos.write(1, bytes(range(256)) * 3)")
    jobs.wait(job, JobState.COMPLETED)
    assert jobs.log(job) == bytes(range(256)) * 3


def test_two_jobs_have_folders_of_their_own(jobs: Jobs) -> None:
    script = """
        import os, stat, tempfile
        root = os.environ["RAYJOBS_ATTEMPT_DIR"]
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        print(root, tempfile.gettempdir())
    """
    pair = [jobs.submit(script) for _ in range(2)]
    lines = []
    for job in pair:
        jobs.wait(job, JobState.COMPLETED)
        lines += jobs.log(job).split()
    assert len(set(lines)) == 4


def test_the_target_serves_many_workspaces(jobs: Jobs, tmp_path: Path) -> None:
    other = open_workspace(tmp_path / "other")
    theirs = Jobs(other, tmp_path / "o")
    theirs.folder.mkdir()
    mine, their = jobs.submit("print('mine')"), theirs.submit("print('theirs')")
    jobs.wait(mine, JobState.COMPLETED)
    theirs.wait(their, JobState.COMPLETED)
    assert theirs.log(their) == b"theirs\n"
    other.close()


def test_one_key_is_one_job(jobs: Jobs) -> None:
    source = jobs.folder / "s"
    source.mkdir()
    (source / "train.py").write_text("print(1)")
    made = jobs.submit_folder(source)
    entry = Entry(idempotency_key="k")
    again = submit(jobs.workspace, made.spec, source=source, experiment="test", entry=entry)
    same = submit(jobs.workspace, made.spec, source=source, experiment="test", entry=entry)
    assert again.created
    assert not same.created
    assert again.job.id == same.job.id
    jobs.wait(again.job, JobState.COMPLETED)


def test_priority_decides_which_job_is_next(jobs: Jobs, tmp_path: Path) -> None:
    go, order = tmp_path / "go", tmp_path / "order"
    blocker = jobs.submit(
        f"""
        import os, time
        print("up", flush=True)
        while not os.path.exists({str(go)!r}):
            time.sleep(0.02)
        """,
        resources=Resources(cpus=8),
    )
    jobs.wait_for_output(blocker, b"up")
    line = f"import sys\nopen({str(order)!r}, 'a').write(sys.argv[1] + ' ')"
    whole = Resources(cpus=8)
    low = jobs.submit(line, resources=whole, arguments=("low",))
    high = jobs.submit(line, resources=whole, arguments=("high",), priority=10)
    canceled = jobs.submit(line, resources=whole, arguments=("canceled",))
    assert jobs.store.request_cancel(canceled.id) is JobState.CANCELED
    go.write_text("")
    for job in (low, high):
        jobs.wait(job, JobState.COMPLETED)
    assert order.read_text() == "high low "
    until(lambda: jobs.job(blocker).state is JobState.COMPLETED, "the blocker completes")
