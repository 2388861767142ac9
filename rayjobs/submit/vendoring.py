"""Puts all files of an environment into a folder, for nodes that reach no index of packages.

The folder has the wheels and a requirements file that asks for exactly them. A job that names this
file takes the wheels along, as it does with wheels of its own (`local_packages`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError, UsageError
from rayjobs.core.files import write_atomic
from rayjobs.environments.building import MOST_LINES, hidden
from rayjobs.spec import requirements
from rayjobs.spec.model import Packages
from rayjobs.submit.environments import packages_of, working

REQUIREMENTS = "requirements.txt"
WHEELS = "wheels"
_OF_UV = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
}
_HEAD = """\
# Made by `rayjobs env vendor` for Python {python}: installed from the folder next to this file,
# which travels with the job. No index is asked.
"""


def vendor(
    asked: Packages | Mapping[str, Any],
    folder: Path,
    *,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[str]:
    """Write all wheels of an environment below a new folder; return their names.

    What has no wheel is built into one here, by pip of the environment's interpreter.

    Raises:
        SpecError, UsageError: see `packages_of`; or the folder is there, or it asks for conda.
        PrepareError: it cannot be resolved, fetched or built.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; name a new folder")
    spec = packages_of(asked)
    for one in spec.substitutes:
        tell(str(one))
    packages = spec.environment
    assert isinstance(packages, Packages)
    if packages.conda:
        raise UsageError(
            "packages of conda cannot be put into a folder yet. Copy their channel to a folder "
            "that all nodes see, and name it (`channels: [file:///shared/channel]`)"
        )
    values = packages.model_dump()
    with working(tell) as (environments, work):
        lock = asyncio.run(environments.lock(values, work))
        python = asyncio.run(environments.interpreter_for(values, work))
        with tempfile.TemporaryDirectory(prefix=".vendor-", dir=_parent(folder)) as fresh:
            made = Path(fresh, "made")
            wheels = made / WHEELS
            wheels.mkdir(parents=True)
            tell("fetching the packages")
            for part in _parts(lock):
                _fetch(python.path, part, wheels, work.paths.tmp)
            names = sorted(path.name for path in wheels.glob("*.whl"))
            write_atomic(
                wheels / requirements.VENDORED, json.dumps({"python": python.version_text})
            )
            text = _HEAD.format(python=python.version_text)
            text += f"--no-index\n--find-links {WHEELS}\n"
            if packages.base == "target":
                text += "azureml-defaults  # what is added to the target's own packages\n"
            text += "".join(f"{_pin(name)}\n" for name in names)
            write_atomic(made / REQUIREMENTS, text)
            made.rename(folder)
    return names


def _parent(folder: Path) -> Path:
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    return folder.absolute().parent


def _parts(lock: str) -> list[str]:
    """Return a lock as one or two that pip takes: with hashes for each package, or for none."""
    options, with_hash, without = "", "", ""
    for block in lock.replace("\\\n", "\0").splitlines():
        line = block.replace("\0", "\\\n") + "\n"
        if line.startswith("--"):
            options += line
        elif "--hash" in line:
            with_hash += line
        elif line.strip() and not line.startswith("#"):
            without += line
    return [options + part for part in (with_hash, without) if part]


def _fetch(python: str, lock: str, wheels: Path, tmp: Path) -> None:
    file = tmp / "vendor.txt"
    file.write_text(lock)
    words = [python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(wheels)]
    env = {**{new: os.environ[old] for old, new in _OF_UV.items() if old in os.environ}}
    done = subprocess.run(
        [*words, "--disable-pip-version-check", "--requirement", str(file)],
        env={**env, **os.environ},
        cwd=tmp,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        check=False,
    )
    if done.returncode:
        lines = tuple(hidden(one, ()) for one in done.stdout.splitlines() if one.strip())
        raise PrepareError(
            f"the packages cannot be fetched: {(lines or ('pip said nothing',))[-1]}",
            failure_class="environment",
            lines=lines[-MOST_LINES:],
        )


def _pin(wheel: str) -> str:
    name, version = wheel.split("-")[:2]
    return f"{requirements.name_of(name)}=={version}"
