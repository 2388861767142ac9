"""The workspaces whose jobs run on a node: opened once, and what is noted in a job's history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rayjobs.errors import StoreError
from rayjobs.workspace_files import OpenWorkspace, id_of, open_workspace

log = logging.getLogger(__name__)


class Workspaces:
    """The open workspaces of one node, each found through the orders that name it."""

    def __init__(self) -> None:
        self._open: dict[str, OpenWorkspace] = {}

    def of(self, order: Mapping[str, Any]) -> OpenWorkspace:
        """Return the workspace of an order.

        Raises:
            StoreError: it cannot be opened.
            NotFoundError: it is not there any more.
        """
        path = str(order["workspace"])
        workspace = self._open.get(path)
        if workspace is not None and id_of(path) not in (None, workspace.id):
            self._open.pop(path).close()  # another one in the place of a removed one
            workspace = None
        if workspace is None:
            workspace = open_workspace(path, create=False)
            self._open[path] = workspace
        return workspace

    def note(
        self,
        order: Mapping[str, Any],
        kind: str,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a line into the job's history; a store that refuses does not stop the job."""
        attempt = int(order["plan"]["attempt"])
        try:
            self.of(order).store.add_event(
                order["plan"]["job"], kind, message, attempt=attempt, data=data
            )
        except StoreError as error:
            log.info("an event was not written: %s", error)
