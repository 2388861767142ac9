"""Solves and installs packages of conda with py-rattler: one task, in a process of its own.

``python -I conda_worker.py TASK.json`` writes its answer as JSON to the path that the task names
and ends with `os._exit`: the library's threads may abort an interpreter that ends normally, with
its work done. Standard library and py-rattler only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

PLATFORM = "linux-64"
NOT_INSTALLED = "py-rattler is not installed"
_SOLVE_TIMEOUT = timedelta(minutes=10)


async def solve(task: dict[str, Any]) -> dict[str, Any]:
    """Write a lock file for specifications; answer with the version of Python."""
    import rattler
    from rattler.lock import LockChannel, LockFile, LockPlatform

    records = await rattler.solve(
        task["channels"],
        task["specs"],
        platforms=["linux-64", "noarch"],
        virtual_packages=rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env()),
        gateway=rattler.Gateway(cache_dir=Path(task["cache"])),
        timeout=_SOLVE_TIMEOUT,
    )
    platform = LockPlatform(PLATFORM)
    lock = LockFile([platform])
    lock.set_channels("default", [LockChannel(one) for one in task["channels"]])
    for record in sorted(records, key=lambda one: one.name.normalized):
        lock.add_conda_package("default", platform, record)
    lock.to_path(Path(task["lock"]))
    versions = [str(one.version) for one in records if one.name.normalized == "python"]
    say(f"solved: {len(records)} packages")
    return {"python": versions[0] if versions else None, "packages": len(records)}


async def install(task: dict[str, Any]) -> dict[str, Any]:
    """Install what a lock file says into a prefix."""
    import rattler
    from rattler.lock import LockFile

    environment = LockFile.from_path(Path(task["lock"])).default_environment()
    if environment is None:
        raise ValueError("the lock has no environment")
    found = environment.conda_repodata_records()
    records = [one for platform in found.values() for one in platform]
    for record in records:
        _check(record.url, record.sha256)
    say(f"installing {len(records)} packages")
    await rattler.install(
        records,
        target_prefix=task["prefix"],
        cache_dir=Path(task["cache"]),
        show_progress=False,
        execute_link_scripts=bool(task["link_scripts"]),
        reporter=_reporter(len(records)),
    )
    return {"packages": len(records)}


def _check(url: str, sha256: bytes | None) -> None:
    """Check a package of a folder; the library checks what it fetches.

    Raises:
        ValueError: its bytes are not those that the channel's index names.
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


def _reporter(total: int) -> Any:
    from rattler import InstallerReporter

    class Progress(InstallerReporter):
        done = 0

        def on_download_start(self, *arguments: Any, **named: Any) -> Any:
            return 0

        def on_link_complete(self, *arguments: Any, **named: Any) -> None:
            self.done += 1
            if self.done == total or self.done % 10 == 0:
                say(f"installed {self.done} of {total} packages")

    return Progress()  # type: ignore[abstract]


def say(text: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(path: str) -> int:
    """Run one task; return the exit code, 3 where py-rattler is not installed."""
    task = json.loads(Path(path).read_text())
    try:
        answer = asyncio.run({"solve": solve, "install": install}[task["do"]](task))
    except ImportError as error:
        say(f"error: {NOT_INSTALLED}: {error}")
        return 3
    except Exception as error:  # of whatever type: the text is for people
        say(f"error: {type(error).__name__}: {error}")
        return 1
    fresh = Path(task["answer"] + ".new")
    fresh.write_text(json.dumps(answer))
    fresh.replace(task["answer"])
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
