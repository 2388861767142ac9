"""The installed command on a real target, as a new user types it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.submit.attaching import wait
from rayjobs.workspace.folder import locate, open_workspace
from tests.support.local_target import LocalTarget
from tests.support.terminal import DEADLINE_S, PROGRAM, Terminal

pytestmark = pytest.mark.ray

SCRIPTS = {
    "train.py": """
        import os, sys
        from rayjobs import Run
        run = Run.get_context()
        print("arguments", sys.argv[1:], flush=True)
        for step in range(5):
            run.log("loss", 1.0 / (step + 1), step=step)
        os.makedirs("outputs", exist_ok=True)
        with open("outputs/model.bin", "wb") as file:
            file.write(bytes(range(256)))
    """,
    "binary.py": """
        import sys
        sys.stdout.buffer.write(bytes(range(256)) + b"no end")
    """,
    "raises.py": """
        def read():
            raise ValueError("no digits here")
        read()
    """,
    "syntax.py": """
        def train(:
    """,
    "endless.py": """
        import time
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
    """,
}


@pytest.fixture
def project(
    local_target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder of scripts as the working directory, and a running target; jobs are ended."""
    import textwrap

    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    with open_workspace(locate()) as workspace:
        unfinished = [job.id for job in workspace.store.jobs() if not job.state.is_final]
        for job_id in unfinished:
            workspace.store.request_cancel(job_id)
        for job_id in unfinished:
            assert wait(workspace, job_id, timeout_s=DEADLINE_S).state.is_final


def rayjobs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal."""
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def submit(*arguments: str) -> str:
    """Submit a job and return its id, which is all that is printed."""
    done = rayjobs("submit", "-q", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.removesuffix("\n")


def test_a_job_from_submit_to_download(project: Path) -> None:
    job = submit("train.py", "--tag", "kind=first", "--idempotency-key", "k", "--", "--lr", "0.1")
    again = submit("train.py", "--tag", "kind=first", "--idempotency-key", "k", "--", "--lr", "0.1")
    assert again == job
    assert rayjobs("wait", job).returncode == 0
    assert rayjobs("logs", job).stdout == "arguments ['--lr', '0.1']\n"
    assert rayjobs("logs", "-f", job).stdout == "arguments ['--lr', '0.1']\n"
    shown = json.loads(rayjobs("show", "--json", job).stdout)
    assert (shown["state"], shown["tags"]) == ("Completed", {"kind": "first"})
    assert shown["metrics"]["loss"] == pytest.approx(0.2)
    measured = json.loads(rayjobs("metrics", job, "--json").stdout)["metrics"]["loss"]
    assert [point["step"] for point in measured] == [0, 1, 2, 3, 4]
    assert rayjobs("metrics", job, "--plot", "loss.png").returncode == 0
    assert (project / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert rayjobs("download", job, "outputs/model.bin").returncode == 0
    assert (project / "model.bin").read_bytes() == bytes(range(256))
    assert "Completed" in rayjobs("events", job).stdout
    [listed] = json.loads(rayjobs("ls", "--json").stdout)
    assert listed["id"] == job


def test_every_end_reports_its_reason(project: Path) -> None:
    binary, raises, syntax = submit("binary.py"), submit("raises.py"), submit("syntax.py")
    limited = submit("endless.py", "--max-duration", "1s", "--grace", "1s")

    assert rayjobs("wait", "-q", binary).returncode == 0
    done = subprocess.run(
        [PROGRAM, "logs", binary], capture_output=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == bytes(range(256)) + b"no end"

    for job, code, cause in (
        (raises, 1, "ValueError: no digits here"),
        (syntax, 1, "SyntaxError"),
        (limited, 124, "time limit"),
    ):
        waited = rayjobs("wait", job)
        assert waited.returncode == code
        assert cause in waited.stdout
    assert "no digits here" in rayjobs("logs", "--failed", raises).stdout


def test_attached_submit_without_terminal_prints_only_script_output(project: Path) -> None:
    done = rayjobs("submit", "--attach", "train.py", "--", "b")
    assert (done.returncode, done.stdout) == (0, "arguments ['b']\n")
    for part in ("submitted train_", "Completed", "rayjobs metrics"):
        assert part in done.stderr


def test_submit_on_a_terminal_follows_the_job(project: Path) -> None:
    good = Terminal("submit", "train.py", "--", "a")
    assert good.close() == 0, good.shown
    shown = good.shown.decode()
    for part in ("submitted train_", "arguments ['a']", "Completed", "loss", "rayjobs download"):
        assert part in shown
    assert shown.index("submitted") < shown.index("arguments") < shown.index("Completed")

    bad = Terminal("submit", "raises.py")
    assert bad.close() == 1, bad.shown
    assert b"Failed (user)" in bad.shown
    assert b"ValueError: no digits here" in bad.shown


def test_ctrl_c_detaches_and_the_job_continues(project: Path) -> None:
    terminal = Terminal("submit", "endless.py")
    terminal.until(b"begun")
    terminal.press(b"\x03")
    assert terminal.close() == 130
    assert b"rayjobs cancel" in terminal.shown
    deadline = time.monotonic() + DEADLINE_S
    while (job := json.loads(rayjobs("ls", "--json").stdout)[0])["state"] != "Running":
        assert time.monotonic() < deadline, job

    after = submit("train.py", "--after", job["short_id"])
    deadline = time.monotonic() + DEADLINE_S
    while job["id"] not in (output := rayjobs("why", after).stdout):
        assert time.monotonic() < deadline, output
        time.sleep(0.1)

    assert rayjobs("cancel", job["id"]).returncode == 0
    assert rayjobs("wait", job["id"]).returncode == 1
    again = rayjobs("cancel", job["id"])
    assert again.returncode == 0
    assert "has already ended (Canceled)" in again.stdout
    waited = rayjobs("wait", after)
    assert waited.returncode == 1
    assert "Canceled" in waited.stdout


def test_running_target_is_shown_without_its_token(
    project: Path, local_target: LocalTarget
) -> None:
    plan = json.loads(rayjobs("submit", "--dry-run", "--json", "train.py").stdout)
    assert plan["plan"]["target_state"] == "running"
    assert rayjobs("dashboard").stdout == f"{local_target.head.dashboard_url}\n"
    everything = "".join(
        done.stdout + done.stderr
        for done in (
            rayjobs("dashboard", "--json"),
            rayjobs("target", "show"),
            rayjobs("target", "show", "--json"),
        )
    )
    assert "running" in everything
    assert local_target.token.strip() not in everything
    assert local_target.token.strip() in rayjobs("dashboard", "--show-token").stdout
    assert rayjobs("ls", "-a", "--json").stdout == "[]\n"
