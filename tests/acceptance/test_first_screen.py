"""The commands of README's first screen work unchanged in a checkout of the tracked files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rayjobs.cli.main import main

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
DEADLINE_S = 500.0  # it takes half a minute on a quiet machine
SHORTER = (  # the same commands, with less to train
    ("README.md", "--epochs 5", "--epochs 1"),
    ("examples/sweep/sweep.yaml", '--epochs, "3"', '--epochs, "1"'),
    ("examples/sweep/sweep.yaml", "total: 8", "total: 2"),
)


def first_block() -> str:
    """Return the first block of commands in README.md."""
    return (ROOT / "README.md").read_text().split("```sh\n", 1)[1].split("```", 1)[0]


def lines() -> list[list[str]]:
    """Return the words of each command, without comments."""
    joined = first_block().replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line.strip()]


def test_first_screen_names_existing_files_and_commands() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    typed = lines()
    files = [word for words in typed for word in words if word.startswith("examples/")]
    assert len(files) >= 3
    assert set(files) <= set(tracked)
    commands = [words[1:] for words in typed if words[0] == "rayjobs"]
    assert len(commands) + 1 == len(typed)  # the other one is the script that makes the data
    for words in commands:
        # Parsed completely, but not run.
        group: click.Command = main
        # With the settings of `main`: click keeps a command's help option after its creation.
        context = main.make_context("rayjobs", [*words])
        rest = words
        while isinstance(group, click.Group):
            command = group.get_command(context, rest[0])
            assert command is not None, words
            group, rest = command, rest[1:]
            if not isinstance(group, click.Group):
                context = group.make_context(words[0], list(rest), parent=context)


@pytest.mark.ray
def test_commands_of_the_first_screen_work(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    script = first_block()
    for file, old, new in SHORTER:
        if file == "README.md":
            assert old in script
            script = script.replace(old, new)
        else:
            text = (tmp_path / file).read_text()
            assert old in text
            (tmp_path / file).write_text(text.replace(old, new))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAYJOBS_")
    }
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    environment["RAYJOBS_HOME"] = str(tmp_path / "home")
    try:
        typed = subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        output = f"{typed.stdout[-3000:]}\n{typed.stderr[-3000:]}"
        assert typed.returncode == 0, output
        assert "epoch 1/1" in typed.stdout, output
        assert "registered as model digits:1" in typed.stderr, output
        lineage = subprocess.run(
            ["rayjobs", "model", "lineage", "digits:1", "--json"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        assert list(json.loads(lineage.stdout)["files"]) == ["model.pt"]
    finally:
        subprocess.run(
            ["rayjobs", "target", "stop", "local", "--force"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
