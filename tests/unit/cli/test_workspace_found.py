"""Which workspace a command uses: a new one is named, a foreign one is refused."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from rayjobs.cli import late_notes
from rayjobs.cli.late_notes import LateNotes
from rayjobs.core.paths import home
from rayjobs.submit import copies
from rayjobs.workspace.folder import open_workspace
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def in_a_job(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a job's script, but not RAYJOBS_WORKSPACE."""
    monkeypatch.delenv("RAYJOBS_WORKSPACE")
    monkeypatch.chdir(own_home)
    for name, value in {
        "RAYJOBS_RUN_TOKEN": "t",
        "RAYJOBS_RUN_ID": "train_1_ab",
        "RAYJOBS_WORKSPACE_NAME": "pets",
        "AZUREML_WORKSPACE_ID": "0123",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "command", [("ls",), ("submit", "-d", "--command", "true"), ("datastore", "add", "d", ".")]
)
@pytest.mark.parametrize("has_default", [True, False])
@pytest.mark.usefixtures("in_a_job")
def test_job_uses_another_workspace_only_on_request(
    terminal: Terminal, command: tuple[str, ...], has_default: bool
) -> None:
    """It also started another target, in the default home."""
    if has_default:
        open_workspace(home() / "workspace").close()
    done = terminal.type(*command)
    assert done.code == 2
    assert "runs in job train_1_ab of the workspace 'pets'" in done.err
    assert "Run.get_context()" in done.err
    assert (home() / "workspace").exists() == has_default
    assert not (home() / "targets").exists()


@pytest.mark.usefixtures("in_a_job")
def test_job_may_use_its_own_or_a_named_workspace(
    terminal: Terminal, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_workspace(own_home / "other").close()
    assert terminal.type("ls", "--workspace", str(own_home / "other")).code == 0
    with open_workspace(home() / "workspace") as own:
        monkeypatch.setenv("AZUREML_WORKSPACE_ID", own.id)
    assert terminal.type("ls").code == 0
    monkeypatch.setenv("AZUREML_WORKSPACE_ID", "0123")
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(own_home / "other"))
    assert terminal.type("ls").code == 0


def test_command_that_creates_a_workspace_reports_it(terminal: Terminal, own_home: Path) -> None:
    """A wrong RAYJOBS_WORKSPACE would silently split the records."""
    (own_home / "d").mkdir()
    assert f"new workspace: {own_home / 'w'}" in terminal.type(
        "datastore", "add", "a", str(own_home / "d")
    ).err.replace("\n", " ")
    assert "new workspace" not in terminal.type("datastore", "add", "b", str(own_home / "d")).err


def test_taken_name_error_suggests_the_option(queue: Queue, terminal: Terminal) -> None:
    root = queue.workspace.path
    for name in ("one", "two"):
        (root / name).mkdir()
    assert terminal.type("datastore", "add", "d", str(root / "one")).code == 0
    refused = terminal.type("datastore", "add", "d", str(root / "two"))
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert terminal.type("datastore", "add", "d", str(root / "two"), "--overwrite").code == 0


def test_long_stage_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    noted = threading.Event()

    def say(text: str) -> None:
        messages.append(text)
        noted.set()

    monkeypatch.setattr(late_notes, "PATIENCE_S", 3600.0)
    with LateNotes(say) as late:
        late.on_stage("submitting the job")
        monkeypatch.setattr(late_notes, "PATIENCE_S", 0.0)
        late.on_stage("packing /")
        assert noted.wait(60)
    assert messages == ["packing / …"]


def test_ended_stage_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_notes, "PATIENCE_S", 3600.0)
    with LateNotes(pytest.fail) as late:
        late.on_stage("packing /")
        timer = late._timer
        assert timer is not None
    timer.join(60)
    assert not timer.is_alive()


@pytest.mark.parametrize(
    "command",
    [
        ("data", "ls"),
        ("data", "ls", "x/y"),
        ("datastore", "ls"),
        ("datastore", "check"),
        ("azureml", "map"),
        ("data", "show", "x"),
    ],
)
def test_reading_command_creates_no_workspace(
    terminal: Terminal, own_home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A misspelled RAYJOBS_WORKSPACE would look like an empty workspace."""
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(own_home / "misspelt"))
    done = terminal.type(*command)
    assert done.code == 3
    assert "there is no workspace in" in done.err
    assert not (own_home / "misspelt").exists()


def test_the_time_follows_what_ended_the_record_of_a_job_in_a_copy(
    terminal: Terminal, queue: Queue, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, copy = queue.submit(), own_home / "copy"
    shutil.copytree(queue.workspace.path, copy)
    with open_workspace(copy, create=False) as opened:
        assert copies.become_own(opened)
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(copy))
    reason = f"the job continues in {queue.workspace.path}; this workspace, a copy of it, became"
    ago, at = r"(just now|\d+s ago)", r"at \d{4}-\d\d-\d\d [0-9:]{8}"
    assert re.search(rf"{reason} independent {ago}\n", terminal.type("ls").out)
    shown = " ".join(terminal.type("show", job.id).out.split())
    assert re.search(rf"{reason} independent {at}", shown)
    assert json.loads(terminal.type("ls", "--json").out)[0]["reason"] == f"{reason} independent"


@pytest.mark.parametrize(
    "command", [("wait",), ("logs", "-f"), ("logs", "-f", "--timestamps"), ("cancel",)]
)
def test_copy_does_not_wait_for_a_job_of_the_original(
    terminal: Terminal,
    queue: Queue,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    """Nothing in the copy would ever report its end."""
    job = queue.submit()
    copy = own_home / "copy"
    shutil.copytree(queue.workspace.path, copy)
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(copy))
    done = terminal.type(*command, job.id)
    assert done.code == 2
    assert f"{job.id} does not run here: this workspace is a copy of" in done.err
    assert f"--workspace {queue.workspace.path}" in done.err
