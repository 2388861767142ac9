"""Files and folders that survive a power cut."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path

# From this number of files, one `syncfs` is faster than an `fsync` of each file.
_MANY = 16


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` are on the disk, which fsync of a file does not ensure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Make a folder and its missing parents, each 0700, and all their names durable."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(mode=0o700, exist_ok=True)
        sync_folder(made.parent)


def sync_files(paths: Collection[Path]) -> None:
    """Return once the bytes of files of one file system are on the disk.

    Raises:
        OSError: they are not; the disk is full or broken.
    """
    _sync(paths, os.O_RDONLY)


def sync_folders(paths: Collection[Path]) -> None:
    """Return once the names in folders of one file system are on the disk. Raises OSError."""
    _sync(paths, os.O_RDONLY | os.O_DIRECTORY)


def _sync(paths: Collection[Path], flags: int) -> None:
    at_once = _syncfs() if len(paths) >= _MANY else None
    for path in paths:
        descriptor = os.open(path, flags)
        try:
            if at_once is None:
                os.fsync(descriptor)
            elif at_once(descriptor) == 0:
                return
            else:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(descriptor)


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    """Return the system's syncfs; None where it does not report errors (before Linux 5.8)."""
    release = os.uname().release.split(".")
    try:
        if (int(release[0]), int(release[1])) < (5, 8):
            return None
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (ValueError, IndexError, OSError, AttributeError):
        return None
    call.argtypes, call.restype = [ctypes.c_int], ctypes.c_int

    def sync(descriptor: int) -> int:
        return int(call(descriptor))

    return sync
