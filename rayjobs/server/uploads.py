"""Routes of uploads: small files in one request, large ones in pieces at an offset.

The pieces are blobs of the workspace, so that each of its servers can continue an upload that
another began. If the blobs are in S3, clients send large files there themselves, to signed
addresses.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request

from rayjobs.core.errors import NotFoundError, StorageFullError
from rayjobs.datastore.digests import digest_of_stream
from rayjobs.server.access import Caller, Refusal
from rayjobs.server.bodies import body_of, bytes_of
from rayjobs.server.routes import HandlerRoute, Routes
from rayjobs.server.workers import with_files
from rayjobs.snapshots.unpack import is_of_key, require_key
from rayjobs.workspace.blobs import UPLOADS, Blob, BlobStore, blob_key, check_digest, check_key
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import KeepRequest, Parts, PartsRequest
from rayjobs.workspace.s3_blobs import S3Blobs
from rayjobs.workspace.s3_presigned import Presigned
from rayjobs.workspace.users import Role

NO_BUCKET = "none"
KEEP_WAITS_S = 30.0
KEPT_FOR_S = 600.0
FAILURE_KEPT_FOR_S = 5.0  # for a client that asks again; a later command tries again
MOST_PIECE = 8 << 20
MOST_FILE = 64 << 30
_Result = TypeVar("_Result")
_NAME = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"snapshots/sha256/[0-9a-f]{2}/[0-9a-f]{64}\.tar\.zst\Z")


def presigned_of(workspace: OpenWorkspace, bucket: str) -> Presigned | None:
    """Return the signer of addresses for clients; None: all bytes travel through the server.

    Args:
        bucket: The address at which clients reach S3; empty: the workspace's; ``none``: clients
            cannot reach it.
    """
    if not isinstance(workspace.blobs, S3Blobs) or bucket == NO_BUCKET:
        return None
    return Presigned(workspace.blobs, bucket or None)


def routes(workspace: OpenWorkspace, presigned: Presigned | None) -> Routes:
    """Return the routes."""
    blobs, scratch, keeping = workspace.blobs, _scratch(workspace), _Keeping()

    def pieces_of(request: Request, caller: Caller) -> Pieces:
        return upload_of(workspace, request.path_params["name"], caller)

    async def store(request: Request, _caller: Caller) -> Blob:
        key, digest = request.query_params.get("key"), request.query_params.get("digest")
        _check_names(key, digest)
        data = await bytes_of(request, MOST_PIECE, "a piece")

        def call() -> Blob:
            with tempfile.NamedTemporaryFile(dir=scratch) as file:
                file.write(data)
                file.flush()
                return _store(blobs, Path(file.name), key, digest)

        stored = await with_files(on_disk, call)
        request.state.object = stored.key
        return stored

    async def begin(request: Request, caller: Caller) -> int:
        pieces = pieces_of(request, caller)
        return await with_files(lambda: pieces.size)

    async def append(request: Request, caller: Caller) -> int:
        pieces = pieces_of(request, caller)
        offset = _offset_of(request.query_params.get("offset", ""))
        data = await bytes_of(request, MOST_PIECE, "a piece")
        await with_files(pieces.add, offset, data)
        return offset + len(data)

    async def keep(request: Request, caller: Caller) -> Blob | None:
        pieces, asked = pieces_of(request, caller), await body_of(request, KeepRequest)
        key, digest, size = asked.key, asked.digest, asked.size
        _check_names(key, digest)
        if asked.direct and (presigned is None or digest is None):
            raise Refusal(400, "only files in S3 can be sent directly, and only with their digest")

        def call() -> Blob:
            if asked.direct:
                assert presigned is not None
                return presigned.keep(pieces.staged, size, key, str(digest))
            with pieces.joined() as (path, found):
                if found != size:
                    # In a repeat after a lost answer, the pieces are gone and the bytes are stored.
                    known = key or (blob_key(digest) if digest else None)
                    if known is not None and blobs.exists(known):
                        return Blob(known, blobs.size(known), digest or "")
                    raise NotFoundError(f"the upload has {found} bytes instead of {size}")
                blob = _store(blobs, path, key, digest)
            pieces.remove()
            return blob

        kept = await keeping.result(pieces.staged, call)
        request.state.object = "" if kept is None else kept.key
        return kept

    one, submitter = "/v1/uploads/{name}", Role.SUBMITTER
    return [
        HandlerRoute("POST", "/v1/blobs", submitter, store, Blob, body=bytes),
        HandlerRoute("PUT", one, submitter, begin, int),
        HandlerRoute("PATCH", one, submitter, append, int, body=bytes),
        HandlerRoute("POST", f"{one}/keep", submitter, keep, Blob | None, body=KeepRequest),
        *_direct(workspace, presigned),
    ]


def _direct(workspace: OpenWorkspace, presigned: Presigned | None) -> Routes:
    """Return the routes that answer with signed addresses; null: use the server instead."""

    async def parts(request: Request, caller: Caller) -> Parts | None:
        pieces = upload_of(workspace, request.path_params["name"], caller)
        size = (await body_of(request, PartsRequest)).size
        if not 0 < size <= MOST_FILE:
            raise Refusal(400, f"size must be a whole number of at most {MOST_FILE}")
        if presigned is None:
            return None
        return await with_files(presigned.parts, pieces.staged, size)

    async def address(request: Request, _caller: Caller) -> str | None:
        key = request.path_params["key"]
        check_key(key)
        return None if presigned is None else presigned.download(key)

    path, submitter = "/v1/uploads/{name}/parts", Role.SUBMITTER
    return [
        HandlerRoute("POST", path, submitter, parts, Parts | None, body=PartsRequest),
        HandlerRoute("GET", "/v1/blob-addresses/{key:path}", Role.VIEWER, address, str | None),
    ]


class _Keeping:
    """The uploads that are being stored, which takes minutes for the largest."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Blob]] = {}

    async def result(self, name: str, call: Callable[[], Blob]) -> Blob | None:
        """Return the result of `call`; None while it is still running: ask again later."""
        task = self._running.get(name)
        if task is None:
            task = asyncio.create_task(with_files(on_disk, call))
            self._running[name] = task
        done, _ = await asyncio.wait({task}, timeout=KEEP_WAITS_S)
        if not done:
            # The client may be gone when it ends.
            task.add_done_callback(lambda ended: self._drop_later(name, ended))
            return None
        self._drop(name, task)
        return task.result()

    def _drop_later(self, name: str, task: asyncio.Task[Blob]) -> None:
        has_failed = task.cancelled() or task.exception() is not None
        kept_s = FAILURE_KEPT_FOR_S if has_failed else KEPT_FOR_S
        asyncio.get_running_loop().call_later(kept_s, self._drop, name, task)

    def _drop(self, name: str, task: asyncio.Task[Blob]) -> None:
        if self._running.get(name) is task:
            del self._running[name]
            if not task.cancelled():
                task.exception()  # marks it as seen: the client may be gone


def upload_of(workspace: OpenWorkspace, name: str, caller: Caller) -> Pieces:
    """Return a caller's upload, which may not have started yet.

    Raises:
        Refusal: the name is not that of an upload.
    """
    if not _NAME.match(name):
        raise Refusal(400, "the name of an upload has 32 hexadecimal digits")
    # Each user has separate uploads.
    prefix = f"{UPLOADS}{caller.user.encode().hex()}-{name}/"
    return Pieces(workspace.blobs, prefix, _scratch(workspace))


def _scratch(workspace: OpenWorkspace) -> Path:
    folder = workspace.path / "uploads"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class Pieces:
    """The stored pieces of one upload, each named by its offset and length."""

    def __init__(self, blobs: BlobStore, prefix: str, scratch: Path) -> None:
        self._blobs = blobs
        self._prefix = prefix
        self._scratch = scratch

    @property
    def staged(self) -> str:
        """The key of the file that a client itself sends to S3."""
        return f"{self._prefix.rstrip('/')}.direct"

    def add(self, offset: int, data: bytes) -> None:
        """Store a piece; an existing piece is overwritten with the same bytes."""
        if data:
            self._blobs.put_bytes(data, f"{self._prefix}{offset:012d}-{len(data)}")

    @property
    def size(self) -> int:
        """The size up to which the upload is complete."""
        return sum(length for _, length in self._chain())

    @contextmanager
    def joined(self) -> Iterator[tuple[Path, int]]:
        """Yield a temporary file with the complete bytes, and its size."""
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            size = 0
            for key, _ in self._chain():
                with self._blobs.open(key) as piece:
                    size += file.write(piece.read())
            file.flush()
            yield Path(file.name), size

    def remove(self) -> None:
        """Remove all pieces."""
        for key in self._blobs.list(self._prefix):
            self._blobs.delete(key)

    def _chain(self) -> list[tuple[str, int]]:
        longest: dict[int, tuple[str, int]] = {}
        for key in self._blobs.list(self._prefix):
            start, _, length = key.removeprefix(self._prefix).partition("-")
            if int(length) > longest.get(int(start), ("", 0))[1]:
                longest[int(start)] = (key, int(length))
        chain, at = [], 0
        while at in longest:
            chain.append(longest[at])
            at += longest[at][1]
        return chain


def _offset_of(text: str) -> int:
    # Python refuses to convert thousands of digits.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_FILE))
    if not is_number or int(text) > MOST_FILE:
        raise Refusal(400, f"offset must be a whole number of at most {MOST_FILE}")
    return int(text)


def _check_names(key: str | None, digest: str | None) -> None:
    if key is not None and not _SNAPSHOT.match(key):
        raise Refusal(
            403, f"{key!r:.100} is not the key of a snapshot; other files are named by digest"
        )
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise Refusal(400, f"{digest!r:.100} is not a digest such as sha256:0f…")


def _store(blobs: BlobStore, path: Path, key: str | None, digest: str | None) -> Blob:
    if key is None:
        return blobs.add_file(path, digest=digest)
    if digest is not None:
        with path.open("rb") as file:
            check_digest(digest, digest_of_stream(file), "the upload")
    # A snapshot's key identifies its content: other users run the snapshot without sending it.
    with path.open("rb") as file:
        require_key(file, key)
    if blobs.exists(key):
        with blobs.open(key) as stored:
            if is_of_key(stored, key):
                return Blob(key, blobs.size(key), digest or "")
    return blobs.put_file(path, key, digest=digest)


def on_disk(call: Callable[[], _Result]) -> _Result:
    """Return the result of `call`. Raises StorageFullError if the server's disk refuses."""
    try:
        return call()
    except OSError as error:
        raise StorageFullError(f"the upload cannot be stored: {error.strerror}") from error
