"""Ctrl-C in a waiting command: it reports what continues, and the next commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Queue, Terminal


@pytest.mark.usefixtures("own_home")
def test_ctrl_c_in_verify_resume_reports_the_state_of_its_runs(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayjobs.housekeeping.verify_resume.verify.verify", interrupted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = terminal.type("verify-resume", "train.py")
    assert done.code == 130
    assert "nothing was verified, and its runs are canceled" in done.err
    assert "`rayjobs ls -e train` lists them" in done.err


def test_ctrl_c_in_wait_reports_that_the_jobs_continue(
    terminal: Terminal, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    job = queue.submit("train")
    monkeypatch.setattr("rayjobs.cli.following.await_end", interrupted)
    done = terminal.type("wait", job.id)
    assert done.code == 130
    assert "no job was canceled" in done.err
    assert f"`rayjobs wait {job.id}` waits again" in done.err
