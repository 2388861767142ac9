"""Reads blobs that another process holds and sends in pieces."""

from __future__ import annotations

import hashlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from rayjobs.core.errors import StoreError
from rayjobs.core.files import replacing
from rayjobs.workspace.blobs import Blob


class FetchedBlobs(ABC):
    """The reading half of a `BlobStore`; files appear atomically."""

    @abstractmethod
    def _pieces(self, key: str) -> Iterator[bytes]:
        """Yield a blob's bytes in order. Raises NotFoundError."""

    def _fetch(self, key: str, stream: IO[bytes]) -> Blob:
        size, digest = 0, hashlib.sha256()
        for data in self._pieces(key):
            stream.write(data)
            size += len(data)
            digest.update(data)
        return Blob(key, size, f"sha256:{digest.hexdigest()}")

    def open(self, key: str) -> BinaryIO:
        """See `BlobStore.open`; returns a copy in a file that is deleted when it is closed."""
        stream = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            self._fetch(key, stream)
        except OSError as error:
            stream.close()
            raise StoreError(f"{key} cannot be fetched: {error.strerror}") from error
        except BaseException:
            stream.close()
            raise
        stream.seek(0)
        return cast(BinaryIO, stream)

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore.read`."""
        with self.open(key) as stream:
            stream.seek(start)
            return stream.read(length)

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.get_to`."""
        try:
            with replacing(path) as draft:
                with open(draft, "wb") as stream:
                    blob = self._fetch(key, stream)
                if digest is not None and blob.digest != digest:
                    raise StoreError(f"{key} is damaged: its digest is {blob.digest}, not {digest}")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return blob
