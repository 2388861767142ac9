"""A handle that finds a folder again after it was renamed."""

from __future__ import annotations

import os
import weakref
from pathlib import Path


class FolderHandle:
    """Finds a folder again after it was renamed, as long as this process lives.

    A handle that only names the folder (`O_PATH`): Linux tells where it is now. It does not
    survive a move to another file system, which is a copy and a removal.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the folder at `path`. Raises OSError."""
        self._descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # An owner that is garbage-collected without `close` must not leak the descriptor.
        self._release = weakref.finalize(self, os.close, self._descriptor)

    def path(self) -> str | None:
        """Return where the folder is now; None: it was removed, or cannot be seen from here."""
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
