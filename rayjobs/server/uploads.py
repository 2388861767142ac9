"""Routes of uploads: pieces at an offset, so that a lost connection costs one piece at most."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.core.errors import StorageFullError, StoreError, UsageError
from rayjobs.protocol.values import encode
from rayjobs.server.access import Caller, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.workspace.blobs import Blob, blob_key
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role

Handler = Callable[[Request, Caller], Awaitable[Response]]
MOST_PIECE = 8 << 20
MOST_FILE = 64 << 30
ABANDONED_S = 86_400.0
_NAME = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"snapshots/sha256/[0-9a-f]{2}/[0-9a-f]{64}\.tar\.zst\Z")


def routes(workspace: OpenWorkspace) -> list[tuple[str, str, Role, Handler]]:
    """Return the routes."""
    folder = _folder(workspace)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _drop_abandoned(folder)

    def file_of(request: Request, caller: Caller) -> Path:
        return upload_of(workspace, request.path_params["name"], caller)

    async def begin(request: Request, caller: Caller) -> Response:
        path = file_of(request, caller)

        def look() -> int:
            with contextlib.suppress(FileNotFoundError):
                return path.stat().st_size
            path.touch(mode=0o600)
            return 0

        return JSONResponse(await run_in_threadpool(look))

    async def append(request: Request, caller: Caller) -> Response:
        path, offset = file_of(request, caller), request.query_params.get("offset", "")
        if not offset.isascii() or not offset.isdecimal() or len(offset) > 15:
            raise Refusal(400, "offset is a whole number")
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MOST_PIECE:
                raise Refusal(413, f"a piece has at most {MOST_PIECE} bytes")
        size = await run_in_threadpool(_append, path, int(offset), bytes(data))
        return JSONResponse(size)

    async def keep(request: Request, caller: Caller) -> Response:
        path, values = file_of(request, caller), await body_of(request)
        key, digest, size = values.get("key"), values.get("digest"), values.get("size")
        if key is not None and (not isinstance(key, str) or not _SNAPSHOT.match(key)):
            raise Refusal(403, f"{key!r:.100} is not a snapshot's key; others are named by digest")
        if not isinstance(size, int) or not isinstance(digest, str | None):
            raise Refusal(400, "give key, digest and size")
        blob = await run_in_threadpool(_keep, workspace, path, key, digest, size)
        return JSONResponse(encode(blob))

    submitter = Role.SUBMITTER
    return [
        ("PUT", "/v1/uploads/{name}", submitter, begin),
        ("PATCH", "/v1/uploads/{name}", submitter, append),
        ("POST", "/v1/uploads/{name}/keep", submitter, keep),
    ]


def upload_of(workspace: OpenWorkspace, name: str, caller: Caller) -> Path:
    """Return the file of a caller's upload; it may be missing.

    Raises:
        Refusal: it is not the name of an upload.
    """
    if not _NAME.match(name):
        raise Refusal(400, "an upload has a name of 32 hexadecimal digits")
    # Each user has uploads of their own.
    return _folder(workspace) / f"{caller.user.encode().hex()}-{name}"


def _folder(workspace: OpenWorkspace) -> Path:
    return workspace.path / "uploads"


def _append(path: Path, offset: int, data: bytes) -> int:
    """Write a piece at its offset; return the size then. A piece that is there is not added."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            if offset > size or offset + len(data) > MOST_FILE:
                raise UsageError(f"the upload has {size} bytes, and this piece begins at {offset}")
            file.seek(offset)
            file.write(data)
            return max(size, offset + len(data))
    except FileNotFoundError:
        raise UsageError("there is no such upload; begin it again") from None
    except OSError as error:
        raise StorageFullError(f"the upload cannot be kept: {error.strerror}") from error


def _keep(
    workspace: OpenWorkspace, path: Path, key: str | None, digest: str | None, size: int
) -> Blob:
    # Repeated after a lost answer, the upload is gone and its bytes are there.
    if not path.exists():
        known = key or (blob_key(digest) if digest and _DIGEST.fullmatch(digest) else None)
        if known is not None and workspace.blobs.exists(known):
            return Blob(known, workspace.blobs.size(known), digest or "")
        raise StoreError("there is no such upload; send the file again")
    if path.stat().st_size != size:
        raise StoreError(f"the upload has {path.stat().st_size} bytes instead of {size}")
    if key is None:
        blob = workspace.blobs.add_file(path, digest=digest)
    elif workspace.blobs.exists(key):
        # A snapshot's key says what is in it: what others run is never replaced.
        blob = Blob(key, workspace.blobs.size(key), digest or "")
    else:
        blob = workspace.blobs.put_file(path, key, digest=digest)
    path.unlink(missing_ok=True)
    return blob


def _drop_abandoned(folder: Path) -> None:
    oldest = time.time() - ABANDONED_S  # compared with file times, which are wall time
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()
