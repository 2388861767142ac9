"""`init`, and the defaults of a project, as typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture
def folder(tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


@pytest.mark.long
def test_a_new_project_can_be_submitted_and_swept(terminal: Terminal, folder: Path) -> None:
    assert terminal.type("init").code == 0
    assert {path.name for path in folder.iterdir()} == {
        ".rayjobsignore",
        "job.yaml",
        "rayjobs.yaml",
        "sweep.yaml",
        "train.py",
    }
    plan = terminal.type("submit", "-f", "job.yaml", "--dry-run", "--json")
    assert plan.code == 0, plan.err
    sweep = terminal.type("sweep", "create", "-f", "sweep.yaml", "--dry-run")
    assert sweep.code == 0, sweep.err
    (folder / "outputs").mkdir()
    subprocess.run([sys.executable, "train.py", "--epochs", "2"], check=True, timeout=60)


def test_every_commented_default_is_a_valid_one(terminal: Terminal, folder: Path) -> None:
    terminal.type("init")
    file = folder / "rayjobs.yaml"
    head, *lines = file.read_text().splitlines()
    file.write_text("\n".join([head, *(line.removeprefix("# ") for line in lines)]))
    plan = terminal.type("submit", "--dry-run", "--json", "train.py")
    assert plan.code in (0, 4), plan.err  # this machine may have no GPU
    assert "problem" not in plan.err


def test_existing_files_are_kept(terminal: Terminal, folder: Path) -> None:
    (folder / "fit.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("data/\n")
    (folder / "job.yaml").write_text("mine")
    done = terminal.type("init", "--json")
    found = json.loads(done.out)
    assert found["kept"] == [str(folder / "job.yaml")]
    assert (folder / "job.yaml").read_text() == "mine"
    assert not (folder / ".rayjobsignore").exists()  # it would hide the rules of .gitignore
    assert "script: fit.py" in (folder / "sweep.yaml").read_text()
    assert terminal.type("init", "--script", "no.py").code == 3


def test_several_scripts_are_named_and_none_is_guessed(terminal: Terminal, folder: Path) -> None:
    for name in ("fit.py", "score.py"):
        (folder / name).write_text("print(1)\n")
    done = terminal.type("init")
    assert done.code == 2
    assert "has 2 scripts: fit.py, score.py." in done.err and "--script fit.py" in done.err
    assert {path.name for path in folder.iterdir()} == {"fit.py", "score.py"}
    assert terminal.type("init", "--script", "score.py").code == 0
    assert "script: score.py" in (folder / "job.yaml").read_text()


def test_a_projects_defaults_reach_the_spec(terminal: Terminal, folder: Path) -> None:
    (folder / "train.py").write_text("print(1)\n")
    (folder / "rayjobs.yaml").write_text("experiment: cats\njob: {priority: 7}\n")
    plan = json.loads(terminal.type("submit", "--dry-run", "--json", "train.py").out)
    assert plan["spec"]["priority"] == 7
    assert plan["experiment"] == "cats"
    plan = terminal.type("submit", "--dry-run", "--json", "train.py", "--priority", "1")
    assert json.loads(plan.out)["spec"]["priority"] == 1


def test_target_use(terminal: Terminal, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.type("target", "use").out == "local\n"
    wrong = terminal.type("target", "use", "lab")
    assert wrong.code == 3
    assert "lab" in wrong.err
    assert terminal.type("target", "use", "local").code == 0
    monkeypatch.setenv("RAYJOBS_TARGET", "lab")
    shown = json.loads(terminal.type("target", "use", "--json").out)
    assert shown == {"target": "lab", "set_by": "RAYJOBS_TARGET"}


def test_an_error_names_what_set_the_target(
    terminal: Terminal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("RAYJOBS_TARGET", "lab")
    done = terminal.type("submit", "-d", "train.py")
    assert done.code == 3
    assert "RAYJOBS_TARGET: there is no target 'lab'" in " ".join(done.err.split())
    (folder / "rayjobs.yaml").write_text("job: {environment: missing.txt, priority: x}\n")
    done = terminal.type("submit", "-d", "train.py")
    assert done.code == 2
    assert "rayjobs.yaml has" in " ".join(done.err.split())
