"""An attempt's scratch on its node: removed without following any link."""

from __future__ import annotations

import logging
from pathlib import Path

from rayjobs.core import short_tmp
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.safe_delete import OwnFolder, UnsafeDeletionError

log = logging.getLogger(__name__)


class Scratch:
    """The folder that contains the folders of a node's attempts."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def remove(self, root: Path) -> list[str]:
        """Remove an attempt's folder; return why part of it stays. Follows no links."""
        short_tmp.remove(AttemptPaths(root).tmp)
        try:
            with OwnFolder(self._root) as scratch:
                kept = scratch.remove(str(root.relative_to(self._root))).kept
        except (UnsafeDeletionError, ValueError) as error:
            kept = [str(error)]
        for problem in kept:
            log.warning("scratch stays: %s", problem)
        return kept


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    try:
        folder.rmdir()
    except OSError:
        log.debug("%s is not empty", folder)
