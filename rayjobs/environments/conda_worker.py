"""Solves and installs conda packages with py-rattler: one task per process.

``python -I conda_worker.py TASK.json`` reads a `CondaTask`, creates its file `done` at the end and
ends with `os._exit`, because the library's threads may abort an interpreter that exits normally.
Uses only the standard library, py-rattler and messages of rayjobs.
"""

from __future__ import annotations

import asyncio
import compileall
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run by its path and with -I, so a folder that PYTHONPATH added is not on the module path.
    _package_home = str(Path(__file__).resolve().parents[2])
    if _package_home not in sys.path:
        sys.path.append(_package_home)

from rayjobs.environments.conda_task import CondaTask, CondaWork

PLATFORM = "linux-64"
# Exit codes.
FAILED = 1
NOT_INSTALLED = 3  # there is no py-rattler
UNSOLVABLE = 4  # no packages in today's index satisfy the specifications
_BUILD = re.compile(r"[^\s=<>!~\[]+=[^\s=]+=[^\s=]+")  # NAME=VERSION=BUILD
_SOLVE_TIMEOUT = timedelta(minutes=10)
_LOOK_S = 0.5


async def solve(task: CondaTask) -> None:
    """Write a lock file for specifications."""
    import rattler
    from rattler.lock import LockChannel, LockFile, LockPlatform

    solving = rattler.solve(
        list(task.channels),
        # `conda env export` writes this form, which the strict parser refuses.
        [rattler.MatchSpec(one) if _BUILD.fullmatch(one) else one for one in task.specs],
        platforms=["linux-64", "noarch"],
        virtual_packages=rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env()),
        gateway=rattler.Gateway(cache_dir=Path(task.cache)),
        timeout=_SOLVE_TIMEOUT,
    )
    # The library itself waits for an index forever.
    records = await _within(solving, Seen(), task.index_s, "the index of a channel")
    platform = LockPlatform(PLATFORM)
    lock = LockFile([platform])
    lock.set_channels("default", [LockChannel(one) for one in task.channels])
    for record in sorted(records, key=lambda one: one.name.normalized):
        lock.add_conda_package("default", platform, record)
    lock.to_path(Path(task.lock))
    say(f"solved: {len(records)} packages")


async def install(task: CondaTask) -> None:
    """Install a lock file's packages into a prefix."""
    import rattler

    records = _records(task.lock)
    for record in records:
        _check(record.url, record.sha256)
    say(f"installing {len(records)} packages")
    seen = Seen()
    installing = rattler.install(
        records,
        target_prefix=task.prefix,
        cache_dir=Path(task.cache),
        show_progress=False,
        execute_link_scripts=task.link_scripts,
        reporter=_reporter(len(records), seen),
    )
    await _within(installing, seen, task.stall_s, "a package")
    _compile(Path(task.prefix))


def _compile(prefix: Path) -> None:
    """Compile the modules of a prefix if its Python uses this interpreter's bytecode.

    Another version of Python must compile its modules in a separate process.
    """
    version = "{}.{}".format(*sys.version_info[:2])
    for folder in prefix.glob(f"lib/python{version}/site-packages"):
        compileall.compile_dir(folder, quiet=2)  # a file for another version is not an error


async def fetch(task: CondaTask) -> None:
    """Make a channel from the packages of a lock file: their archives and an index."""
    import rattler
    from rattler.index import index_fs
    from rattler.package_streaming import download_to_path

    channel, records = Path(task.channel), _records(task.lock)
    client = rattler.Client.authenticated_client()
    for subdir in (PLATFORM, "noarch"):
        (channel / subdir).mkdir(parents=True, exist_ok=True)
    for done, record in enumerate(records, 1):
        target = channel / record.subdir / record.file_name
        if record.url.startswith("file://"):
            shutil.copyfile(record.url.removeprefix("file://"), target)
        else:
            loading = download_to_path(client, record.url, target)
            await _within(loading, Seen(target), task.stall_s, record.url)
        _check(str(target), record.sha256)
        if done == len(records) or done % 10 == 0:
            say(f"fetched {done} of {len(records)} packages")
    await index_fs(channel, write_zst=False, write_shards=False)


_WORK: dict[CondaWork, Callable[[CondaTask], Coroutine[Any, Any, None]]] = {
    CondaWork.SOLVE: solve,
    CondaWork.INSTALL: install,
    CondaWork.FETCH: fetch,
}


class Seen:
    """The time of the last progress."""

    def __init__(self, file: Path | None = None) -> None:
        """Watch the growth of `file`; without one, the instance is called at each step."""
        self._file, self._size = file, -1
        self.at_s = time.monotonic()

    def __call__(self) -> None:
        """Record progress."""
        self.at_s = time.monotonic()

    def look(self) -> None:
        """Check whether the file has grown."""
        size = self._file.stat().st_size if self._file is not None and self._file.exists() else -1
        if size != self._size:
            self._size = size
            self()


async def _within(doing: Awaitable[Any], seen: Seen, most_s: float, what: str) -> Any:
    """Wait for the library, which itself waits forever for a silent server.

    Raises:
        TimeoutError: there was no progress for too long.
    """
    task = asyncio.ensure_future(doing)
    while not task.done():
        await asyncio.wait({task}, timeout=min(_LOOK_S, most_s))
        seen.look()
        if not task.done() and time.monotonic() - seen.at_s > most_s:
            raise TimeoutError(f"{what} does not arrive: nothing came for {most_s:g} s")
    return task.result()


def _records(lock: str) -> list[Any]:
    from rattler.lock import LockFile

    environment = LockFile.from_path(Path(lock)).default_environment()
    if environment is None:
        raise ValueError("the lock has no environment")
    found = environment.conda_repodata_records()
    return [one for platform in found.values() for one in platform]


def _check(url: str, sha256: bytes | None) -> None:
    """Check a package in a folder; the library only checks packages that it fetches.

    Raises:
        ValueError: its hash differs from that in the channel's index.
    """
    path = url.removeprefix("file://")
    if sha256 is None or not path.startswith("/"):
        return
    with Path(path).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").digest()
    if found != sha256:
        raise ValueError(
            f"{path} has the SHA-256 hash {found.hex()}, and its channel's index says "
            f"{sha256.hex()}: the package has changed or is damaged"
        )


def _reporter(total: int, seen: Seen) -> Any:
    from rattler import InstallerReporter

    class Progress(InstallerReporter):
        done = 0

        def on_download_start(self, *arguments: Any, **named: Any) -> Any:
            seen()
            return 0

        def on_download_progress(self, *arguments: Any, **named: Any) -> None:
            seen()

        def on_download_completed(self, *arguments: Any, **named: Any) -> None:
            seen()

        def on_link_start(self, *arguments: Any, **named: Any) -> Any:
            seen()
            return 0

        def on_link_complete(self, *arguments: Any, **named: Any) -> None:
            seen()
            self.done += 1
            if self.done == total or self.done % 10 == 0:
                say(f"installed {self.done} of {total} packages")

    return Progress()  # type: ignore[abstract]


def say(text: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(path: str) -> int:
    """Run one task; return the exit code."""
    task = CondaTask.from_json(json.loads(Path(path).read_text()))
    try:
        asyncio.run(_WORK[task.work](task))
    except ImportError as error:
        say(f"error: py-rattler is not installed: {error}")
        return NOT_INSTALLED
    except Exception as error:
        say(f"error: {type(error).__name__}: {error}")
        return UNSOLVABLE if _is_unsolvable(error) else FAILED
    Path(task.done).touch()
    return 0


def _is_unsolvable(error: Exception) -> bool:
    from rattler.exceptions import InvalidMatchSpecError, SolverError

    return isinstance(error, (InvalidMatchSpecError, SolverError))


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
