"""Snapshots of one node: unpacked once per digest, copied for every attempt."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import PrepareError, SnapshotError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked, write_atomic
from rayjobs.injob import open_files
from rayjobs.injob.identity import boot_id
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.limits import UNPACK_LIMITS, Limits

if TYPE_CHECKING:
    from rayjobs.snapshots.unpack import Opener

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FICLONE = 0x40049409  # Source: linux/fs.h
_SMALL = 64 * 1024  # bytes: below, one read and one write are fastest
_CHUNK = 16 * 1024**2
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class NodeSnapshots:
    """Folder of unpacked snapshots, shared by all processes of a user on one node.

    Each records the boot id: unpacking is not synced to the disk, so after a crash of the machine
    the snapshot is unpacked again.

    Attributes:
        root: Folder below the node's scratch, created on first use.
    """

    root: Path
    limits: Limits = UNPACK_LIMITS

    def ensure(self, digest: str, open_blob: Opener) -> Path:
        """Return the folder of the unpacked snapshot; callers must not write there.

        Blocks while another process unpacks the same one. Safe from threads and processes.

        Args:
            digest: ``sha256:…``
            open_blob: Called only when it must be unpacked; returns the archive's path, or an
                open file (closed here).

        Raises:
            SnapshotError: the archive is not whole, or is refused.
            PrepareError: class ``storage``: the disk is full.
        """
        key = _key(digest)
        tree = self.root / key
        if self._is_whole(key):
            return tree
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self.root / f"{key}.lock"):
            if self._is_whole(key):
                return tree
            self._discard(key)
            from rayjobs.snapshots.unpack import (
                unpack,
            )  # imported only if something must be unpacked

            blob = open_blob()
            try:
                unpack(blob, digest, tree, limits=self.limits)
            finally:
                if not isinstance(blob, Path):
                    blob.close()
            self._note(key)
        return tree

    def copy_into(self, digest: str, work_dir: Path) -> None:
        """Copy the snapshot to `work_dir`, where one attempt may write freely.

        The folder must be missing or empty. Shares blocks with the original if the file system can,
        but never files: a script that writes to its code affects no other job.

        Raises:
            SnapshotError: the snapshot is not on this node (`ensure` first), or the folder is not
                empty.
            PrepareError: class ``storage``: the disk is full.
        """
        key = _key(digest)
        work_dir.mkdir(parents=True, exist_ok=True)
        if any(work_dir.iterdir()):
            raise SnapshotError(f"{work_dir} is not empty; an attempt starts in a new folder")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self.root / f"{key}.lock", shared=True):
            if not self._is_whole(key):
                raise SnapshotError(f"the snapshot {digest} is not unpacked on this node")
            try:
                _Copier().copy(str(self.root / key), str(work_dir))
            except OSError as error:
                if error.errno in _DISK_FULL:
                    raise PrepareError(
                        f"no space left in {work_dir} for the job's copy of its snapshot",
                        failure_class=FailureClass.STORAGE,
                    ) from error
                raise

    def _is_whole(self, key: str) -> bool:
        note = self.root / f"{key}.json"
        try:
            os.utime(note)  # `rayjobs prune` keeps recently used snapshots
            noted = json.loads(note.read_bytes())
            return bool(noted["boot_id"] == boot_id()) and (self.root / key).is_dir()
        except (OSError, ValueError, KeyError, TypeError) as error:
            if open_files.is_exhausted(error):
                raise  # no file could be opened, so it may be whole
            return False  # missing, or torn by a crash: unpack it again

    def _note(self, key: str) -> None:
        write_atomic(self.root / f"{key}.json", json.dumps({"boot_id": boot_id()}))

    def _discard(self, key: str) -> None:
        """Remove leftovers of a dead unpacker; only with the lock held."""
        (self.root / f"{key}.json").unlink(missing_ok=True)
        for leftover in [
            *self.root.glob(f"tmp-{key}-*"),
            *self.root.glob(f".*.{key}.json"),
            self.root / key,
        ]:
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def _key(digest: str) -> str:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise SnapshotError(f"{digest!r} is not a snapshot's digest (sha256: and 64 hex digits)")
    return found[1]


class _Copier:
    """Copies a tree of folders, files and links; shares blocks until the kernel refuses once."""

    def __init__(self) -> None:
        self._clones = True
        self._copies_ranges = True

    def copy(self, source: str, target: str) -> None:
        """Copy what is in `source` to the existing folder `target`."""
        pending = [(source, target)]
        while pending:
            old, new = pending.pop()
            with os.scandir(old) as listing:
                for entry in listing:
                    copied = f"{new}/{entry.name}"
                    if entry.is_symlink():
                        os.symlink(os.readlink(entry.path), copied)  # noqa: PTH211 - as is
                    elif entry.is_dir():
                        os.mkdir(copied, 0o755)  # noqa: PTH102 - speed
                        pending.append((entry.path, copied))
                    else:
                        self._copy_file(entry.path, copied)

    def _copy_file(self, old: str, new: str) -> None:
        reader = os.open(old, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            info = os.fstat(reader)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            writer = os.open(new, flags, info.st_mode & 0o777)
            try:
                self._copy_content(reader, writer, info.st_size)
            finally:
                os.close(writer)
        finally:
            os.close(reader)

    def _copy_content(self, reader: int, writer: int, size: int) -> None:
        if size > _SMALL and self._clones:
            try:
                fcntl.ioctl(writer, _FICLONE, reader)
                return
            except OSError as error:
                if error.errno not in _NO_CLONE:
                    raise
                self._clones = False
        copied = 0
        while copied < size:
            if size > _SMALL and self._copies_ranges:
                try:
                    done = os.copy_file_range(reader, writer, min(_CHUNK, size - copied))
                except OSError as error:
                    if error.errno not in _NO_CLONE:
                        raise
                    self._copies_ranges = False
                    continue
                if done:
                    copied += done
                    continue
                self._copies_ranges = False  # some file systems answer 0 instead of refusing
            data = os.read(reader, min(_CHUNK, size - copied))
            if not data:
                raise SnapshotError("an unpacked snapshot changed while it was copied")
            view = memoryview(data)
            while view:
                view = view[os.write(writer, view) :]
            copied += len(data)
