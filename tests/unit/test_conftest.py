"""What tests/conftest.py guarantees, checked in an inner test run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

INNER_TESTS = """
import os, subprocess
import pytest

@pytest.mark.ray
@pytest.mark.parametrize("number", range(3))
def test_of_one_group(number, session_root):
    (session_root / f"worker-{os.environ['PYTEST_XDIST_WORKER']}").touch()
    assert len(list(session_root.glob("worker-*"))) == 1

def test_has_its_own_home(own_home):
    assert os.environ["RAYJOBS_HOME"].startswith(str(own_home))
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ

def test_leaves_a_process(tmp_path):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, cwd=tmp_path)
    print("left:", child.pid)
    child.returncode = 0  # so that Popen does not wait or warn
"""


def _run_inner(
    folder: Path, *arguments: str, leftover_deadline_s: int = 30
) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "conftest.py")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / "test_inner.py").write_text(INNER_TESTS, encoding="utf-8")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    environment |= {
        "AWS_SECRET_ACCESS_KEY": "callers",
        "TEST_LEFTOVER_DEADLINE_S": f"{leftover_deadline_s}",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *arguments, "test_inner.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    for kept in re.findall(r"files of this run are kept in (/tmp/rj-\w+)", done.stdout):
        shutil.rmtree(kept, ignore_errors=True)
    return done


def test_a_group_stays_on_one_worker_in_a_clean_environment(short_path: Path) -> None:
    done = _run_inner(short_path, "-k", "not leaves")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"=+ 4 passed.* in ", done.stdout.splitlines()[-1])


def test_a_process_left_behind_is_ended_and_fails_the_run(short_path: Path) -> None:
    done = _run_inner(short_path, "-k", "leaves", leftover_deadline_s=1)
    assert done.returncode == 1, done.stdout + done.stderr
    named = re.search(r"^  (\d+): sleep 600$", done.stdout, re.MULTILINE)
    assert named is not None, done.stdout
    assert re.search(r"=+ 1 passed.* 1 error in ", done.stdout.splitlines()[-1])
    stat = Path(f"/proc/{named.group(1)}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
