"""Attempts in containers, without Ray: hosts whose ranks enter an image of the machine's files."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob import container as injob_container
from rayjobs.node.containers import Capability, capability_of
from tests.conformance.hosts import PACKAGE_HOME, Attempt
from tests.support.debian_python import debian_python
from tests.support.images import DEFAULT_ENV, python_root

PYTHON = "/usr/local/bin/python"
ENV = dict(one.split("=", 1) for one in DEFAULT_ENV)


def python_folders() -> list[str]:
    """Return the folders of this Python and its packages, which may be links to others."""
    packages = importlib.util.find_spec("torch")
    real = [str(Path(packages.origin).resolve().parents[1])] if packages and packages.origin else []
    return list(dict.fromkeys([sys.base_prefix, sys.prefix, *real]))


@functools.cache
def able() -> Capability:
    """Return what this machine can do with images."""
    # Raises ProbeError: a trial that fails must not count as a machine without containers.
    return capability_of(Path("/tmp"))


needs_containers = pytest.mark.skipif(
    bool(able().why), reason=f"this machine cannot run containers: {able().why}"
)


@pytest.fixture(scope="session")
def image(session_root: Path) -> Path:
    """A root file system with this machine's Python, made once for all workers of the run."""
    folder = session_root / "image"
    with _alone(session_root / "image.lock"):
        if not (folder / "made").exists():
            python_root(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def newer_python(session_root: Path) -> Path:
    """A root file system with Python 3.13, made once for all workers of the run."""
    folder = session_root / "python313"
    with _alone(session_root / "python313.lock"):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix="debian-", dir=session_root))
            debian_python(folder, work)
            shutil.rmtree(work)
            (folder / "made").touch()
    return folder


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def in_image(attempt: Attempt, image: Path, *binds: str, **changes: Any) -> Attempt:
    """Let an attempt's ranks run in an image; `binds` are read-only, at their own paths."""
    bound = [
        *({"source": path, "target": path, "read_only": True} for path in (PACKAGE_HOME, *binds)),
        {"source": str(attempt.root), "target": str(attempt.root)},
    ]
    attempt.plan["containment"] = ["namespace"]
    attempt.plan["python"] = PYTHON
    attempt.plan["env"] = {**ENV, "HOME": "/root", "USER": "root"}
    attempt.plan["container"] = {
        "image": str(image),
        "scratch": str(attempt.root / "container"),
        "shm_bytes": 64 * 2**20,
        "binds": [*bound, *changes.pop("more_binds", [])],
        **changes,
    }
    return attempt


def run_once(image: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command in an image with the program that nodes use for it."""
    folder.mkdir()
    file = folder / "run.json"
    file.write_text(
        json.dumps(
            {
                "container": {
                    "image": str(image),
                    "scratch": str(folder / "scratch"),
                    "shm_bytes": 2**20,
                },
                "arguments": list(arguments),
                "env": ENV,
            }
        )
    )
    return subprocess.run(
        [sys.executable, str(injob_container.__file__), "--run", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


def mounts_below(folder: Path) -> list[str]:
    """Return the mounts below a folder that this process sees."""
    text = Path("/proc/self/mountinfo").read_text()
    points = [line.split()[4] for line in text.splitlines()]
    return [point for point in points if point.startswith(f"{os.path.realpath(folder)}/")]
