"""Routes of files in datastores: a client reads and writes them without access to the storage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import NoneType

from starlette.requests import Request
from starlette.responses import Response

from rayjobs.core.errors import StoreError
from rayjobs.datastore.backends import Backend, Folder, StoredFile, open_directly
from rayjobs.datastore.refs import clean_path
from rayjobs.server.access import Caller, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.routes import BYTES, LINES, HandlerRoute, Routes, line, stream_of
from rayjobs.server.uploads import Pieces, on_disk, upload_of
from rayjobs.server.workers import with_files
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import (
    DatastoreFile,
    ListedFile,
    ListedFolder,
    PutFileRequest,
    StreamEnd,
)
from rayjobs.workspace.users import Role

MOST_PIECE = 8 << 20
_Listed = ListedFile | ListedFolder
_Walked = DatastoreFile | StreamEnd


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    files = _Files(workspace)
    viewer, submitter = Role.VIEWER, Role.SUBMITTER
    top = "/v1/datastores/{name}"
    return [
        HandlerRoute("GET", f"{top}/check", viewer, files.check, NoneType),
        HandlerRoute("GET", f"{top}/stat", viewer, files.stat, DatastoreFile | None),
        HandlerRoute("GET", f"{top}/children", viewer, files.children, list[_Listed]),
        HandlerRoute("GET", f"{top}/walk", viewer, files.walk, _Walked, LINES),
        HandlerRoute("GET", f"{top}/content", viewer, files.content, bytes, BYTES),
        HandlerRoute(
            "POST", f"{top}/files", submitter, files.put, DatastoreFile, body=PutFileRequest
        ),
        HandlerRoute("DELETE", f"{top}/files", submitter, files.remove, NoneType),
    ]


class _Files:
    """The files of a workspace's datastores."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace

    def _backend(self, request: Request) -> Backend:
        return open_directly(self._workspace.catalogue.datastore(request.path_params["name"]))

    async def check(self, request: Request, _caller: Caller) -> None:
        """Check that the storage responds."""
        await with_files(lambda: self._backend(request).check())

    async def stat(self, request: Request, _caller: Caller) -> DatastoreFile | None:
        """Return one file; null if there is none."""
        path = clean_path(request.query_params.get("path"))
        found = await with_files(lambda: self._backend(request).stat(path))
        return None if found is None else DatastoreFile.of(found)

    async def children(self, request: Request, _caller: Caller) -> list[_Listed]:
        """Return the direct contents of a folder."""
        path = clean_path(request.query_params.get("path"))
        found = await with_files(lambda: self._backend(request).children(path))
        return [_listed(one) for one in found]

    async def walk(self, request: Request, _caller: Caller) -> Response:
        """Stream all files below a folder as JSON lines; the last line marks the end."""
        path = clean_path(request.query_params.get("path"))

        def begin() -> tuple[list[StoredFile], Iterator[StoredFile]]:
            files = self._backend(request).walk(path)
            return [one for one in (next(files, None),) if one is not None], files

        first, files = await with_files(begin)  # errors are raised before the answer begins

        def lines() -> Iterator[bytes]:
            for one in chain(first, files):
                yield line(_Walked, DatastoreFile.of(one))
            yield line(_Walked, StreamEnd(is_end=True))

        return stream_of(lines())

    async def content(self, request: Request, _caller: Caller) -> Response:
        """Return a piece of a previously listed file."""
        query = request.query_params
        path, start = clean_path(query.get("path")), _number(request, "offset")
        size, etag, digest = _number(request, "size"), query.get("etag"), query.get("digest")
        file = StoredFile(path, size, etag or "", digest or "")

        def read() -> bytes:
            return _piece(self._backend(request), file, start)

        data = await with_files(read)
        return Response(data, media_type=BYTES)

    async def put(self, request: Request, caller: Caller) -> DatastoreFile:
        """Store an upload as a file."""
        asked = await body_of(request, PutFileRequest)
        path = clean_path(asked.path)
        if not path:
            raise Refusal(400, "give the path of a file")
        request.state.object = path
        upload = upload_of(self._workspace, asked.upload, caller)
        stored = await with_files(
            on_disk, lambda: _stored(self._backend(request), upload, path, asked.size)
        )
        return DatastoreFile.of(stored)

    async def remove(self, request: Request, _caller: Caller) -> None:
        """Remove a file, if it exists."""
        path = clean_path(request.query_params.get("path"))
        if not path:
            raise Refusal(400, "give the path of a file")
        request.state.object = path
        await with_files(lambda: self._backend(request).remove(path))


def _stored(backend: Backend, upload: Pieces, path: str, size: int) -> StoredFile:
    """Store an upload; a repeated request finds it already stored."""
    with upload.joined() as (file, found):
        if found != size:
            known = backend.stat(path)
            if known is None or known.size != size:
                raise StoreError(f"the upload has {found} bytes instead of {size}; send it again")
            return known
        stored = backend.put(file, path)
    upload.remove()
    return stored


def _piece(backend: Backend, file: StoredFile, start: int) -> bytes:
    """Return a piece of a file; of a file with several pieces, read only this one."""
    if file.size > MOST_PIECE or backend.local_path(file.path) is not None:
        return backend.read(file, start, MOST_PIECE)
    with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
        whole = Path(folder) / "file"
        backend.fetch(file, whole)  # compared with the storage's digest
        return whole.read_bytes()[start:]


def _listed(one: StoredFile | Folder) -> _Listed:
    if isinstance(one, Folder):
        return ListedFolder(one.path, is_folder=True)
    return ListedFile.of(one)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Refusal(400, f"{name} must be a whole number")
    return int(text)
