"""Substitutes unavailable packages of an environment, and reports it before the run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rayjobs.core.errors import PrepareError, Problem
from rayjobs.spec import substitutes
from rayjobs.spec.model import JobSpec, Packages

_MOST_FILES = 2_000
_MOST_BYTES = 2**20
_SUFFIXES = (".py", ".sh", ".ipynb")
_ASK_S = 20.0


def substituted(
    spec: JobSpec, *, source: Path | None, is_here: bool
) -> tuple[JobSpec, list[str], list[Problem]]:
    """Return an installable spec, notices for its submitter, and problems if it is strict.

    Args:
        source: The job's code, which is searched for a framework's packages.
        is_here: The target runs on this machine, so its versions of Python are known.
    """
    asked = spec.environment
    target = substitutes.Target(
        python=sys.version_info[:3],
        version_of=_installed,
        has_python=_has_python if is_here else lambda _version: True,
        has_conda=not is_here or not isinstance(asked, Packages) or _has_conda(asked),
    )
    mentioned = cache(lambda name: _mentions(spec, source, name))
    result = substitutes.substitute(spec, target, mentions=mentioned)
    new = result.substitutes[len(spec.substitutes) :]
    if spec.strict and new:
        problems = [
            Problem(
                "environment",
                f"{one.asked} would be replaced by {one.used or 'nothing'}"
                + (f": {one.reason}." if one.reason else "."),
                "Leave out `strict` (`--strict`) to accept that, or request another package.",
            )
            for one in new
        ]
        return result.model_copy(update={"substitutes": spec.substitutes}), [], problems
    return result, list(substitutes.sentences(new)), []


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_conda(packages: Packages) -> bool:
    """Return whether this machine can install conda packages."""
    if packages.conda_command is not None or not packages.conda:
        return True  # the node reports whether its program exists
    return importlib.util.find_spec("rattler") is not None or any(
        shutil.which(name) for name in ("micromamba", "mamba", "conda")
    )


def _has_python(version: str) -> bool:
    from rayjobs.environments import settings

    try:
        command = [settings.find_uv(), "python", "find", "--no-project", "--system", version]
        variables = {"UV_PYTHON_DOWNLOADS": "never", "PATH": settings.search_path(os.environ)}
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
    except (PrepareError, OSError, subprocess.TimeoutExpired):
        return True  # the node's message is better
    return done.returncode == 0


def _mentions(spec: JobSpec, source: Path | None, name: str) -> bool:
    """Return whether the job's code mentions a package; True if the code is unknown."""
    word = re.compile(
        rb"(?<![A-Za-z0-9_])" + name.replace("-", "[-_]").encode() + rb"(?![A-Za-z0-9_])"
    )
    if spec.command is not None and word.search(spec.command.encode(errors="replace")):
        return True
    return any(word.search(text) for text in _texts(source)) if source is not None else True


def _texts(source: Path) -> Iterator[bytes]:
    count = 0
    for folder, names, files in os.walk(source):
        names[:] = sorted(one for one in names if not one.startswith(".") and one != "outputs")
        for file in sorted(files):
            if not file.endswith(_SUFFIXES):
                continue
            count += 1
            if count > _MOST_FILES:
                return
            try:
                with Path(folder, file).open("rb") as stream:
                    yield stream.read(_MOST_BYTES)
            except OSError:
                continue  # packing reports it
