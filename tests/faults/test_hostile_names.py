"""Names with control characters are shown escaped, and exact in --json: no line can be forged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.cli.output import table
from rayjobs.core.terminal import one_line
from rayjobs.jobs.states import JobState
from tests.unit.cli.conftest import Queue, Terminal, queue, terminal

__all__ = ["queue", "terminal"]

FORGED = "outputs/new\nline\t\x1b[2J\u202egpj.exe"
SHOWN = "outputs/new\\nline\\t\\x1b[2J\\u202egpj.exe"


def test_names_stay_on_one_line() -> None:
    assert one_line(FORGED) == SHOWN
    assert one_line(SHOWN) == SHOWN
    assert one_line("Füße 数 \\n") == "Füße 数 \\n"
    assert len(table([(FORGED, "1")], ("NAME", "SIZE")).splitlines()) == 2


@pytest.mark.parametrize("command", ["files", "download", "logs --list"])
def test_lists_show_names_escaped(
    queue: Queue,
    terminal: Terminal,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    job = queue.start(queue.submit(), until=JobState.FINALIZING)
    name = FORGED if command != "logs --list" else FORGED.replace("outputs/", "logs/")
    queue.store_file(job, name, b"x")
    queue.finish(job)
    word, *options = command.split()
    out = terminal.type(word, *options, job.id).out
    assert "new\\nline\\t\\x1b[2J\\u202egpj.exe" in out
    assert "\x1b" not in out
    found = json.loads(terminal.type(word, *options, "--json", job.id).out)
    if command == "files":
        assert found[0]["name"] == name
    elif command == "logs --list":
        assert found == [name]


def test_an_event_and_an_error_stay_plain(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    queue.workspace.store.add_event(job.id, "left_out", f"{FORGED}: a link")
    out = terminal.type("events", job.id).out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len([line for line in out.splitlines() if "a link" in line and "left_out" in line]) == 1
    err = terminal.type("download", job.id, "outputs/\x1b[2Jnone").err
    assert "\x1b" not in err
