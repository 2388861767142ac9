"""Routes of files in datastores: a client reads and writes them without access to the storage."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rayjobs.core.errors import StoreError
from rayjobs.datastore.backends import Backend, Folder, StoredFile, open_directly
from rayjobs.datastore.refs import clean_path
from rayjobs.server.access import Caller, Handler, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.uploads import Pieces, on_disk, upload_of
from rayjobs.server.workers import with_files
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role

MOST_PIECE = 8 << 20


def routes(workspace: OpenWorkspace) -> list[tuple[str, str, Role, Handler]]:
    """Return the routes."""
    files = _Files(workspace)
    viewer, submitter = Role.VIEWER, Role.SUBMITTER
    top = "/v1/datastores/{name}"
    return [
        ("GET", f"{top}/check", viewer, files.check),
        ("GET", f"{top}/stat", viewer, files.stat),
        ("GET", f"{top}/children", viewer, files.children),
        ("GET", f"{top}/walk", viewer, files.walk),
        ("GET", f"{top}/content", viewer, files.content),
        ("POST", f"{top}/files", submitter, files.put),
        ("DELETE", f"{top}/files", submitter, files.remove),
    ]


class _Files:
    """The files of a workspace's datastores."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace

    def _backend(self, request: Request) -> Backend:
        return open_directly(self._workspace.catalogue.datastore(request.path_params["name"]))

    async def check(self, request: Request, _caller: Caller) -> Response:
        """Check that the storage responds."""
        await with_files(lambda: self._backend(request).check())
        return JSONResponse(None)

    async def stat(self, request: Request, _caller: Caller) -> Response:
        """Return one file; null if there is none."""
        path = clean_path(request.query_params.get("path"))
        found = await with_files(lambda: self._backend(request).stat(path))
        return JSONResponse(None if found is None else asdict(found))

    async def children(self, request: Request, _caller: Caller) -> Response:
        """Return the direct contents of a folder."""
        path = clean_path(request.query_params.get("path"))
        found = await with_files(lambda: self._backend(request).children(path))
        return JSONResponse([_shown(one) for one in found])

    async def walk(self, request: Request, _caller: Caller) -> Response:
        """Stream all files below a folder as JSON lines; the last line marks the end."""
        path = clean_path(request.query_params.get("path"))

        def begin() -> tuple[list[StoredFile], Iterator[StoredFile]]:
            files = self._backend(request).walk(path)
            return [one for one in (next(files, None),) if one is not None], files

        first, files = await with_files(begin)  # errors are raised before the answer begins

        def lines() -> Iterator[bytes]:
            for one in chain(first, files):
                yield json.dumps(asdict(one)).encode() + b"\n"
            yield b'{"is_end": true}\n'

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def content(self, request: Request, _caller: Caller) -> Response:
        """Return a piece of a previously listed file."""
        query = request.query_params
        path, start = clean_path(query.get("path")), _number(request, "offset")
        size, etag, digest = _number(request, "size"), query.get("etag"), query.get("digest")
        file = StoredFile(path, size, etag or "", digest or "")

        def read() -> bytes:
            return _piece(self._backend(request), file, start)

        data = await with_files(read)
        return Response(data, media_type="application/octet-stream")

    async def put(self, request: Request, caller: Caller) -> Response:
        """Store an upload as a file."""
        values = await body_of(request)
        name, path, size = values.get("upload"), values.get("path"), values.get("size")
        if not isinstance(name, str) or not isinstance(path, str) or not isinstance(size, int):
            raise Refusal(400, "give upload, path and size")
        if not clean_path(path):
            raise Refusal(400, "give the path of a file")
        request.state.object = clean_path(path)
        upload = upload_of(self._workspace, name, caller)
        stored = await with_files(
            on_disk, lambda: _stored(self._backend(request), upload, clean_path(path), size)
        )
        return JSONResponse(asdict(stored))

    async def remove(self, request: Request, _caller: Caller) -> Response:
        """Remove a file, if it exists."""
        path = clean_path(request.query_params.get("path"))
        if not path:
            raise Refusal(400, "give the path of a file")
        request.state.object = path
        await with_files(lambda: self._backend(request).remove(path))
        return JSONResponse(None)


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


def _shown(one: StoredFile | Folder) -> dict[str, object]:
    return {**asdict(one), "is_folder": isinstance(one, Folder)}


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Refusal(400, f"{name} must be a whole number")
    return int(text)
