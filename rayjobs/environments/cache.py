"""The environments of one node, each in a complete folder, and who may use or remove them.

``environments/<key>/`` is a virtual environment with a record of its content. It is built below
``building/`` and renamed when complete, so an unfinished one is never used. A conda prefix cannot
be moved, so it is built in place and gets its record last. A process that builds or removes an
environment holds a kernel lock on ``<key>.lock``, which ends with the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_atomic
from rayjobs.core.paths import AttemptPaths
from rayjobs.environments.attempt_files import UsedEnvironment, UsedHorovod
from rayjobs.injob.lazy_dataclass import dataclass

RECORD = "rayjobs-environment.json"
LOCK = "rayjobs-environment.lock.txt"
KEY = re.compile(r"[0-9a-f]{32}")
_BUILD = re.compile(r"([0-9a-f]{32})-.*")


@dataclass(frozen=True)
class Cache:
    """The folder of a node's environments."""

    root: Path

    def make(self) -> None:
        """Make the folders. Idempotent."""
        for folder in (self.root, self.building, self.requests):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def building(self) -> Path:
        """The folder in which environments are built."""
        return self.root / "building"

    @property
    def requests(self) -> Path:
        """The folder of resolved locks, by request."""
        return self.root / "requests"

    @property
    def conda(self) -> Path:
        """Packages and indexes fetched by conda. Environments contain hard links to them."""
        return self.root / "conda"

    @property
    def base(self) -> Path:
        """The resolver's stand-ins for the target's own packages."""
        return self.root / "base"

    @property
    def programs(self) -> Path:
        """Libraries of the node's programs that install packages into images."""
        return self.root / "programs"

    @property
    def sources(self) -> Path:
        """Packages that travel with jobs, unpacked by digest."""
        return self.root / "sources"

    @property
    def kept_for_builds(self) -> tuple[str, ...]:
        """Folders of files that builds can fetch again; each entry may be removed."""
        return tuple(one.name for one in (self.conda, self.base, self.programs, self.sources))

    @property
    def builds(self) -> Path:
        """A lock that builds share; its exclusive holder may remove files that builds keep."""
        return self.root / "builds.lock"

    def source(self, digest: str) -> Path:
        """Return the unpack folder of a package that travels with jobs."""
        return self.sources / digest.rpartition(":")[2][:32]

    def folder(self, key: str) -> Path:
        """Return the folder of a complete environment."""
        return self.root / key

    def python(self, key: str) -> Path:
        """Return the interpreter of an environment."""
        return self.folder(key) / "bin" / "python"

    def names(self, key: str) -> Iterator[str]:
        """Yield the possible names of an environment: its key, then an endless series of others.

        An environment that must be rebuilt while attempts still use it is built under the next
        name.
        """
        yield key
        for number in itertools.count(2):
            yield hashlib.sha256(f"{key} {number}".encode()).hexdigest()[: len(key)]

    def lock_of(self, name: str) -> Path:
        """Return the lock file of an environment or a request."""
        return self.root / f"{name}.lock"

    def is_whole(self, key: str, *, in_image: bool = False) -> bool:
        """Whether an environment is complete, and its base interpreter still exists.

        Args:
            in_image: The interpreter belongs to the image in which the environment is used.
        """
        python = self.python(key)
        has_python = os.path.lexists(python) if in_image else os.access(python, os.X_OK)
        return has_python and (self.folder(key) / RECORD).exists()

    def has_record(self, key: str) -> bool:
        """Whether an environment has its record; it may have no interpreter of its own."""
        return (self.folder(key) / RECORD).exists()

    def resolved(self, digest: str) -> str | None:
        """Return the lock of a request; None if it has not been resolved."""
        path = self.requests / f"{digest}.txt"
        try:
            os.utime(path)  # marks it as used
            return path.read_text()
        except FileNotFoundError:
            return None

    def keep_resolved(self, digest: str, lock: str) -> None:
        """Store the lock of a request."""
        write_atomic(self.requests / f"{digest}.txt", lock, durable=True)

    def begin(self, key: str) -> Path:
        """Remove leftovers of earlier builds; return a new folder. The caller holds the lock."""
        for left in self.building.glob(f"{key}-*"):
            shutil.rmtree(left, ignore_errors=True)
        folder = self.building / f"{key}-{os.getpid()}-{time.time_ns()}"
        folder.mkdir(mode=0o700)
        return folder

    def finish(self, key: str, venv: Path, lock: str, record: dict[str, Any]) -> None:
        """Make a complete environment visible under a name that no attempt uses.

        The caller holds the lock.
        """
        (venv / LOCK).write_text(lock)
        (venv / RECORD).write_text(json.dumps(record))
        sync_file_system(venv)
        path = self.folder(key)
        if path.exists():  # its interpreter is gone, or a job changed it
            aside = self.building / f"{key}-{os.getpid()}-{time.time_ns()}"
            path.rename(aside)
            venv.rename(path)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            venv.rename(path)

    def begin_in_place(self, key: str) -> Path:
        """Return the empty folder of an unused environment that cannot be moved.

        The caller holds the lock.
        """
        path = self.folder(key)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def finish_in_place(self, key: str, lock: str, record: dict[str, Any]) -> None:
        """Complete an environment that was built in place. The caller holds the lock."""
        path = self.folder(key)
        (path / LOCK).write_text(lock)
        sync_file_system(path)
        write_atomic(path / RECORD, json.dumps(record), durable=True)

    def discard(self, key: str) -> None:
        """Keep new attempts from using an environment. The caller holds the lock."""
        (self.folder(key) / RECORD).unlink(missing_ok=True)

    def lock_text(self, key: str) -> str | None:
        """Return the lock of a complete environment."""
        try:
            return (self.folder(key) / LOCK).read_text()
        except OSError:
            return None

    def touch(self, key: str) -> None:
        """Record that an environment is used now."""
        os.utime(self.folder(key) / RECORD)

    def used_by(self) -> dict[str, list[str]]:
        """Return the attempts with folders on this node, by the environment that they use."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.root.parent / "attempts").glob("*/*")):
            paths = AttemptPaths(path)
            for kind in (UsedEnvironment, UsedHorovod):
                with contextlib.suppress(OSError, ValueError):
                    used = kind.read(paths)
                    if used is not None:
                        found.setdefault(used.key, []).append(f"{path.parent.name}/{path.name}")
        return found


def key_of_build(name: str) -> str | None:
    """Return the environment, or image, for which a folder below ``building`` was made."""
    found = _BUILD.fullmatch(name)
    return found[1] if found else None


def sync_file_system(folder: Path) -> None:
    """Flush the file system of a folder to the disk.

    Otherwise, a crash of the machine may leave empty files.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)
