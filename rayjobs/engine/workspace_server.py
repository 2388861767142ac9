"""Serves the target's workspaces to nodes that do not share its disk: calls and bytes over Ray."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import StoreError, UsageError
from rayjobs.protocol.names import CHUNK_BYTES
from rayjobs.protocol.workspaces import WorkspaceFacts
from rayjobs.workspace.blobs import TEMPORARY
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles
from rayjobs.workspace.served import ServedWorkspaces


class WorkspaceServer:
    """Executes agents' calls on a workspace. Thread-safe."""

    def __init__(self) -> None:
        """Open workspaces on demand."""
        self._workspaces = ServedWorkspaces()
        self._lock = threading.Lock()

    def _of(self, path: str) -> OpenWorkspace:
        with self._lock:
            return self._workspaces.at(path)

    def about(self, path: str) -> dict[str, Any]:
        """Return the JSON of a workspace's `WorkspaceFacts`.

        Raises:
            StoreError: it cannot be opened.
            NotFoundError: it no longer exists.
        """
        workspace = self._of(path)
        facts = WorkspaceFacts(workspace.id, workspace.name, workspace.blobs_address)
        return facts.to_json()

    def call(
        self, path: str, part: str, method: str, given: Sequence[Any], more: Mapping[str, Any]
    ) -> Any:
        """Return the result of a method of the workspace's ``store``, ``catalogue`` or ``blobs``.

        Raises:
            UsageError: no such part or method.
            RayjobsError: what the method raises.
        """
        if part not in ("store", "catalogue", "blobs") or method.startswith("_"):
            raise UsageError(f"a workspace has no {part}.{method}")
        result = getattr(getattr(self._of(path), part), method)(*given, **more)
        # An incremental read would hold a connection open between two calls.
        return list(result) if hasattr(result, "__next__") else result

    def read(self, path: str, key: str, offset: int) -> bytes:
        """Return the next bytes of a blob; empty at its end. Raises NotFoundError."""
        with self._of(path).blobs.open(key) as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)

    def append(self, path: str, upload: str | None, data: bytes) -> str:
        """Append bytes to an upload, or begin a new one; return its name.

        Raises:
            StoreError: they cannot be stored.
            NotFoundError: the workspace no longer exists.
        """
        name = upload or ids.token(8)
        try:
            with self._upload(path, name).open("ab") as stream:
                stream.write(data)
        except OSError as error:
            raise StoreError(f"a file of a node cannot be stored: {error.strerror}") from error
        return name

    def keep(self, path: str, upload: str, key: str | None, digest: str | None) -> Any:
        """Make an upload a blob, under `key` or under its digest; return the `Blob`.

        Raises:
            StoreError: it cannot be stored, or its bytes differ from the digest.
        """
        file = self._upload(path, upload)
        blobs = self._of(path).blobs
        try:
            if key is None:
                return blobs.add_file(file, digest=digest)
            return blobs.put_file(file, key, digest=digest)
        finally:
            file.unlink(missing_ok=True)

    def keep_parts(self, path: str, upload: str, sizes: Sequence[int]) -> list[Any]:
        """Split an upload into parts of these sizes and store each as a blob under its digest.

        Returns the `Blob` of each part, or the error with which it was refused.

        Raises:
            StoreError: the parts cannot be written.
        """
        file = self._upload(path, upload)
        parts = [file.with_name(f"{file.name}-{number}") for number in range(len(sizes))]
        try:
            with file.open("rb") as stream:
                for part, size in zip(parts, sizes, strict=True):
                    part.write_bytes(stream.read(size))
            return list(self._of(path).blobs.add_files(parts))
        except OSError as error:
            raise StoreError(f"files of a node cannot be stored: {error.strerror}") from error
        finally:
            for one in (file, *parts):
                one.unlink(missing_ok=True)

    def _upload(self, path: str, name: str) -> Path:
        if not name.isalnum():
            raise UsageError(f"{name!r} is not an upload")
        self._of(path)  # raises NotFoundError: a removed workspace is not made again
        # Among the blobs' own unfinished files: abandoned uploads are removed with them.
        folder = WorkspaceFiles(Path(path)).blobs / TEMPORARY
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"upload-{name}"
