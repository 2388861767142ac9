"""Conda environments on a node, solved and installed by py-rattler or a program of the node.

A conda prefix cannot be moved, so it is built in place, and is complete once it has its record. The
lock that py-rattler or the program writes is stored as comments in the lock of the pip part.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.environments import conda_worker
from rayjobs.environments.conda_task import CondaTask, CondaWork
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.text import write_yaml

_MARK = "# conda | "
_EXPLICIT = "@EXPLICIT"
_PACKAGE = re.compile(r"/([^/\s]+)\.(?:conda|tar\.bz2)\b")
COMMANDS = ("micromamba", "mamba", "conda")
STALL_S = 300.0
"""The longest silence of a channel during the download of a package, in seconds."""
INDEX_S = 1_200.0
"""The time limit for fetching the indexes of all channels and solving, in seconds."""
SOURCES = "${RAYJOBS_SOURCES}"
"""Placeholder for the folder of files that travel with jobs: a lock is the same on every node."""

Run = Callable[[list[str], str], Awaitable[None]]
"""Runs a program and logs its output; the text describes a failure."""


@dataclass(frozen=True)
class Asked:
    """The request to conda.

    Attributes:
        specs: Match specifications, including Python's.
        channels: Channels of the packages, by decreasing priority.
        command: The program to use; None: py-rattler.
        link_scripts: Run the link scripts of the packages.
    """

    specs: tuple[str, ...]
    channels: tuple[str, ...]
    command: str | None = None
    link_scripts: bool = False

    def key(self) -> str:
        """Return the identity of this request."""
        values = json.dumps([self.specs, self.channels, self.command, self.link_scripts])
        return hashlib.sha256(values.encode()).hexdigest()


def asked_of(
    values: Mapping[str, Any],
    own_python: Sequence[int],
    name_of: Callable[[str], str] = lambda digest: digest,
) -> Asked:
    """Return the conda part of a job's environment.

    Without a version of Python, it gets the target's version, with which rayjobs is tested.

    Args:
        name_of: Returns, for a digest, the name of the folder with files that travel with the job.
    """
    python = values.get("python")
    if python is None:
        spec = f"python {own_python[0]}.{own_python[1]}.*"
    elif str(python)[0].isdigit():
        spec = f"python {python}.*" if str(python).count(".") < 2 else f"python =={python}"
    else:
        spec = f"python {python}"
    sources = values.get("sources") or {}
    return Asked(
        specs=(spec, *map(str, values["conda"])),
        channels=tuple(
            f"file://{SOURCES}/{name_of(sources[one])}" if one in sources else str(one)
            for one in values["channels"]
        ),
        command=values.get("conda_command"),
        link_scripts=bool(values.get("link_scripts")),
    )


def split(lock: str) -> tuple[str, str]:
    """Return the conda part of a lock as a separate text, and the rest."""
    own, rest = [], []
    for line in lock.splitlines():
        if line.startswith(_MARK.rstrip()):
            own.append(line[len(_MARK) :])
        else:
            rest.append(line)
    return "".join(f"{line}\n" for line in own), "".join(f"{line}\n" for line in rest)


def joined(conda_lock: str) -> str:
    """Return the conda part as lines of a lock."""
    return "".join(f"{_MARK}{line}\n" for line in conda_lock.splitlines())


class Conda:
    """Solves and installs on one node, with the temporary files of one attempt."""

    def __init__(self, cache: Path, sources: Path, tmp: Path, run: Run, path: str) -> None:
        """Keep packages and indexes in `cache`; search programs on `path`.

        Args:
            sources: The folder of channels that travel with jobs.
        """
        self._cache, self._sources = cache, str(sources)
        self._tmp, self._run, self._path = tmp, run, path

    async def solve(self, asked: Asked) -> str:
        """Return a lock of the packages, for the virtual packages of this node.

        A program of the node gives a lock only after it has installed the packages. For it, this
        returns the request instead.

        Raises:
            PrepareError: class ``environment``, in the solver's words.
        """
        if asked.command is not None:
            return f"{json.dumps([asked.command, asked.specs, asked.channels])}\n"
        made = self._tmp / "conda.lock"
        channels = [self._here(one) for one in asked.channels]
        task = self._task(CondaWork.SOLVE, made)
        task = replace(task, channels=tuple(channels), specs=asked.specs)
        try:
            await self._work(task, "the conda packages cannot be solved")
            return self._anywhere(made.read_text())
        finally:
            made.unlink(missing_ok=True)

    async def install(self, asked: Asked, lock: str, prefix: Path) -> str:
        """Install a lock into a new prefix; return the lock of the installed packages.

        Raises:
            PrepareError: class ``environment``, in the installer's words.
        """
        doing = "the conda packages cannot be installed"
        if asked.command is not None:
            return await self._by_command(asked, lock, prefix, doing)
        kept = self._tmp / "conda.lock"
        kept.write_text(self._here(lock))
        task = self._task(CondaWork.INSTALL, kept)
        task = replace(task, prefix=str(prefix), link_scripts=asked.link_scripts)
        try:
            await self._work(task, doing)
        finally:
            kept.unlink(missing_ok=True)
        await asyncio.to_thread(self._note_use, lock)
        return lock

    async def fetch(self, lock: str, channel: Path) -> None:
        """Make a channel of the packages of a lock in a folder.

        Raises:
            PrepareError: class ``environment``: a package cannot be fetched, or has changed.
        """
        kept = self._tmp / "conda.lock"
        kept.write_text(self._here(lock))
        task = replace(self._task(CondaWork.FETCH, kept), channel=str(channel))
        try:
            await self._work(task, "the conda packages cannot be fetched")
        finally:
            kept.unlink(missing_ok=True)

    def _here(self, text: str) -> str:
        return text.replace(SOURCES, self._sources)

    def _anywhere(self, text: str) -> str:
        return text.replace(self._sources, SOURCES)

    def _task(self, work: CondaWork, lock: Path) -> CondaTask:
        """Return a task without the fields of its kind of work."""
        return CondaTask(
            work,
            str(lock),
            cache=str(self._cache),
            done=str(self._tmp / "conda-done"),
            stall_s=STALL_S,
            index_s=INDEX_S,
        )

    async def _work(self, task: CondaTask, doing: str) -> None:
        # `rayjobs env` reads locks with this module, and builds nothing.
        from rayjobs.environments.building import ProgramFailedError

        file, done = self._tmp / "conda-task.json", Path(task.done)
        done.unlink(missing_ok=True)
        file.write_text(json.dumps(task.to_json()))
        try:
            await self._run([sys.executable, "-I", conda_worker.__file__, str(file)], doing)
        except PrepareError as error:
            if done.exists():
                return  # the task was complete before the process failed
            status = error.status if isinstance(error, ProgramFailedError) else None
            if status == conda_worker.UNSOLVABLE:
                # Another attempt would find the same missing package or the same conflict.
                raise PrepareError(
                    error.message,
                    failure_class=error.failure_class,
                    lines=error.lines,
                    is_permanent=True,
                ) from error
            if status == conda_worker.NOT_INSTALLED:
                raise PrepareError(
                    "conda packages need py-rattler on the target's nodes: install rayjobs[conda] "
                    "there, or name a program with `conda_command`",
                    failure_class=FailureClass.ENVIRONMENT,
                    is_permanent=True,
                ) from error
            raise
        finally:
            file.unlink(missing_ok=True)
        if not done.exists():
            text = f"{doing}: the program ended before it was done"
            raise PrepareError(text, failure_class=FailureClass.SYSTEM)

    def _note_use(self, lock: str) -> None:
        """Mark packages of the cache as used, so that they are not pruned."""
        for name in _PACKAGE.findall(lock):
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._cache / name)

    async def _by_command(self, asked: Asked, lock: str, prefix: Path, doing: str) -> str:
        name = str(asked.command)
        program = shutil.which(name, path=self._path)
        if program is None:
            found = [one for one in COMMANDS if shutil.which(one, path=self._path)]
            has = f"; it has {', '.join(found)}" if found else ""
            raise PrepareError(
                f"this node has no program {name!r} for conda packages{has}. Install it, or leave "
                f"out conda_command to use rayjobs[conda]",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        is_micro = Path(program).name.startswith("micromamba")
        if lock.startswith(_EXPLICIT):
            file = self._tmp / "conda-explicit.txt"
            file.write_text(self._here(lock))
            words = [program, "create", "--yes", "--prefix", str(prefix), "--file", str(file)]
        else:
            file = self._tmp / "conda-environment.yml"
            channels = [self._here(one) for one in asked.channels]
            content = {"channels": channels, "dependencies": list(asked.specs)}
            file.write_text(write_yaml(content))
            create = ["create", "--yes"] if is_micro else ["env", "create"]
            words = [program, *create, "--prefix", str(prefix), "--file", str(file)]
        try:
            await self._run(words, doing)
        finally:
            file.unlink(missing_ok=True)
        return self._anywhere(await asyncio.to_thread(explicit, prefix))


def explicit(prefix: Path) -> str:
    """Return a prefix's packages as a list of addresses that every conda can install."""
    lines = []
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        values = json.loads(file.read_text())
        digest = values.get("md5")
        lines.append(values["url"] + (f"#{digest}" if digest else ""))
    return "".join(f"{line}\n" for line in [_EXPLICIT, *lines])


def to_compile(prefix: Path) -> list[str]:
    """Return the package folders in which modules lack bytecode; py-rattler compiles only some."""
    return [str(one) for one in prefix.glob("lib/python*/site-packages") if _lacks_bytecode(one)]


def _lacks_bytecode(packages: Path) -> bool:
    for folder, _, files in os.walk(packages):
        modules = {name[:-3] for name in files if name.endswith(".py")}
        if modules:
            compiled = {
                one.name.partition(".")[0] for one in Path(folder).glob("__pycache__/*.pyc")
            }
            if not modules <= compiled:
                return True
    return False
