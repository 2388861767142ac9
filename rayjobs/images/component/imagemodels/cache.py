"""Caches images in files on a node's disk, mapped into memory and shared by its processes.

Space is allocated with ``posix_fallocate`` and ``writev``, which report a full disk as an error. A
write into a mapping of a sparse file would end the process with SIGBUS instead.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import sys
import threading
from typing import Any

import numpy as np

_HEADER = struct.Struct("<qqq")  # height, width, bytes; height 0 means an encoded file
_OFFSET_BITS = 44
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ImageCache:
    """A cache of images.

    Each process appends to an arena of its own and publishes an image by writing one aligned word
    of the shared index, so that readers see it whole or not at all.

    Args:
        folder: A folder of the node, the same for all its processes.
        images: Number of images.
        arena: Number of this process on the node.
        kind: decoded (pixels), fitted (pixels of the size that the network takes) or encoded (the
            files' bytes).
    """

    def __init__(self, folder: str, images: int, *, arena: int, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.is_full = False
        self._own = arena
        self._lock = threading.Lock()
        self._end = 0
        self._maps: dict[int, mmap.mmap] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        index = os.open(os.path.join(folder, f"index-{kind}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(index, 0, max(8, images * 8))
            self._index_map = mmap.mmap(index, max(8, images * 8))
        finally:
            os.close(index)
        self._index = np.frombuffer(self._index_map, dtype=np.int64)
        self._file = os.open(self._arena_path(arena), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._end = os.fstat(self._file).st_size

    def _arena_path(self, number: int) -> str:
        return os.path.join(self.folder, f"arena-{self.kind}-{number}")

    def get(self, number: int) -> np.ndarray[Any, Any] | bytes | None:
        """Return an image's pixels or its file's bytes; None if it is not in the cache."""
        word = int(self._index[number])
        if not word:
            return None
        arena, offset = word >> _OFFSET_BITS, (word & ((1 << _OFFSET_BITS) - 1)) - 1
        mapped = self._mapped(arena, offset + _HEADER.size)
        height, width, size = _HEADER.unpack_from(mapped, offset)
        start = offset + _HEADER.size
        mapped = self._mapped(arena, start + size)
        if height == 0:
            return bytes(memoryview(mapped)[start : start + size])
        pixels = np.frombuffer(mapped, dtype=np.uint8, count=size, offset=start)
        return pixels.reshape(height, width, 3)

    def put(self, number: int, value: np.ndarray[Any, Any] | bytes) -> None:
        """Store an image; once the disk is full, print a message and store no more."""
        if self.is_full or self._index[number]:
            return
        if isinstance(value, bytes):
            header, data = _HEADER.pack(0, 0, len(value)), memoryview(value)
        else:
            height, width = value.shape[:2]
            data = np.ascontiguousarray(value).data.cast("B")
            header = _HEADER.pack(height, width, len(data))
        with self._lock:
            offset = self._end
            try:
                _write(self._file, header, data)
            except OSError as error:  # fault 183: the disk is full
                if error.errno not in _FULL:
                    raise
                self.is_full = True
                os.ftruncate(self._file, offset)
                print(
                    f"the disk of {self.folder} is full: no more images are cached, and the "
                    f"training goes on ({offset} bytes are cached)",
                    file=sys.stderr,
                    flush=True,
                )
                return
            self._end = offset + len(header) + len(data)
            self._index[number] = (self._own << _OFFSET_BITS) | (offset + 1)

    def _mapped(self, arena: int, size: int) -> mmap.mmap:
        found = self._maps.get(arena)
        if found is not None and len(found) >= size:
            return found
        with self._lock:
            with open(self._arena_path(arena), "rb") as file:
                # The arena has grown: map all of it. Arrays keep the old mapping alive.
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[arena] = found
        return found

    @property
    def stored_bytes(self) -> int:
        """Bytes that this process has written."""
        return self._end

    def remove(self) -> None:
        """Delete the cache's files; mappings that are in use stay valid."""
        os.close(self._file)
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(file: int, header: bytes, data: memoryview) -> None:
    """Append header and data; copying both into one object would cost as much as the write."""
    done = os.writev(file, [header, data])
    left = memoryview(header)[done:]
    rest = data[max(0, done - len(header)) :]
    while left or rest:
        done = os.writev(file, [left, rest])
        left, rest = left[done:], rest[max(0, done - len(left)) :]
