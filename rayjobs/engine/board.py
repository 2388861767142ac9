"""The workspaces that a target serves, and which of their jobs wait or live."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import RayjobsError
from rayjobs.engine.queue_view import QueueView
from rayjobs.store.base import Store
from rayjobs.workspace.folder import WorkspaceFiles, id_of

log = logging.getLogger(__name__)
Result = TypeVar("Result")

# A folder that cannot be seen for less than this may come back: an automount, a network file
# system that hangs for a moment, a backup tool's rename. Seconds.
GONE_S = 60.0


@dataclass(frozen=True)
class Served:
    """One workspace: its folder, name and store.

    Attributes:
        made_s: When its folder got its record, by the clock of the machine that keeps it: no job
            was submitted before. Seconds since 1970.
    """

    path: str
    name: str
    store: Store
    made_s: float = -math.inf

    def key(self, job_id: str) -> str:
        """Return a name for a job that is unique over all workspaces of the target."""
        return f"{self.path}::{job_id}"

    async def ask(self, function: Callable[..., Result], *arguments: Any, **more: Any) -> Result:
        """Run one store call on a thread: a locked database must not stop the loop."""
        return await asyncio.to_thread(function, *arguments, **more)


class Board:
    """Opens workspaces as clients name them and remembers them over restarts."""

    def __init__(
        self,
        target: str,
        folder: Path,
        open_store: Callable[[str], tuple[str, Store]],
        *,
        clock: Clock | None = None,
    ) -> None:
        self.target = target
        self._clock = clock or SystemClock()
        self._absent_since_s: dict[str, float] = {}
        self._folder = folder
        self._open = open_store
        self._served: dict[str, Served] = {}
        self._views: dict[str, QueueView] = {}
        self._broken: dict[str, str] = {}
        # Not broken: the original is served, so nothing that a copy's records name is unknown here.
        self._copies: dict[str, str] = {}
        self._aliases: dict[str, str] = {}  # other paths of workspaces that are served
        self._ids: dict[str, str | None] = {}
        self._lock = asyncio.Lock()

    @property
    def served(self) -> list[Served]:
        """The workspaces that could be opened."""
        return list(self._served.values())

    @property
    def refused(self) -> dict[str, str]:
        """Why workspaces are not served, by their path."""
        return {**self._broken, **self._copies}

    @property
    def is_complete(self) -> bool:
        """Whether no registered workspace that is there is missing here."""
        return not any(Path(path).is_dir() for path in self._broken)

    async def add(self, path: str) -> Served | None:
        """Serve a workspace; one that cannot be opened is tried again every round.

        A folder that is served already under another path, by a link or a bind mount, is that
        workspace: two views of one store would start its jobs twice.
        """
        path = os.path.realpath(path)
        async with self._lock:  # a wake and a round may both ask
            path = self._aliases.get(path, path)
            self._forget_if_gone(path)
            return self._served.get(path) or await self._add(path)

    async def _add(self, path: str) -> Served | None:
        if (known := self._same_store(path)) is not None:
            log.warning("workspace %s is workspace %s under another path", path, known.path)
            self._aliases[path] = known.path
            return known
        number = id_of(path)
        if (known := self._original_of(number)) is not None:
            self._copies[path] = _copied(path, known.path)
            return None
        self._copies.pop(path, None)
        try:
            name, store = await asyncio.to_thread(self._open, path)
        except (RayjobsError, OSError) as error:
            if self._broken.get(path) != str(error):
                log.warning("workspace %s cannot be opened: %s", path, error)
            self._broken[path] = str(error)
            return None
        served = Served(path, name, store, await asyncio.to_thread(_made_s, path))
        self._broken.pop(path, None)
        self._served[path] = served
        self._views[path] = QueueView(served, self.target)
        self._ids[path] = number
        return served

    def _original_of(self, number: str | None) -> Served | None:
        """Return the workspace of this id that is served: one copied with its unfinished jobs.

        The copy's records name hosts and allocations of the original's attempts. To serve both
        would end and repeat what the original runs.
        """
        for path, known in self._served.items():
            if number is not None and self._ids[path] == number:
                return known
        return None

    def _same_store(self, path: str) -> Served | None:
        """Return the workspace whose store is the very file of the one in `path`."""
        number = _file_number(path)
        for known in self._served.values():
            if number is not None and _file_number(known.path) == number:
                return known
        return None

    async def refresh(self) -> None:
        """Open what clients have registered, and forget what was removed."""
        for path in registered(self._folder):
            if path not in self._served and path not in self._aliases:
                await self.add(path)
        for path in [*self._served]:
            self._forget_if_gone(path)

    def _forget_if_gone(self, path: str) -> None:
        """Close a workspace that was removed; a new one in its place is another workspace.

        One that cannot be seen is not removed until it has been absent for `GONE_S`.
        """
        if path not in self._served:
            return
        if Path(path).is_dir():
            self._absent_since_s.pop(path, None)
            if id_of(path) in (None, self._ids[path]):
                return
        else:
            now_s = self._clock.monotonic_s()
            if path not in self._absent_since_s:
                log.warning("workspace %s cannot be read; its jobs keep running for now", path)
            if now_s - self._absent_since_s.setdefault(path, now_s) < GONE_S:
                return
        log.warning("workspace %s was removed", path)
        self._absent_since_s.pop(path, None)
        self._aliases = {name: real for name, real in self._aliases.items() if real != path}
        del self._views[path]
        self._served.pop(path).store.close()

    async def look(self, now: datetime | None = None) -> list[QueueView]:
        """Return each workspace's queue, read again where it has changed; see `QueueView.look`."""
        views = [self._views[path] for path in self._served]
        for view in views:
            await view.look(now)
        return views

    async def waiting(self) -> list[str]:
        """Return the keys of the queued jobs of all workspaces."""
        return [key for view in await self.look() for key in view.queued]


def _copied(path: str, original: str) -> str:
    return (
        f"it is a copy of the workspace {original}, with the same id, so its jobs do not run: they "
        f"would run twice. Use the original. To make the copy a workspace of its own, remove "
        f"{Path(path) / 'workspace.json'} once no job of the original is unfinished"
    )


def _file_number(path: str) -> tuple[int, int] | None:
    """Return device and inode of a workspace's store; None where it cannot be seen."""
    try:
        found = WorkspaceFiles(Path(path)).store.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _made_s(path: str) -> float:
    try:
        return WorkspaceFiles(Path(path)).record.stat().st_mtime
    except OSError:
        return -math.inf


def registered(folder: Path) -> list[str]:
    """Return the workspace folders that clients have registered with the target."""
    paths = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            paths.append(os.path.realpath(str(json.loads(file.read_text())["path"])))
        except (OSError, ValueError, KeyError):
            log.warning("%s is not a workspace's registration", file)
    return [*dict.fromkeys(paths)]
