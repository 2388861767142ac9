"""The protocol of a storage; nothing outside `backends` knows which storage it talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from rayjobs.injob.lazy_dataclass import dataclass

CountBytes = Callable[[int], None]
"""Called with the size of each transferred piece; negative if a piece must be sent again."""


class Stopped(Exception):
    """Raised by a `CountBytes` function to end a transfer after another failure or an interrupt."""


def ignore_bytes(count: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class StoredFile:
    """One file in a storage. `path` is relative to the storage's root, `size` in bytes.

    `etag` changes whenever the bytes do; `digest` is the content's, if the storage keeps one.
    """

    path: str
    size: int
    etag: str
    digest: str = ""


@dataclass(frozen=True)
class Folder:
    """One folder in a listing; `path` is relative to the storage's root."""

    path: str


class Backend(Protocol):
    """A storage; safe to use from several threads.

    Every call returns or raises within the storage's own time limits, and raises only errors of
    `rayjobs.datastore.errors`.
    """

    where: str
    """The storage's address for people: `/data/here` or `s3://bucket/prefix at <endpoint>`."""

    def stat(self, path: str) -> StoredFile | None:
        """Return the file at `path`, or None if there is no file."""

    def walk(self, path: str) -> Iterator[StoredFile]:
        """Yield every file below folder `path`; nothing if there is none."""

    def children(self, path: str) -> list[StoredFile | Folder]:
        """Return the files and folders directly in folder `path`."""

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """Write the bytes of `file` to the new local file `to`; return their digest.

        Raises:
            DataChanged: the file does not match `file`, or no longer does.
            DataIntegrityError: the bytes differ from what the storage recorded.
        """

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """Return up to `length` bytes of `file` from `start`; no bytes past the end.

        The bytes are not compared with a digest: the caller that joins the pieces does that.

        Raises:
            DataChanged: the file does not match `file`, or no longer does. This is
                not noticed if `file` has a digest and no etag.
        """

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """Store the local file `source` at `path`, atomically for readers."""

    def remove(self, path: str) -> None:
        """Remove the file at `path`, if there is one."""

    def check(self) -> None:
        """Check that the storage responds; otherwise raise an error that says what is wrong."""

    def local_path(self, path: str) -> Path | None:
        """Return the local path of `path`; None if this storage is not a folder."""
