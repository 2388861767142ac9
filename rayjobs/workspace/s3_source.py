"""Bytes on their way to a bucket: hashed before they are sent, and checked again at the end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from rayjobs.workspace.blobs import CHUNK_BYTES, check_digest

PART_BYTES = 16 << 20  # larger files are sent in parts of this size
MOST_PARTS = 10_000  # limit of S3


class Source:
    """Bytes to store under their digest, which is computed first and checked again at the end."""

    def __init__(
        self, stream: BinaryIO, what: str, digest: str | None, size: int | None = None
    ) -> None:
        """Read the bytes and compute their digest.

        Args:
            what: Names the bytes in errors.
            digest: The digest that they must have; None: any.
            size: How many there are; None: what the stream's file has now.

        Raises:
            StoreError: they have another digest.
        """
        self._stream = stream
        self._what = what
        # A file to which another process keeps appending ends at its current size.
        self.size = os.fstat(stream.fileno()).st_size if size is None else size
        self._data: bytes | None = None
        if self.size <= PART_BYTES:
            self._data = stream.read(self.size)
            self.size = len(self._data)
            found = hashlib.sha256(self._data)
        else:
            found = hashlib.sha256()
            for piece in self._pieces(CHUNK_BYTES):
                found.update(piece)
        self.digest = f"sha256:{found.hexdigest()}"
        check_digest(digest, self.digest, what)

    @property
    def is_small(self) -> bool:
        """Whether it is sent at once, not in parts."""
        return self._data is not None

    def data(self) -> bytes:
        """Return all bytes of a small source."""
        assert self._data is not None
        return self._data

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes of a large source again, in parts.

        Raises:
            StoreError: the bytes differ from the first reading; raised after the last part.
        """
        found = hashlib.sha256()
        for piece in self._pieces(max(PART_BYTES, -(-self.size // MOST_PARTS))):
            found.update(piece)
            yield piece
        check_digest(self.digest, f"sha256:{found.hexdigest()}", self._what)

    def _pieces(self, size: int) -> Iterator[bytes]:
        self._stream.seek(0)
        left = self.size
        while left and (piece := self._stream.read(min(size, left))):
            left -= len(piece)
            yield piece
