"""The process behind a mount: shows a manifest's files read-only, each complete and verified.

The first open of a file fetches it into the node's cache and verifies it; reads are then served
from there. So for eight jobs, on one mount or on eight, the server sends each byte once. Files that
are opened in sequence are prefetched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mfusepy

from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.errors import DatastoreError
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.mountfiles import MountFolder, MountRecord, device_of
from rayjobs.datastore.reading import check_local
from rayjobs.datastore.sources import record_for

AHEAD = 3
READ_AHEAD_KIB = 1024
CACHED_S = 86_400.0  # how long the kernel may cache names and sizes: they never change
BLOCK_BYTES = 4096


class Tree:
    """The folders and files of a manifest, by path with a leading `/`."""

    def __init__(self, manifest: Manifest) -> None:
        self.files: dict[str, FileEntry] = {}
        self.order: dict[str, int] = {}
        self.folders: dict[str, list[str]] = {"/": []}
        for position, entry in enumerate(manifest):
            path = f"/{entry.path}"
            self.files[path] = entry
            self.order[path] = position
            self._put(path)

    def _put(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if parent not in self.folders:
            self.folders[parent] = []
            self._put(parent)
        self.folders[parent].append(name)


class ReadOnlyFiles(mfusepy.Operations):
    """Answers the kernel's requests from the tree and the cache."""

    use_ns = True

    def __init__(self, manifest: Manifest, record: MountRecord, folder: MountFolder) -> None:
        self._manifest = manifest
        self._tree = Tree(manifest)
        self._folder = folder
        self._cache = NodeCache(Path(record.cache_root), max_bytes=record.cache_bytes)
        records = {kept.name: kept for kept in record.records}
        self._backends: dict[str, Backend] = {
            name: open_backend(record_for(name, records.__getitem__))
            for name in manifest.datastores
        }
        self._owner = (os.getuid(), os.getgid())
        self._last_opened = -2
        self._lock = threading.Lock()
        self._prefetched: set[int] = set()
        self._has_answered = False
        self._pool: ThreadPoolExecutor | None = None

    # --- requests of the kernel ---

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return the attributes of a file or folder."""
        if not self._has_answered:
            # Not earlier: the kernel sets its default when the mount has been initialized.
            self._has_answered = True
            read_further_ahead(self._folder.point)
        entry = self._tree.files.get(path)
        common = {"st_uid": self._owner[0], "st_gid": self._owner[1], "st_mtime": 0, "st_ctime": 0}
        if entry is not None:
            blocks = -(-entry.size // 512)
            return {
                **common,
                "st_mode": stat.S_IFREG | 0o444,
                "st_nlink": 1,
                "st_size": entry.size,
                "st_blocks": blocks,
            }
        if path in self._tree.folders:
            return {**common, "st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_size": 0}
        raise mfusepy.FuseOSError(errno.ENOENT)

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in a folder."""
        if path not in self._tree.folders:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return [".", "..", *self._tree.folders[path]]

    def open(self, path: str, flags: int) -> int:
        """Return a descriptor for the file's verified bytes."""
        entry = self._tree.files.get(path)
        if entry is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise mfusepy.FuseOSError(errno.EROFS)
        self._fetch_ahead(self._tree.order[path])
        return self._recording_errors(entry, lambda: self._open(entry))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return bytes of an open file."""
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:
        """Close an open file."""
        os.close(fh)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Return the size of the shown files; no space is free, since nothing can be written."""
        blocks = -(-self._manifest.total_bytes // BLOCK_BYTES)
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": BLOCK_BYTES,
            "f_blocks": blocks,
            "f_bfree": 0,
            "f_bavail": 0,
            "f_files": len(self._manifest),
            "f_namemax": 255,
        }

    # --- implementation ---

    def _open(self, entry: FileEntry) -> int:
        backend = self._backends[entry.datastore]
        if backend.local_path(entry.key) is not None:
            return os.open(check_local(entry, backend), os.O_RDONLY | os.O_CLOEXEC)
        return self._cache.open(entry, backend)

    def _recording_errors(self, entry: FileEntry, work: Callable[[], int]) -> int:
        try:
            return work()
        except DatastoreError as error:
            # A script sees only "Input/output error"; record the cause for the end of the job.
            self._folder.say_trouble(type(error).__name__, f"{entry.path}: {error}")
            raise mfusepy.FuseOSError(errno.EIO) from error

    def _fetch_ahead(self, position: int) -> None:
        with self._lock:
            in_sequence = position == self._last_opened + 1
            self._last_opened = position
            if not in_sequence:
                return
            wanted = [
                number
                for number in range(position + 1, min(position + 1 + AHEAD, len(self._manifest)))
                if number not in self._prefetched
            ]
            self._prefetched.update(wanted)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="ahead")
            for number in wanted:
                self._pool.submit(self._warm, self._manifest.files[number])

    def _warm(self, entry: FileEntry) -> None:
        backend = self._backends[entry.datastore]
        if backend.local_path(entry.key) is not None:
            return
        try:
            self._cache.ensure(entry, backend)
        except DatastoreError:
            return  # a later open retries and gets the error


def read_further_ahead(point: Path) -> None:
    """Make the kernel read 1 MiB at a time from a mount, if this process is allowed to.

    With the kernel's default of 128 KiB, every read becomes a request. Only root may change that;
    without the change, sequential reads are about a fifth slower, and nothing else differs.
    """
    device = device_of(point)
    if device is not None:
        with contextlib.suppress(OSError):
            Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(str(READ_AHEAD_KIB))


def serve(folder: MountFolder) -> None:
    """Serve the mount until it is unmounted."""
    record = folder.read()
    if record is None:
        raise SystemExit(f"there is no mount to serve in {folder.folder}")
    manifest = Manifest.from_bytes(folder.manifest.read_bytes())
    options: dict[str, Any] = {
        "ro": True,
        "nosuid": True,
        "nodev": True,
        "default_permissions": True,
        "fsname": "datastore",
        "subtype": "datastore",
        "kernel_cache": True,
        "entry_timeout": CACHED_S,
        "attr_timeout": CACHED_S,
    }
    if os.geteuid() == 0:
        options["allow_other"] = True  # a job may run as another user
    mfusepy.FUSE(
        ReadOnlyFiles(manifest, record, folder), str(folder.point), foreground=True, **options
    )


if __name__ == "__main__":
    serve(MountFolder(Path(sys.argv[1])))
