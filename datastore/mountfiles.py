"""The files that describe the mounts of a node, and two operations on a mount point.

    mounts/<key>.lock
    mounts/<key>/manifest          the files shown
    mounts/<key>/g<n>/mount.json   what is served, and who keeps and serves it
    mounts/<key>/g<n>/files        the mount point
    mounts/<key>/g<n>/users/       one file per user, with its process
    mounts/<key>/g<n>/trouble      what went wrong, one JSON object per line
    mounts/<key>/g<n>/log          the output of keeper and server

A dead mount keeps its number, so that its users still get an error and never an empty folder; the
next user gets generation n+1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_atomic
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.injob.identity import Identity, is_alive
from rayjobs.injob.lazy_dataclass import dataclass

UNMOUNT_LIMIT_S = 30.0


@dataclass(frozen=True)
class MountRecord:
    """What one mount serves and its processes; None while a process is not running."""

    records: tuple[DatastoreRecord, ...]
    cache_root: str
    cache_bytes: int | None
    keeper: Identity | None = None
    server: Identity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        values = asdict(replace(self, records=()))
        values["records"] = [record.to_json() for record in self.records]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> MountRecord:
        """Return the record that `to_json` wrote."""
        processes = {
            name: Identity.from_json(values[name]) if values[name] else None
            for name in ("keeper", "server")
        }
        return cls(
            records=tuple(DatastoreRecord.from_json(item) for item in values["records"]),
            cache_root=values["cache_root"],
            cache_bytes=values["cache_bytes"],
            **processes,
        )


@dataclass(frozen=True)
class MountFolder:
    """One generation of one mount, by its folder."""

    folder: Path

    @property
    def manifest(self) -> Path:
        """The manifest served."""
        return self.folder.parent / "manifest"

    @property
    def lock(self) -> Path:
        """The lock file of all generations of this mount."""
        return self.folder.parent.with_suffix(".lock")

    @property
    def point(self) -> Path:
        """The mount point."""
        return self.folder / "files"

    @property
    def log(self) -> Path:
        """The output of keeper and server."""
        return self.folder / "log"

    def read(self) -> MountRecord | None:
        """Return the record, None if there is none."""
        try:
            return MountRecord.from_json(json.loads((self.folder / "mount.json").read_text()))
        except (OSError, ValueError, KeyError):
            return None

    def write(self, record: MountRecord) -> None:
        """Replace the record."""
        write_atomic(self.folder / "mount.json", json.dumps(record.to_json()))

    def add_user(self, token: str, owner: Identity) -> None:
        """Add a user whose process is `owner`."""
        # Keepers started by an earlier version read the key `boot`.
        text = json.dumps({**owner.to_json(), "boot": owner.boot_id})
        write_atomic(self.folder / "users" / token, text)

    def drop_user(self, token: str) -> None:
        """Remove a user."""
        (self.folder / "users" / token).unlink(missing_ok=True)

    def users(self) -> list[str]:
        """Return the users whose process is alive, or cannot be determined; remove the others."""
        living = []
        try:
            files = sorted((self.folder / "users").glob("[!.]*"))
        except FileNotFoundError:
            return []
        for file in files:
            try:
                owner = Identity.from_json(json.loads(file.read_text()))
            except (FileNotFoundError, ValueError):
                continue
            except OSError:  # such as too many open files: the process may well be alive
                living.append(file.name)
                continue
            if is_alive(owner):
                living.append(file.name)
            else:
                file.unlink(missing_ok=True)
        return living

    def say_trouble(self, kind: str, message: str) -> None:
        """Record what went wrong: `kind` is the name of an error of this package."""
        line = json.dumps({"at": time.time(), "kind": kind, "message": message}) + "\n"
        try:
            with (self.folder / "trouble").open("a") as stream:
                stream.write(line)
        except FileNotFoundError:
            return  # the mount was released meanwhile: it has no users left

    def troubles(self) -> list[tuple[str, str]]:
        """Return (kind, message) of everything that went wrong, oldest first."""
        try:
            lines = (self.folder / "trouble").read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                values = json.loads(line)
                found.append((str(values["kind"]), str(values["message"])))
            except (ValueError, KeyError):
                continue
        return found

    def remove(self) -> None:
        """Remove the folder of an unmounted mount; it holds no data, which is in the cache."""
        if is_mounted(self.point):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            if not list(generations(self.folder.parent)):
                shutil.rmtree(self.folder.parent, ignore_errors=True)
        except FileNotFoundError:
            return


def generations(mount: Path) -> Iterator[MountFolder]:
    """Yield the generations of the mount at folder `mount`, oldest first."""
    if not mount.is_dir():
        return
    numbered = [
        item for item in mount.iterdir() if item.name[:1] == "g" and item.name[1:].isdigit()
    ]
    for item in sorted(numbered, key=lambda path: int(path.name[1:])):
        yield MountFolder(item)


def mount_points() -> dict[str, str]:
    """Return every mount point this process sees, with its device as ``major:minor``."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    found = {}
    for line in lines:
        _, _, device, _, point, *_ = line.split(" ")
        # The kernel writes space, tab, newline and backslash as three octal digits.
        found[re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)] = device
    return found


def is_mounted(point: Path) -> bool:
    """Return whether something is mounted at `point`, without accessing it, since it may hang."""
    return device_of(point) is not None


def device_of(point: Path) -> str | None:
    """Return the device mounted at `point` as ``major:minor``; None if nothing is."""
    return mount_points().get(str(Path(os.path.realpath(point.parent)) / point.name))


def unmount(point: Path) -> bool:
    """Unmount `point`, even while it is in use; return whether it is gone."""
    for command in (["fusermount3", "-uz", str(point)], ["umount", "-l", str(point)]):
        if not is_mounted(point):
            return True
        if shutil.which(command[0]) is None:
            continue
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=UNMOUNT_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
    return not is_mounted(point)
