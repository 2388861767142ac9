"""A datastore behind a server: HTTP requests access its files, whatever the storage."""

from __future__ import annotations

import hashlib
import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from rayjobs.core.ids import token
from rayjobs.datastore.backends.base import CountBytes, Folder, StoredFile, ignore_bytes
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import DataChanged, DataNotFound, DatastoreUnavailable
from rayjobs.datastore.refs import clean_path
from rayjobs.workspace.connection import Connection, upload
from rayjobs.workspace.http_messages import (
    DatastoreFile,
    ListedFile,
    ListedFolder,
    PutFileRequest,
    StreamEnd,
)

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
PIECE_BYTES = 4 << 20


class Pool:
    """Connections to one server, each used by one thread at a time."""

    def __init__(self, server: Connection) -> None:
        self.address = server.address
        self._server = server
        self._free: list[Connection] = []
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Lend a connection to the caller."""
        with self._lock:
            found = self._free.pop() if self._free else self._server.copy()
        try:
            yield found
        finally:
            with self._lock:
                self._free.append(found)

    def close(self) -> None:
        """Close unused connections."""
        with self._lock:
            for one in self._free:
                one.close()
            self._free.clear()


class ServedBackend:
    """A `Backend` whose storage only the server can reach."""

    def __init__(self, pool: Pool, record: DatastoreRecord) -> None:
        self.where = f"{record.name} at {pool.address}"
        self._pool = pool
        self._top = f"/v1/datastores/{record.name}"

    def local_path(self, path: str) -> Path | None:
        """See `Backend`: the file is never on this machine."""
        clean_path(path)
        return None

    def stat(self, path: str) -> StoredFile | None:
        """See `Backend`."""
        clean = clean_path(path)
        found = self._ask("stat", clean, DatastoreFile | None) if clean else None
        return None if found is None else _stored(found)

    def walk(self, path: str) -> Iterator[StoredFile]:
        """See `Backend`."""
        query = {"path": clean_path(path)}
        try:
            with self._pool.one() as server:
                for file in server.lines(f"{self._top}/walk", DatastoreFile, query=query):
                    if isinstance(file, StreamEnd):
                        return
                    yield _stored(file)
        except (OSError, http.client.HTTPException) as error:
            raise DatastoreUnavailable(self._broken_off(str(error))) from error
        raise DatastoreUnavailable(self._broken_off("the server ended it"))

    def children(self, path: str) -> list[StoredFile | Folder]:
        """See `Backend`."""
        return [
            _stored(one) if isinstance(one, ListedFile) else Folder(one.path)
            for one in self._ask("children", clean_path(path), list[ListedFile | ListedFolder])
        ]

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """See `Backend`. A piece whose answer was lost is requested again."""
        query = self._query(file)
        running, done = hashlib.sha256(), 0
        try:
            with to.open("xb") as writer, self._pool.one() as server:
                while True:
                    data = server.whole(
                        "GET", f"{self._top}/content", query={**query, "offset": str(done)}
                    )
                    running.update(data)
                    writer.write(data)
                    count(len(data))
                    done += len(data)
                    if not data or done >= file.size:
                        break
        except BaseException:
            to.unlink(missing_ok=True)
            raise
        digest = f"sha256:{running.hexdigest()}"
        expected = file.digest
        if not expected and file.size > PIECE_BYTES:
            # The server compares the storage's digest only for files of a single piece.
            known = self.stat(file.path)
            expected = known.digest if known is not None and known.etag == file.etag else ""
        if done != file.size or (expected and digest != expected):
            to.unlink(missing_ok=True)
            raise DataChanged(
                f"{file.path} of {self.where} has changed since it was listed ({file.size} bytes "
                f"then, {done} now). Register a new version, or put the old file back."
            )
        return digest

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """See `Backend`."""
        data = b""
        with self._pool.one() as server:
            while len(data) < length and start + len(data) < file.size:
                query = {**self._query(file), "offset": str(start + len(data))}
                piece = server.whole("GET", f"{self._top}/content", query=query)
                if not piece:
                    break
                data += piece
        return data[:length]

    def _query(self, file: StoredFile) -> dict[str, str]:
        return {
            "path": clean_path(file.path),
            "size": str(file.size),
            "etag": file.etag,
            "digest": file.digest,
        }

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """See `Backend`. Sends the file in pieces, and resumes after a lost connection."""
        name = token(16)
        with self._pool.one() as server:
            try:
                with source.open("rb") as stream:
                    size = os.fstat(stream.fileno()).st_size
                    upload(server, stream, size, name=name, chunk=PIECE_BYTES, count=count)
            except FileNotFoundError as error:
                raise DataNotFound(f"{source} does not exist.") from error
            except OSError as error:
                raise DatastoreUnavailable(f"{source} cannot be sent: {error}") from error
            body = PutFileRequest(upload=name, path=clean_path(path), size=size)
            path = f"{self._top}/files"
            return _stored(server.ask("POST", path, DatastoreFile, body=body, repeats=True))

    def remove(self, path: str) -> None:
        """See `Backend`."""
        with self._pool.one() as server:
            query = {"path": clean_path(path)}
            server.ask("DELETE", f"{self._top}/files", NoneType, query=query)

    def check(self) -> None:
        """See `Backend`."""
        with self._pool.one() as server:
            server.ask("GET", f"{self._top}/check", NoneType)

    def _broken_off(self, why: str) -> str:
        return f"the list of {self.where} broke off ({why}); repeat the command."

    def _ask(self, what: str, path: str, kind: TypeForm[T]) -> T:
        with self._pool.one() as server:
            return server.ask("GET", f"{self._top}/{what}", kind, query={"path": path})


def _stored(file: DatastoreFile) -> StoredFile:
    return StoredFile(path=file.path, size=file.size, etag=file.etag, digest=file.digest)
