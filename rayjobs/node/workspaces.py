"""The workspaces whose jobs run on a node: opens each once, and writes to jobs' histories."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, StoreError
from rayjobs.injob.identity import boot_id
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.workspace.folder import OpenWorkspace, earlier_paths
from rayjobs.workspace.served import ServedWorkspaces

log = logging.getLogger(__name__)

OpenFar = Callable[[str], OpenWorkspace]


class Workspaces:
    """The open workspaces of one node, each found through the attempts that name it."""

    def __init__(self, open_far: OpenFar | None = None, *, shares_disk: bool = True) -> None:
        """Open workspaces by their paths, or by `open_far` if the node does not have their disk.

        Args:
            shares_disk: False: never open them by their paths.
        """
        self._near = ServedWorkspaces()
        self._far: dict[str, OpenWorkspace] = {}
        self._open_far = open_far
        self._shares_disk = shares_disk

    def of(self, on: AttemptOnNode) -> OpenWorkspace:
        """Return the workspace of an attempt.

        Raises:
            StoreError: it cannot be opened.
            NotFoundError: it no longer exists.
        """
        path = on.workspace
        if self._open_far is not None and self.is_far(on):
            if path not in self._far:
                self._far[path] = self._open_far(path)
            return self._far[path]
        return self._near.at(path)

    def reaches(self, on: AttemptOnNode, folder: Path) -> bool:
        """Whether this node has a folder that the attempt's workspace refers to by path.

        On another machine, a folder at the same path counts as the same one: a network mount.
        """
        return not self.is_far(on) or (self._shares_disk and folder.is_dir())

    def where_now(self, on: AttemptOnNode, folder: str) -> str:
        """Return the current path of a folder that may have moved with the attempt's workspace."""
        if self.is_far(on) or os.path.exists(folder):  # noqa: PTH110 - it may be one of many
            return folder
        now = Path(on.workspace)
        for old in map(Path, earlier_paths(now)):
            # If the workspace is in a project, most likely the whole project has moved.
            for before, after in ((old, now), (old.parent, now.parent)):
                if Path(folder).is_relative_to(before):
                    found = after / Path(folder).relative_to(before)
                    if found.exists():
                        return str(found)
        return folder

    def is_far(self, on: AttemptOnNode) -> bool:
        """Whether the workspace's folder belongs to another machine.

        An equal path proves nothing: over a network file system its store would break.
        """
        path = on.workspace
        if not self._shares_disk or on.boot_id not in (None, boot_id()):
            return True
        # A workspace that was opened here is local, even if it is briefly unavailable.
        return path not in self._near and not Path(path).is_dir()

    def record(
        self,
        on: AttemptOnNode,
        kind: str,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a line that other jobs depend on into the job's history.

        Raises:
            StoreError: the line was not written.
        """
        self.of(on).store.add_event(on.job, kind, message, attempt=on.attempt, data=data)

    def note(
        self,
        on: AttemptOnNode,
        kind: str,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a line into the job's history; an error of the store does not stop the job."""
        try:
            self.record(on, kind, message, data)
        except (StoreError, NotFoundError) as error:
            log.info("an event was not written: %s", error)
