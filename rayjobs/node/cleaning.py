"""Removes the leftovers of ended attempts: their folders, and sockets without a listener."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from rayjobs.core.paths import AttemptPaths
from rayjobs.injob.identity import is_alive
from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.node.hosts import host_of
from rayjobs.node.scratch import Scratch, remove_if_empty
from rayjobs.protocol.calls import Uncleaned
from rayjobs.target import wake_client

log = logging.getLogger(__name__)

_ATTEMPT = re.compile(r"a(\d+)(?:-n\d+)?")
# A socket exists a moment before its process listens there.
SOCKET_AGE_S = 60.0


class Cleaning:
    """Finds and removes the leftovers of attempts below one node's folder of attempts."""

    def __init__(self, attempts: Path, scratch: Scratch, release: Callable[[Path], None]) -> None:
        """Remove folders through `scratch`; `release` releases an attempt's data first."""
        self._attempts = attempts
        self._scratch = scratch
        self._release = release

    def uncleaned(self) -> list[Uncleaned]:
        """Return the attempts that may be cleaned up if the store has their ends.

        A launched attempt must have stored everything: files that could not be stored stay for a
        week, so that users can save them.
        """
        return list(self._found())

    def _found(self) -> Iterator[Uncleaned]:
        for root in sorted(self._attempts.glob("*/a*")):
            number = _ATTEMPT.fullmatch(root.name)
            if number is None or root.is_symlink():
                continue
            paths = AttemptPaths(root)
            try:
                host = host_of(str(root))
                if host is None and not paths.plan.exists():
                    pass  # it was never launched
                elif not paths.stored.exists() or (host is not None and is_alive(host.identity)):
                    continue
            except OSError as error:
                log.info("%s stays: %s", root, error)
                continue
            yield Uncleaned(root.parent.name, int(number[1]), str(root))

    def clean(self, roots: Collection[str]) -> int:
        """Remove folders that `uncleaned` returned; return how many were removed."""
        removed = 0
        for one in self._found():
            root = Path(one.root)
            if one.root not in roots:
                continue
            try:
                plan = LaunchPlan.read(one.root)
                if not _is_empty(plan):
                    continue
                if plan is not None:
                    Path(plan.socket).unlink(missing_ok=True)
            except (OSError, ValueError) as error:
                log.info("%s stays: %s", root, error)
                continue
            self._release(root)
            if not self._scratch.remove(root):
                removed += 1
                remove_if_empty(root.parent)
        return removed


def _is_empty(plan: LaunchPlan | None) -> bool:
    """Whether no process of an attempt is left; without a plan, it was never launched."""
    return plan is None or not find_leftovers(plan.marker)


def remove_dead_sockets(folder: Path, kinds: tuple[str, ...] = ("host", "mpi")) -> list[Path]:
    """Remove sockets of killed hosts, where no process listens; return their paths."""
    removed = []
    for kind in kinds:
        for path in folder.glob(f"{kind}-*.sock"):
            try:
                if time.time() - path.lstat().st_mtime < SOCKET_AGE_S or not path.is_socket():
                    continue
                if not wake_client.is_listening(path):
                    path.unlink()
                    removed.append(path)
            except OSError as error:
                log.info("%s stays: %s", path, error)
    return removed
