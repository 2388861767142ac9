"""What a storage must be able to do; nothing outside `backends` knows which one it talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CountBytes = Callable[[int], None]
"""Hears of each piece that went through; negative when a piece has to be sent again."""


def ignore_bytes(count: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class StoredFile:
    """One file in a storage. `path` is relative to the storage's top, `size` in bytes.

    `etag` changes whenever the bytes do; `digest` is the content's where the storage kept one.
    """

    path: str
    size: int
    etag: str
    digest: str = ""


@dataclass(frozen=True)
class Folder:
    """One folder in a listing; `path` is relative to the storage's top."""

    path: str


class Backend(Protocol):
    """A storage, safe to use from several threads.

    Every call ends: it returns or raises within the storage's own time limits, and raises only
    errors of `rayjobs.datastore.errors`.
    """

    where: str
    """The storage as people know it: `/data/here` or `s3://bucket/prefix at <endpoint>`."""

    def stat(self, path: str) -> StoredFile | None:
        """Return the file at `path`, or None if there is no file."""

    def walk(self, path: str) -> Iterator[StoredFile]:
        """Yield every file below folder `path`; nothing if there is none."""

    def children(self, path: str) -> list[StoredFile | Folder]:
        """Return what lies directly in folder `path`."""

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """Write the bytes of `file` to the new local file `to`; return their digest.

        Raises:
            DataChanged: the file is not, or no longer, the one that `file` describes.
            DataIntegrityError: the bytes are not those the storage itself recorded.
        """

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """Return up to `length` bytes of `file` from `start`; none behind the end.

        The bytes are not compared with a digest: who joins the pieces of a file does that.

        Raises:
            DataChanged: the file is not, or no longer, the one that `file` describes. With a digest
                and no etag that is not noticed here.
        """

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """Store the local file `source` at `path`, in one step as others see it."""

    def remove(self, path: str) -> None:
        """Remove the file at `path`; nothing happens if there is none."""

    def check(self) -> None:
        """Ask the storage for a sign of life. Raises what is wrong with it."""

    def local_path(self, path: str) -> Path | None:
        """Return where `path` lies on this machine, or None if it does not."""
