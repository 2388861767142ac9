"""How local files look (size, time of the last change, inode), to find those that changed since.

A look costs microseconds, so an attempt has all files of its inputs looked at when it starts and
when it has ended; only what looks different is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from rayjobs.core.text import counted
from rayjobs.datastore.backends.local import PARTIAL_MARK
from rayjobs.datastore.digests import digest_of_stream

Look = tuple[int, int, int]
"""Size in bytes, time of the last change in nanoseconds since 1970, inode."""

Looking = Callable[[str, int], None]
"""Is called with a path before that file is looked at, with 0, and before each part of it is read,
with the part's size in bytes. What it raises, other than OSError, ends the comparison."""

MOST_READ_BYTES = 4 << 30
"""So much is read at most to tell whether files that look different are the same."""


def etag_of(look: Look) -> str:
    """Return the mark that `LocalBackend` gives a file which looks so."""
    return f"{look[1]:x}-{look[0]:x}"


def look_at(path: str | Path) -> Look:
    """Return how a file looks.

    Raises:
        OSError: it cannot be looked at.
    """
    status = os.stat(path)  # noqa: PTH116 - half the time of a Path's
    return status.st_size, status.st_mtime_ns, status.st_ino


def look_below(folder: str | Path, links: set[str] | None = None) -> dict[str, Look]:
    """Return how every file below `folder` looks, by its path there; links are followed.

    What cannot be looked at, such as a link that leads nowhere, is left out.

    Args:
        links: Is given the paths of the links that were followed.

    Raises:
        OSError: `folder` itself cannot be listed.
    """
    found: dict[str, Look] = {}
    pending = [(os.fspath(folder), "", frozenset[str]())]
    while pending:
        here, shown, above = pending.pop()
        real = os.path.realpath(here)
        if real in above:  # a link that leads back up
            continue
        try:
            items = os.scandir(here)
        except OSError:
            if not shown:
                raise
            continue
        with items:
            for item in items:
                try:
                    if links is not None and item.is_symlink():
                        links.add(item.path)
                    if item.is_dir():
                        pending.append((item.path, f"{shown}{item.name}/", above | {real}))
                    elif item.is_file() and PARTIAL_MARK not in item.name:
                        status = item.stat()
                        look = (status.st_size, status.st_mtime_ns, status.st_ino)
                        found[shown + item.name] = look
                except OSError:
                    continue  # gone while it was looked at
    return found


@dataclass(frozen=True)
class Seen:
    """How the files of one folder looked; `digests` holds those that are known, by path."""

    root: str
    files: Mapping[str, Look]
    digests: Mapping[str, str]

    def to_json(self) -> list[Any]:
        """Return it as JSON."""
        return [self.root, self.files, self.digests]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Seen:
        """Return what `to_json` wrote."""
        root, files, digests = values
        return cls(root, {path: (one[0], one[1], one[2]) for path, one in files.items()}, digests)


@dataclass(frozen=True)
class Change:
    """A file that is not what it was.

    Attributes:
        now: How it looks now; None: it is gone, or cannot be looked at.
        digest: Of its content before, "" if not known.
        digest_now: Of its content now, "" if it was not read.
        trouble: Why it cannot be looked at, "" if it was: whether it changed is not known.
    """

    path: str
    before: Look
    now: Look | None
    digest: str = ""
    digest_now: str = ""
    trouble: str = ""

    @property
    def sentence(self) -> str:
        """What was there and what is there now, in words."""
        if self.trouble:
            return f"{self.path}: {self.trouble} ({what(self.before, self.digest)} before)"
        if self.now is None:
            return f"{self.path} is gone ({what(self.before, self.digest)} before)"
        before, now = what(self.before, self.digest), what(self.now, self.digest_now)
        return f"{self.path} has {now}, and had {before}"


def what(look: Look, digest: str = "") -> str:
    """Return what is reported about a file: its size, content and time of the last change."""
    content = f", {digest[:19]}…" if digest else ""
    return f"{counted(look[0], 'byte')}{content}, last changed {when(look[1])}"


def when(time_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as people read it."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def changes(
    seen: Seen,
    *,
    most_read_bytes: int = MOST_READ_BYTES,
    looking: Looking = lambda _path, _size_bytes: None,
) -> Iterator[Change]:
    """Yield the files that are not what they were; new ones are none of them.

    A file that looks different but has the digest that was known is the same. Whether one has that
    cannot be read, or is too much to read, is not known: it is yielded, without a new digest. One
    that cannot be looked at is yielded with its trouble.
    """
    left = most_read_bytes
    prefix = seen.root.rstrip("/") + "/"
    for path, before in seen.files.items():
        place = prefix + path if path else seen.root
        looking(place, 0)
        try:
            status = os.stat(place)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            yield Change(place, before, None, seen.digests.get(path, ""))
            continue
        except OSError as error:  # a ring of links, no permission, a server that is gone
            trouble = error.strerror or str(error)
            yield Change(place, before, None, seen.digests.get(path, ""), trouble=trouble)
            continue
        now = (status.st_size, status.st_mtime_ns, status.st_ino)
        if now == before:
            continue
        digest, digest_now = seen.digests.get(path, ""), ""
        if digest and now[0] <= left:
            left -= now[0]
            try:
                digest_now = _digest_of(place, now[0], looking)
            except OSError:
                digest_now = ""
            if digest_now == digest:
                continue
        yield Change(place, before, now, digest, digest_now)


class _Bounded:
    """A file that ends where it ended when it was looked at, and reports each part it reads."""

    def __init__(self, descriptor: int, path: str, size_bytes: int, looking: Looking) -> None:
        self._descriptor, self._path, self._looking = descriptor, path, looking
        self._left = size_bytes

    def read(self, size_bytes: int) -> bytes:
        wanted = min(size_bytes, self._left)
        self._looking(self._path, wanted)
        data = os.read(self._descriptor, wanted)
        self._left -= len(data)
        return data


def _digest_of(path: str, size_bytes: int, looking: Looking) -> str:
    """Return the digest of a file's first `size_bytes`; "" for anything but a regular file.

    A job may have put anything in the file's place: opening it must not wait for a writer, and one
    that grows must not be read for ever.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return digest_of_stream(cast("BinaryIO", _Bounded(descriptor, path, size_bytes, looking)))
    finally:
        os.close(descriptor)
