"""A lock between processes: a file that the kernel unlocks when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, remove: bool = False) -> Iterator[None]:
    """Hold the lock named by `path`; waits for whoever holds it, threads of this process included.

    With `remove` the file goes when the lock does, so that locks by the thousand leave nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(path, handle):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed it while we waited: what we hold guards nothing
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(handle)
    return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino)
