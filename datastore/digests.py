"""Content digests: `sha256:<64 hex>`, computed by the standard library.

Why SHA-256: it is in the standard library, object stores can check it on upload, and with processor
support it is faster than any network that this package reads from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rayjobs.datastore.errors import InvalidReference

CHUNK_BYTES = 1 << 20
_FORM = re.compile(r"sha256:([0-9a-f]{64})\Z")


def digest_of(data: bytes) -> str:
    """Return the digest of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_text(text: str) -> str:
    """Return the digest of `text` in UTF-8 (including lone surrogates of odd file names)."""
    return digest_of(text.encode("utf-8", "surrogateescape"))


def digest_of_stream(stream: BinaryIO, on_bytes: Callable[[int], None] | None = None) -> str:
    """Read `stream` to its end and return the digest; `on_bytes` gets each chunk's size."""
    running = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        running.update(chunk)
        if on_bytes is not None:
            on_bytes(len(chunk))
    return "sha256:" + running.hexdigest()


def digest_of_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the digest of the file at `path`."""
    with path.open("rb") as stream:
        return digest_of_stream(stream, on_bytes)


def hex_of(digest: str) -> str:
    """Return the 64 hexadecimal characters of `digest`.

    Raises:
        InvalidReference: `digest` is not of the form `sha256:<64 hex>`.
    """
    found = _FORM.match(digest)
    if found is None:
        raise InvalidReference(f"{digest!r} is not a digest; it should read sha256:<64 hex digits>")
    return found.group(1)
