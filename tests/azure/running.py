"""Runs a program as a user does, by `rayjobs azureml run`, in a separate folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.azure.notebook_files import write_notebook

LIMIT_S = 200.0
TWINS = Path(__file__).parent / "twins"
CONFIG = {
    "subscription_id": "00000000-aaaa-bbbb-cccc-000000000001",
    "resource_group": "group-1",
    "workspace_name": "team-ws",
}


def copy_twin(name: str, folder: Path) -> Path:
    """Copy a twin's files into a folder, with an Azure config above it; return its folder."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return Path(shutil.copytree(TWINS / name, folder / name))


def as_notebook(script: Path) -> Path:
    """Write a notebook next to a file, whose lines `# %%` separate the cells."""
    _, *cells = script.read_text().split("# %%\n")
    return write_notebook(script.with_suffix(".ipynb"), *cells)


def map_urls(cwd: Path, **named: Path) -> None:
    """Map each `https://data.invalid/NAME` to a file."""
    mappings = [f"https://data.invalid/{path.name}={path}" for path in named.values()]
    done = subprocess.run(
        [sys.executable, "-m", "rayjobs", "azureml", "map", *mappings],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def azureml_run(
    *arguments: str, cwd: Path, limit_s: float = LIMIT_S, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``rayjobs azureml run`` with these arguments to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rayjobs", "azureml", "run", *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def ran(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder; it must succeed."""
    done = azureml_run(*arguments, cwd=folder, limit_s=LIMIT_S, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def output_of(folder: Path, program: str, **variables: str) -> str:
    """Run a program that must succeed; return all its output."""
    done = ran(folder, program, **variables)
    return done.stdout + done.stderr
