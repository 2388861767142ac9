"""The bytes of a snapshot: a plain tar of folders, files and links that is the same every time.

GNU headers with zeroed times and owners; entries sorted by path; two zero blocks at the end.
The reader accepts only this form, in constant memory: everything that a snapshot cannot contain
(hard links, devices, sparse files, extended headers) is refused, not interpreted.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots.scan import Entry, Kind

BLOCK = 512
CHUNK = 1024**2
LONGEST_NAME = 64 * 1024
LEVEL = 3  # of zstd: about 250 MB/s per core


class Sink(Protocol):
    """Takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of `data`."""
        ...


class HashingSink:
    """Forwards bytes and hashes them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Hash `data` and forward it."""
        self._hash.update(data)
        self._sink.write(data)

    @property
    def digest(self) -> str:
        """``sha256:…`` of all bytes so far."""
        return "sha256:" + self._hash.hexdigest()


def header(entry: Entry, size: int) -> bytes:
    """Return the tar header of an entry whose content has `size` bytes."""
    info = tarfile.TarInfo(entry.path)
    info.size = size
    if entry.kind is Kind.FOLDER:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif entry.kind is Kind.LINK:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
    else:
        info.type, info.mode = tarfile.REGTYPE, 0o755 if entry.executable else 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a content of `size` bytes."""
    return b"\0" * (-size % BLOCK)


END = b"\0" * (2 * BLOCK)


class Source(Protocol):
    """Gives bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        ...


class Content:
    """The bytes of one entry; must be read, or skipped, before the next entry."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._left = size
        self._padding = -size % BLOCK

    def copy_to(self, file: BinaryIO | None) -> None:
        """Write the content to `file`; None skips it."""
        while self._left:
            data = self._source.read(min(CHUNK, self._left))
            if not data:
                raise SnapshotError("the snapshot's archive ends in the middle of a file")
            self._left -= len(data)
            if file is not None:
                file.write(data)
        if self._padding:
            read_exactly(self._source, self._padding)
            self._padding = 0


def read_exactly(source: Source, size: int) -> bytes:
    """Return `size` bytes. Raises SnapshotError when there are fewer."""
    parts: list[bytes] = []
    while size:
        data = source.read(size)
        if not data:
            raise SnapshotError("the snapshot's archive is cut short")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def entries(source: Source) -> Iterator[tuple[Entry, Content]]:
    """Yield the archive's entries in order, each with its content.

    Names come unchecked from the archive.

    Raises:
        SnapshotError: it is not a snapshot, or has a kind of entry that snapshots never have.
    """
    name: str | None = None
    target: str | None = None
    while True:
        block = read_exactly(source, BLOCK)
        if block == b"\0" * BLOCK:
            return
        info = _header(block)
        if info.type == tarfile.GNUTYPE_LONGNAME:
            name = _long_name(source, info.size)
            continue
        if info.type == tarfile.GNUTYPE_LONGLINK:
            target = _long_name(source, info.size)
            continue
        path = (info.name if name is None else name).removesuffix("/")
        link = info.linkname if target is None else target
        name = target = None
        # By the type byte: for TarInfo, an old-style file whose name ends in / is a folder.
        if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            executable = bool(info.mode & 0o100)
            yield Entry(path, Kind.FILE, info.size, executable), Content(source, info.size)
        elif info.type in (tarfile.DIRTYPE, tarfile.SYMTYPE) and info.size == 0:
            if info.type == tarfile.DIRTYPE:
                yield Entry(path, Kind.FOLDER), Content(source, 0)
            else:
                yield Entry(path, Kind.LINK, target=link), Content(source, 0)
        else:
            raise SnapshotError(
                f"the snapshot's archive has {path!r} of the tar type {info.type!r}; snapshots "
                f"have files, folders and symbolic links only"
            )


def _header(block: bytes) -> tarfile.TarInfo:
    """Return the header in a block. Raises SnapshotError for a bad one."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise SnapshotError(f"the snapshot's archive has a bad header: {error}") from error
    if info.size < 0:
        raise SnapshotError(f"the snapshot's archive gives {info.name!r} a negative size")
    return info


def _long_name(source: Source, size: int) -> str:
    """Return a name that is too long for a header. Raises SnapshotError for an absurd one."""
    if size > LONGEST_NAME:
        raise SnapshotError("the snapshot's archive has a name longer than 64 KiB")
    raw = read_exactly(source, size + -size % BLOCK)[:size]
    return raw.rstrip(b"\0").decode("utf-8", "surrogateescape")
