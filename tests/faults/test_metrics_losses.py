"""Metrics under faults: a killed rank, a full disk, a million points, unusual names."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rayjobs.injob.metrics_file import Appender, read_all


def run_script(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "RAYJOBS_RUN_ID": "job_1_00000000",
        "RAYJOBS_ATTEMPT": "1",
        "RAYJOBS_ATTEMPT_DIR": str(folder),
        "RAYJOBS_METRICS_DIR": str(folder / "metrics"),
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_nothing_logged_is_lost_when_the_rank_is_killed(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal, sys
        from rayjobs import Run
        run = Run.get_context()
        for number in range(5000):
            run.log("m", number + 0.5, step=number)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -9
    records = read_all(str(tmp_path / "metrics" / "rank-0.jsonl"))
    assert [record.step for record in records] == list(range(5000))


# A file size limit simulates the full disk: the same partial write, then the same error.
FULL = """
import resource, signal, sys
from rayjobs import Run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = Run.get_context()
run.log("m", 1.5, step=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for number in range(1, 50):
    run.log("m", 1.5, step=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
run.log("m", 2.5, step=99)
run.log("m", 3.5, step=100)
print("trained to the end")
"""


def test_a_full_disk_costs_metrics_never_the_training(tmp_path: Path) -> None:
    done = run_script(tmp_path, FULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained to the end\n"
    assert done.stderr.count("could not be written") == 1
    records = read_all(str(tmp_path / "metrics" / "rank-0.jsonl"))
    steps = [record.step for record in records if record.kind == "metric"]
    dropped = [record.value for record in records if record.kind == "dropped"]
    assert steps[-2:] == [99, 100]
    assert steps[:-2] == list(range(len(steps) - 2))
    assert dropped == [50 - (len(steps) - 2)]


def test_a_disk_that_refuses_everything_never_raises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    appender = Appender("/dev/full")
    assert [appender.append(b"{}\n") for _ in range(3)] == [False] * 3
    assert appender.dropped == 3
    assert capsys.readouterr().err.count("could not be written") == 1
    nowhere = Appender(str(tmp_path / "no" / "such" / "file"))
    assert not nowhere.append(b"{}\n")


def test_closed_stderr_does_not_matter(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import sys
        from rayjobs.injob.metrics_file import Appender
        sys.stderr.close()
        assert not Appender("/dev/full").append(b"{}\\n")
        sys.stderr = None
        assert not Appender("/dev/full").append(b"{}\\n")
        print("went on")
        """,
    )
    assert done.stdout == "went on\n"


def test_many_metric_names_are_kept(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from rayjobs import Run
        run = Run.get_context()
        for number in range(20_000):
            run.log("metric_%d" % number, 0.5)
        assert len(run._names) <= 10_000  # memory stays bounded
        """,
    )
    assert done.returncode == 0, done.stderr
    assert len(read_all(str(tmp_path / "metrics" / "rank-0.jsonl"))) == 20_000


def test_a_script_that_deletes_its_folder_still_logs(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = run_script(
        tmp_path,
        f"""
        import os, shutil
        from rayjobs import Run
        os.chdir({str(tmp_path / "work")!r})
        shutil.rmtree(os.getcwd())
        Run.get_context().log("m", 1.5)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert len(read_all(str(tmp_path / "metrics" / "rank-0.jsonl"))) == 1
