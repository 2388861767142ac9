"""Fault 81: git is missing, broken, slow or refuses. No submit fails, and the record reports it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from rayjobs.snapshots import git
from rayjobs.snapshots.git import GitLook, of_properties
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import submit
from rayjobs.workspace.folder import open_workspace
from tests.unit.snapshots.test_git import PATIENT_S, call, look, source

__all__ = ["source"]


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def recorded(source: Path, folder: Path) -> dict[str, object]:
    """Submit a job, and return the git state in its record."""
    with open_workspace(folder) as workspace:
        spec = JobSpec(name="t", script="train.py", source_directory=str(source))
        return of_properties(submit(workspace, spec, wake=False).job.properties) or {}


def test_git_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("1\n")
    assert recorded(tmp_path / "code", tmp_path / "ws")["why"] == "not in a git repository"


def test_git_is_not_installed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = call(source, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = recorded(source, tmp_path / "ws")
    assert found["commit"] == commit
    assert found["dirty"] is None
    assert "no git is installed" in str(found["why"])


def test_hanging_git_delays_nothing_and_is_ended(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program(
        tmp_path / "bin" / "git",
        f"#!/bin/sh\nsleep 600 &\necho $$ $! >> {tmp_path}/pids\nwait\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with GitLook(source) as looking:
        deadline = time.monotonic() + 30
        pids = tmp_path / "pids"
        while not pids.exists() or len(pids.read_text().split()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = looking.result()
    assert found.commit
    assert "had not finished when the job was ready" in found.why
    for pid in pids.read_text().split():
        _wait_until_gone(int(pid))


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return  # a zombie that its parent has not collected yet
        time.sleep(0.01)
    raise AssertionError(f"{pid} still runs")


def test_slow_diff_is_abandoned(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "git", "#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(git, "LIMIT_S", 0.1)
    with GitLook(source) as looking:
        assert "took longer than 0.1s" in looking.result(patience_s=PATIENT_S).why


@pytest.mark.parametrize("key", ["core.fsmonitor", "diff.external", "diff.x.textconv"])
def test_no_program_of_the_repository_is_run(source: Path, tmp_path: Path, key: str) -> None:
    program(tmp_path / "ran", f"#!/bin/sh\ntouch {tmp_path}/it-ran\n")
    (source / ".git" / "info" / "attributes").write_text("*.py diff=x\n")
    call(source, "config", key, str(tmp_path / "ran"))
    (source / "train.py").write_text("print('bye')\n")
    found = look(source)
    assert "+print('bye')" in found.diff, found
    assert not (tmp_path / "it-ran").exists()


def test_a_file_that_its_clean_filter_leaves_unchanged_is_not_reported(source: Path) -> None:
    """Off switch: run git with `-c filter.x.clean=`."""
    (source / ".git" / "info" / "attributes").write_text("*.bin filter=x\n")
    call(source, "config", "filter.x.clean", "tr a-z A-Z")
    (source / "a.bin").write_text("content\n")
    call(source, "add", "a.bin")
    call(source, "commit", "-qm", "filtered")
    assert call(source, "show", "HEAD:a.bin") == "CONTENT"
    os.utime(source / "a.bin", (1, 1))  # to make git read it again
    assert look(source).dirty is False
    (source / "a.bin").write_text("changed\n")
    assert "-CONTENT\n+CHANGED\n" in look(source).diff


def test_a_clean_filter_that_hangs_delays_nothing_and_is_ended(
    source: Path, tmp_path: Path
) -> None:
    """Off switch: kill git alone."""
    pids = tmp_path / "pids"
    program(tmp_path / "clean", f"#!/bin/sh\nsleep 600 &\necho $$ $! >> {pids}\nwait\n")
    (source / ".git" / "info" / "attributes").write_text("train.py filter=x\n")
    call(source, "config", "filter.x.clean", str(tmp_path / "clean"))
    os.utime(source / "train.py", (1, 1))
    with GitLook(source) as looking:
        deadline = time.monotonic() + 30
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = looking.result()
    assert found.dirty is None
    assert "had not finished when the job was ready" in found.why
    for pid in pids.read_text().split():
        _wait_until_gone(int(pid))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_repository_of_another_user_reports_the_git_message(source: Path, tmp_path: Path) -> None:
    subprocess.run(["chown", "-R", "12345", str(source)], check=True)
    found = recorded(source, tmp_path / "ws")
    assert found["commit"]
    assert found["branch"] == "main"
    assert found.get("dirty") is None


@pytest.mark.parametrize(
    "damage", ["HEAD is empty", "no HEAD", "index is noise", "objects are gone", "config is noise"]
)
def test_a_broken_repository(source: Path, tmp_path: Path, damage: str) -> None:
    repository = source / ".git"
    if damage == "HEAD is empty":
        (repository / "HEAD").write_text("")
    elif damage == "no HEAD":
        (repository / "HEAD").unlink()
    elif damage == "index is noise":
        (repository / "index").write_bytes(os.urandom(4000))
    elif damage == "objects are gone":
        shutil.rmtree(repository / "objects")
    else:
        (repository / "config").write_bytes(b"[\xff\n=[[\n")
    assert look(source).why
    assert recorded(source, tmp_path / "ws")["why"]


def test_git_head_that_is_a_fifo_or_link_loop_does_not_hang(source: Path) -> None:
    head = source / ".git" / "HEAD"
    head.unlink()
    os.mkfifo(head)
    assert "no HEAD" in look(source).why
    head.unlink()
    head.symlink_to("HEAD")
    assert "no HEAD" in look(source).why


@pytest.mark.parametrize("place", ["HEAD", "refs/heads/main"])
def test_a_reference_that_is_no_commit_is_damage(source: Path, place: str) -> None:
    (source / ".git" / place).write_text("not a commit\n")
    assert look(source).why == "the repository is damaged: its HEAD leads to no commit"


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("1\n")
    call(tmp_path / "code", "init", "-q")
    assert "no commit yet" in look(tmp_path / "code").why
