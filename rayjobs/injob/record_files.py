"""Opens attempt files that a script may have replaced; never blocks or follows links.

A script owns its attempt's folder, and may leave a FIFO, a link to a device or a sparse file of 64
GiB where a record is expected. All readers (attempt host, node agent, command line) open such files
here.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, Type, TypeVar

if TYPE_CHECKING:
    from rayjobs.injob.messages import Message

One = TypeVar("One", bound="Message")
MOST_RECORD_BYTES = 64 * 1024**2  # of a JSON record such as plan.json or exit.json

_KINDS = (
    (stat.S_ISLNK, "is a link, which is not followed"),
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a FIFO"),
    (stat.S_ISSOCK, "is a socket"),
)


class UnusableFileError(OSError):
    """There is no regular file where one is expected, or it is too large."""

    def __init__(self, name: str, why: str) -> None:
        """Store `why` the file `name` (its path below the attempt's folder) is not read."""
        super().__init__(errno.EINVAL, why)
        self.name = name

    def __str__(self) -> str:
        """Return the sentence for people, without a final period."""
        return "%s %s" % (self.name, self.strerror)


def open_file(root: str, name: str) -> BinaryIO:
    """Open the regular file `name` below the folder `root` for reading.

    Neither `root` nor any part of `name` may be a link. Only the folders above `root` are trusted.

    Raises:
        FileNotFoundError: there is no such file or folder.
        UnusableFileError: it is a link, a folder, a FIFO, a socket or a device.
        OSError: it cannot be read.
    """
    *folders, last = name.split("/")
    at = _open_part(root, None, root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        shown = []
        for part in folders:
            shown.append(part)
            below = _open_part(part, at, "/".join(shown), os.O_RDONLY | os.O_DIRECTORY)
            os.close(at)
            at = below
        # O_NONBLOCK: opening a FIFO without a writer would block otherwise.
        descriptor = _open_part(last, at, name, os.O_RDONLY | os.O_NONBLOCK)
    finally:
        os.close(at)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UnusableFileError(name, _kind(mode))
    return os.fdopen(descriptor, "rb")


def _open_part(part: str, at: int | None, shown: str, flags: int) -> int:
    try:
        return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except FileNotFoundError:
        raise
    except OSError as error:
        # ELOOP: a link; ENOTDIR: a link or file instead of a folder; ENXIO: a socket.
        try:
            mode = os.lstat(part, dir_fd=at).st_mode
        except OSError:
            raise error from None
        is_wrong = not (stat.S_ISDIR(mode) if flags & os.O_DIRECTORY else stat.S_ISREG(mode))
        if is_wrong:
            raise UnusableFileError(shown, _kind(mode)) from error
        raise


def _kind(mode: int) -> str:
    for is_kind, why in _KINDS:
        if is_kind(mode):
            return why
    return "is a file, not a folder" if stat.S_ISREG(mode) else "is a device"


def read_file(root: str, name: str, most_bytes: int = MOST_RECORD_BYTES) -> bytes:
    """Return all bytes of a file below `root`.

    Raises:
        UnusableFileError: it is not a regular file, or larger than `most_bytes`.
        OSError: see `open_file`.
    """
    with open_file(root, name) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise UnusableFileError(name, "has more than %d bytes" % most_bytes)
        # The file may grow meanwhile; the result stays within the limit.
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UnusableFileError(name, "has more than %d bytes" % most_bytes)
    return data


def read_json(root: str, name: str, most_bytes: int = MOST_RECORD_BYTES) -> Any:
    """Return the value of a JSON file below `root`.

    Raises:
        ValueError: it is not JSON, or nested deeper than can be read.
        OSError: see `read_file`.
    """
    return parse_json(read_file(root, name, most_bytes))


def read_message(root: str, name: str, kind: Type[One]) -> Optional[One]:
    """Return the message in a JSON file below `root`; None if there is no such file.

    Raises:
        ValueError: it is torn or of another kind (`MessageError`).
        OSError: see `read_file`.
    """
    try:
        values = read_json(root, name)
    except FileNotFoundError:
        return None
    return kind.from_json(values)


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested deeper than can be read.
    """
    try:
        return json.loads(data)
    except (RecursionError, MemoryError) as error:
        raise ValueError("the JSON text is nested too deeply or is too large") from error


def problem_of(root: str, name: str) -> str:
    """Return why the file cannot be read, as a sentence without a period; "" when it can."""
    try:
        open_file(root, name).close()
    except FileNotFoundError:
        return "%s does not exist" % name
    except UnusableFileError as error:
        return str(error)
    except OSError as error:
        return "%s cannot be read (%s)" % (name, error.strerror)
    return ""


def create_file(path: str) -> BinaryIO:
    """Open a new file at `path` for writing; first remove whatever is there, even a FIFO or link.

    Raises:
        OSError: the folder cannot be written, or a folder is at `path`.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # the usual case
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")
