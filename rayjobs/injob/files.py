"""Writes a file whole or not at all, and locks files between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator, Optional, Union

PathLike = Union[str, "os.PathLike[str]"]


def write_atomic(
    path: PathLike, data: Union[str, bytes], *, durable: bool = False, mode: int = 0o666
) -> None:
    """Replace a file: a reader finds the old content or the new, never a part of it.

    Args:
        data: The whole content; text is written as UTF-8.
        durable: Return only when content and name are on the disk, so that a power failure does not
            lose it.
        mode: Permissions of the file, less the process's umask.

    Raises:
        OSError: The disk is full or broken; the old file is unchanged. `filename` is `path` even if
            the kernel does not name the file.
    """
    name = os.fspath(path)
    try:
        with replacing(name) as draft:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, mode), "wb") as file:
                file.write(data.encode("utf-8") if isinstance(data, str) else data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
    except OSError as error:
        if error.filename is None:  # as for a write to a full disk
            error.filename = name
        raise
    if durable:
        folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def replacing(path: PathLike, *, draft: Optional[str] = None) -> Iterator[str]:
    """Yield the path of a draft that replaces the file `path` at the end of the block.

    If the block raises, the old file stays and the draft is removed.

    Args:
        draft: Its path, unique to this call, on the file system of `path`; None: one in the same
            folder with the same suffix.
    """
    if draft is None:
        folder, name = os.path.split(os.fspath(path))
        draft = os.path.join(folder, f".{os.urandom(6).hex()}.{name[-200:]}")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


@contextlib.contextmanager
def locked(path: PathLike, *, shared: bool = False, remove: bool = False) -> Iterator[None]:
    """Hold a lock file for the block; wait while another process or thread holds it.

    The kernel releases the lock when its holder dies. Missing folders are made.

    Args:
        shared: Allow other shared holders.
        remove: Remove the file at the end, so that thousands of locks do not leave files behind.
    """
    name = os.fspath(path)
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    while True:
        descriptor = _open_lock(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if _is_still(name, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last holder removed the file, so this lock protects nothing
    try:
        yield
    finally:
        if remove:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        os.close(descriptor)


@contextlib.contextmanager
def locked_if_free(path: PathLike) -> Iterator[bool]:
    """Hold a lock file for the block, without waiting; yields False if another holder has it."""
    descriptor = _open_lock(os.fspath(path))
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until its descriptor is closed; False when it is locked elsewhere."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: PathLike) -> bool:
    """Whether a process holds a lock file exclusively; a missing file is not locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _open_lock(name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _is_still(name: str, descriptor: int) -> bool:
    try:
        now = os.stat(name)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino)
