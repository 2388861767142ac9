"""Puts all files of an environment into a folder, for nodes without access to a package index.

The folder contains the wheels and a requirements file for exactly these; for conda, a channel and a
specification. The wheels and the channel travel with each job that names this file, like other
local packages (`local_packages`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError, UsageError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import write_atomic
from rayjobs.core.paths import VENDORED
from rayjobs.environments import condas, locks, settings
from rayjobs.environments.building import MOST_LINES, hidden
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec import requirements
from rayjobs.spec.model import Packages
from rayjobs.spec.text import write_yaml
from rayjobs.submit.environments import packages_of, working

REQUIREMENTS = "requirements.txt"
SPECIFICATION = "environment.yml"
WHEELS = "wheels"
CHANNEL = "channel"
_HEAD = """\
# Made by `rayjobs env vendor` for Python {python}: installed from the folders next to this file,
# which travel with the job. No index is used.
"""


@dataclass(frozen=True)
class Vendored:
    """The content of a vendored folder.

    Attributes:
        file: The file that jobs name.
        wheels: Names of files.
        conda: Packages of conda, as match specifications of exactly these builds.
    """

    file: Path
    wheels: tuple[str, ...]
    conda: tuple[str, ...] = ()


def vendor(
    asked: Packages | Mapping[str, Any],
    folder: Path,
    *,
    tell: Callable[[str], None] = lambda _text: None,
) -> Vendored:
    """Write all wheels and conda packages of an environment below a new folder.

    Packages without a wheel are built here by pip for the environment's interpreter. A conda
    environment is therefore built here first: its pip part is resolved for its own Python.

    Raises:
        SpecError, UsageError: see `packages_of`; or the folder exists, or the packages name a
        `conda_command`.
        PrepareError: it cannot be resolved, fetched or built.
    """
    if folder.exists():
        raise UsageError(f"{folder} already exists; name a new folder")
    spec = packages_of(asked)
    for one in spec.substitutes:
        tell(str(one))
    packages = spec.environment
    assert isinstance(packages, Packages)
    if packages.conda and packages.conda_command:
        raise UsageError(
            f"packages of {packages.conda_command} cannot be put into a folder: leave out "
            f"`conda_command`, so that rayjobs resolves the environment itself"
        )
    return (_vendor_conda if packages.conda else _vendor_pip)(packages, folder, tell)


def _vendor_pip(packages: Packages, folder: Path, tell: Callable[[str], None]) -> Vendored:
    values = packages.model_dump()
    with working(tell) as (environments, work), _made(folder) as made:
        lock = asyncio.run(environments.lock(values, work))
        python = asyncio.run(environments.interpreter_for(values, work))
        tell("fetching the packages")
        pip = [python.path, "-m", "pip"]
        names = _wheels(pip, lock, made / WHEELS, python.version_text, work.paths.tmp)
        text = _HEAD.format(python=python.version_text)
        text += f"--no-index\n--find-links {WHEELS}\n"
        if packages.base == "target":
            text += "azureml-defaults  # what is added to the target's own packages\n"
        text += "".join(f"{_pin(name)}\n" for name in names)
        write_atomic(made / REQUIREMENTS, text)
    return Vendored(folder / REQUIREMENTS, names)


def _vendor_conda(packages: Packages, folder: Path, tell: Callable[[str], None]) -> Vendored:
    names: tuple[str, ...] = ()
    with working(tell) as (environments, work), _made(folder) as made:
        found = asyncio.run(environments.realise(packages.model_dump(), work))
        builds = tuple(locks.conda_builds(found.lock))
        version = next(one.split("=")[1] for one in builds if one.startswith("python="))
        tell("fetching the packages")
        channel = made / CHANNEL
        channel.mkdir()
        asyncio.run(environments.fetch_conda(found.lock, channel, work))
        _mark(channel, version)
        # rayjobs reads Python's version from a line without a build.
        dependencies: list[object] = [f"python={version}", *builds]
        if packages.pip:
            # This Python's pip, for the other interpreter: a conda environment may lack pip.
            pip = [sys.executable, "-m", "pip", "--python", found.python]
            lock = condas.split(found.lock)[1]
            names = _wheels(pip, lock, made / WHEELS, version, work.paths.tmp)
            lines = ["--no-index", f"--find-links {WHEELS}", *map(_pin, names)]
            dependencies.append({"pip": lines})
        values = {"channels": [f"./{CHANNEL}"], "dependencies": dependencies}
        text = _HEAD.format(python=version) + write_yaml(values)
        write_atomic(made / SPECIFICATION, text)
    return Vendored(folder / SPECIFICATION, names, builds)


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """Yield a folder that gets its final name at the end: it appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix=".vendor-", dir=_parent(folder)) as fresh:
        made = Path(fresh, "made")
        made.mkdir()
        yield made
        made.rename(folder)


def _mark(folder: Path, python: str) -> None:
    """Mark a folder as one that travels with jobs."""
    write_atomic(folder / VENDORED, json.dumps({"python": python}))


def _wheels(pip: Sequence[str], lock: str, folder: Path, python: str, tmp: Path) -> tuple[str, ...]:
    """Put the wheels of a lock into a folder that travels with jobs; return their names."""
    folder.mkdir()
    for part in _parts(lock):
        _fetch(pip, part, folder, tmp)
    _mark(folder, python)
    return tuple(sorted(path.name for path in folder.glob("*.whl")))


def _parent(folder: Path) -> Path:
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    return folder.absolute().parent


def _parts(lock: str) -> list[str]:
    """Split a lock for pip, which needs hashes for all packages of a file or for none."""
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


def _fetch(pip: Sequence[str], lock: str, wheels: Path, tmp: Path) -> None:
    file = tmp / "vendor.txt"
    file.write_text(lock)
    words = [*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels)]
    done = subprocess.run(
        [*words, "--disable-pip-version-check", "--requirement", str(file)],
        env={**settings.for_pip(os.environ), **os.environ},
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
            f"the packages cannot be fetched: {(lines or ('pip printed nothing',))[-1]}",
            failure_class=FailureClass.ENVIRONMENT,
            lines=lines[-MOST_LINES:],
        )


def _pin(wheel: str) -> str:
    name, version = wheel.split("-")[:2]
    return f"{requirements.name_of(name)}=={version}"
