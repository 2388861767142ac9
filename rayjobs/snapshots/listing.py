"""Lists and compares the files of stored snapshots without unpacking them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import BinaryIO

import zstandard

from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots.archive import entries
from rayjobs.snapshots.pack import blob_key
from rayjobs.snapshots.scan import Kind
from rayjobs.snapshots.unpack import WINDOW_LIMIT


class _Digest:
    """A file object that only computes the digest of written bytes."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Add bytes."""
        self.hash.update(data)
        return len(data)


def files_of(digest: str, blobs_open: Callable[[str], BinaryIO]) -> dict[str, str]:
    """Return the files and links of a snapshot: path → digest of the content, or the link's target.

    Args:
        blobs_open: Opens a blob by its key, such as `BlobStore.open`.

    Raises:
        NotFoundError: the snapshot was pruned.
        SnapshotError: its archive is damaged.
    """
    found: dict[str, str] = {}
    with blobs_open(blob_key(digest)) as file:
        stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT).stream_reader(file)
        try:
            for entry, content in entries(stream):
                if entry.kind is Kind.LINK:
                    found[entry.path] = f"link to {entry.target}"
                elif entry.kind is Kind.FILE:
                    read = _Digest()
                    content.copy_to(read)  # type: ignore[arg-type]
                    found[entry.path] = f"sha256:{read.hash.hexdigest()}"
        except zstandard.ZstdError as error:
            raise SnapshotError(f"the archive of {digest} cannot be read: {error}") from error
    return found
