"""The unpacked images of one node, each in a complete folder, and the attempts that use them.

``images/<key>/`` contains the root file system and a record. It is filled below ``building/`` and
renamed when complete and on the disk, so an unfinished image is never used. A process that fills or
removes an image holds a kernel lock on ``<key>.lock``, which ends with the process. ``names/``
contains the last image of each name, file and Dockerfile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from rayjobs.containers.attempt_files import UsedImage
from rayjobs.containers.unpacking import RECORD, ROOTFS
from rayjobs.core.files import locked_if_free, write_atomic
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.safe_delete import OwnFolder
from rayjobs.environments.cache import key_of_build, sync_file_system
from rayjobs.injob.lazy_dataclass import dataclass

LOGIN = "login"  # folder with the registry login of a fetch, below the folder of the fetch
FORMAT = 1  # increased when the same image must be unpacked differently


@dataclass(frozen=True)
class Known:
    """The last image of a name, file or Dockerfile.

    Attributes:
        key: Its image in the cache.
        stamp: Evidence of its identity (an id, or size and time), or None.
        pinned: The name with the digest that the registry gave for it; None if unknown.
    """

    key: str
    stamp: str | None = None
    pinned: str | None = None


@dataclass(frozen=True)
class ImageCache:
    """The folder of a node's images."""

    root: Path

    def make(self) -> None:
        """Make the folders. Idempotent."""
        for folder in (self.root, self.building, self.names):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def building(self) -> Path:
        """The folder in which images are fetched and unpacked."""
        return self.root / "building"

    @property
    def names(self) -> Path:
        """The folder of records of names' last images."""
        return self.root / "names"

    def folder(self, key: str) -> Path:
        """Return the folder of a complete image."""
        return self.root / key

    def rootfs(self, key: str) -> Path:
        """Return its root file system."""
        return self.folder(key) / ROOTFS

    def lock_of(self, key: str) -> Path:
        """Return the lock file of an image or a name."""
        return self.root / f"{key}.lock"

    def is_whole(self, key: str) -> bool:
        """Whether an image is complete."""
        return (self.folder(key) / RECORD).exists()

    def record(self, key: str) -> dict[str, Any]:
        """Return the record of an image."""
        found = json.loads((self.folder(key) / RECORD).read_bytes())
        return dict(found)

    def keep_record(self, key: str, record: dict[str, Any]) -> None:
        """Replace the record of an image."""
        write_atomic(self.folder(key) / RECORD, json.dumps(record))

    def known(self, name_key: str) -> Known | None:
        """Return a name's last image; None if the image is no longer here."""
        path = self.names / f"{name_key}.json"
        try:
            values = json.loads(path.read_bytes())
            found = Known(str(values["key"]), values["stamp"], values.get("pinned"))
            os.utime(path)  # marks it as used
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if self.is_whole(found.key) else None

    def keep_known(self, name_key: str, known: Known) -> None:
        """Record a name's image."""
        text = json.dumps({"key": known.key, "stamp": known.stamp, "pinned": known.pinned})
        write_atomic(self.names / f"{name_key}.json", text, durable=True)

    def begin(self, key: str) -> Path:
        """Remove leftovers of dead processes; return a new folder. The caller holds the lock."""
        with OwnFolder(self.building) as folder:
            for name, _ in folder.entries(""):
                if name.startswith(f"{key}-"):
                    folder.remove(name)
        made = self.building / f"{key}-{os.getpid()}-{time.time_ns()}"
        made.mkdir(mode=0o700)
        return made

    def remove_logins(self) -> None:
        """Remove passwords left by fetches that died with their agent."""
        if not self.building.is_dir():
            return
        with OwnFolder(self.building) as folder:
            for name, _ in folder.entries(""):
                key = key_of_build(name)
                if key is None or not (self.building / name / LOGIN).is_dir():
                    continue
                with locked_if_free(self.lock_of(key)) as alone:
                    if alone:
                        folder.remove(f"{name}/{LOGIN}")

    def finish(self, key: str, made: Path) -> None:
        """Make a complete image visible under its name. The caller holds the lock."""
        sync_file_system(made)
        made.rename(self.folder(key))

    def touch(self, key: str) -> None:
        """Record that an image is used now."""
        os.utime(self.folder(key) / RECORD)

    def used_by(self) -> dict[str, list[str]]:
        """Return the attempts with folders on this node, by the image that they use."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.root.parent / "attempts").glob("*/*")):
            with contextlib.suppress(OSError, ValueError):
                used = UsedImage.read(AttemptPaths(path))
                if used is not None and used.key is not None:
                    found.setdefault(used.key, []).append(f"{path.parent.name}/{path.name}")
        return found


def key_of(digest: str) -> str:
    """Return the cache's name for the image with a digest."""
    return hashlib.sha256(f"{FORMAT}:{digest}".encode()).hexdigest()[:32]
