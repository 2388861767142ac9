"""Private copies of files, which share blocks where the file system supports it (reflinks)."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
# Errors that mean that the file system cannot share the blocks of these two files.
_CANNOT = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


def clone(source: int, to: Path, *, mode: int) -> bool:
    """Copy the open file `source` to the new file `to`; return whether they share blocks.

    Writing to one of them never changes the other.

    Raises:
        OSError: it cannot be read or written; a partial `to` may exist.
    """
    made = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(made, mode)
        try:
            fcntl.ioctl(made, FICLONE, source)
            return True
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        _copy(source, made)
    finally:
        os.close(made)
    return False


def _copy(source: int, to: int) -> None:
    offset = 0
    try:
        while sent := os.sendfile(to, source, offset, 1 << 30):
            offset += sent
    except OSError as error:
        if offset or error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK):
            raise
        # The kernel cannot copy files of this file system directly.
        os.lseek(source, 0, os.SEEK_SET)
        with os.fdopen(os.dup(source), "rb") as reader, os.fdopen(os.dup(to), "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
