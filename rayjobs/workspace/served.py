"""The workspaces that a process serves for others: each is opened once, by its path."""

from __future__ import annotations

from rayjobs.workspace.folder import OpenWorkspace, id_of, open_workspace


class ServedWorkspaces:
    """Open workspaces whose folders are on this machine, by path."""

    def __init__(self) -> None:
        self._open: dict[str, OpenWorkspace] = {}

    def __contains__(self, path: object) -> bool:
        """Whether the workspace has been opened."""
        return path in self._open

    def at(self, path: str) -> OpenWorkspace:
        """Return the workspace of a folder.

        Raises:
            StoreError: it cannot be opened.
            NotFoundError: it no longer exists.
        """
        workspace = self._open.get(path)
        if workspace is not None and id_of(path) not in (None, workspace.id):
            self._open.pop(path).close()  # another workspace has replaced a removed one
            workspace = None
        if workspace is None:
            workspace = open_workspace(path, create=False)
            self._open[path] = workspace
        return workspace
