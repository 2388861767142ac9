"""Completion in shells: scripts, commands, ids of the workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import Queue, Terminal


def completed(words: str, *, shell: str = "bash", line: str | None = None) -> list[str]:
    """Return the shell's completions for the last word."""
    parts = words.split(" ")
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1)}
    if line is not None:
        variables["_RAYJOBS_LINE"] = line
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'rayjobs'; import rayjobs.__main__ as m; m.run()",
        ],
        env={**os.environ, **variables, "_RAYJOBS_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, terminal: Terminal) -> None:
    done = terminal.type("completion", shell)
    assert done.code == 0
    assert f"_RAYJOBS_COMPLETE={shell}_complete" in done.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_accepts_the_script(terminal: Terminal) -> None:
    script = terminal.type("completion", "bash").out
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p rayjobs"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert "complete" in done.stdout
    assert done.returncode == 0


@pytest.mark.long
def test_commands_and_options_are_offered() -> None:
    assert completed("rayjobs l") == ["ls", "logs", "login", "logout"]
    assert "--max-duration" in completed("rayjobs submit --max")


@pytest.mark.long
def test_ids_of_jobs_are_offered(queue: Queue) -> None:
    job, other = queue.submit("mnist"), queue.submit("other")
    assert completed("rayjobs logs mn") == [job.id]
    assert completed(f"rayjobs cancel {other.id[-8:-3]}") == [other.id[-8:]]


@pytest.mark.long
def test_only_jobs_for_which_a_command_makes_sense_are_offered(queue: Queue) -> None:
    ended, running = queue.completed("ended"), queue.start(queue.submit("running"))
    waiting = queue.submit("waiting")
    unfinished = [waiting.id, running.id]
    assert completed("rayjobs show ") == [*unfinished, ended.id]
    assert completed("rayjobs logs ") == [*unfinished, ended.id]
    assert completed("rayjobs cancel ") == unfinished
    assert completed("rayjobs update ") == unfinished
    assert completed("rayjobs logs -f ") == unfinished
    assert completed("rayjobs stacks ") == [running.id]


@pytest.mark.long
def test_without_a_workspace_nothing_is_offered() -> None:
    assert completed("rayjobs logs m") == []
