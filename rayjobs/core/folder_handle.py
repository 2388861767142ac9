"""A handle that finds a folder again after it was renamed."""

from __future__ import annotations

import os
import weakref
from pathlib import Path


class FolderHandle:
    """Finds a folder again after it was renamed, as long as this process lives.

    It opens the folder with `O_PATH`, and Linux reports its current path. A move to another file
    system is a copy and a removal, so the handle does not follow it.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the folder at `path`. Raises OSError."""
        self._descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # An owner that is garbage-collected without `close` must not leak the descriptor.
        self._release = weakref.finalize(self, os.close, self._descriptor)

    def path(self) -> str | None:
        """Return the folder's current path; None if it was removed or cannot be seen from here."""
        if not self._release.alive:
            return None
        try:
            held = os.fstat(self._descriptor)
            path = os.readlink(f"/proc/self/fd/{self._descriptor}")
            return path if os.path.samestat(held, os.stat(path)) else None  # noqa: PTH116
        except OSError:
            return None

    def close(self) -> None:
        """Close the handle. Idempotent."""
        self._release()
