"""A workspace behind a server: HTTP requests access its store, catalogue and blobs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from rayjobs.core import paths
from rayjobs.core.errors import NotFoundError, RayjobsError, StoreError, UsageError
from rayjobs.core.ids import job_id, token
from rayjobs.datastore.backends import reach_through
from rayjobs.datastore.catalogue import Catalogue
from rayjobs.remote import operations
from rayjobs.remote.datastores import Pool, ServedBackend
from rayjobs.remote.direct import Bucket
from rayjobs.store.base import Store
from rayjobs.store.forwarding import Forwarded
from rayjobs.workspace import plain
from rayjobs.workspace.blobs import Blob, blob_key, check_digest, open_source
from rayjobs.workspace.connection import Connection, upload
from rayjobs.workspace.fetched_blobs import FetchedBlobs
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import CurrentUser, KeepRequest

UPLOAD_BYTES = 4 << 20  # a smaller file is one request
UPLOAD_TRIES = 3
DIRECT_BYTES = 16 << 20  # read from the bucket with one request


def open_server(server: Connection) -> OpenWorkspace:
    """Return the workspace of a server.

    Raises:
        UnreachableError: the server cannot be reached, or refuses the token.
    """
    facts = server.workspace()
    here = paths.home() / "servers" / facts.id
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = HttpStore(server)
    reach_through(partial(ServedBackend, store.pool))
    return OpenWorkspace(
        path=Path(facts.path),
        id=facts.id,
        name=facts.name,
        store=cast(Store, store),
        blobs=HttpBlobs(server),
        client_folder=here,
        server=server,
    )


class HttpStore(Forwarded):
    """A `Store` behind a server, limited to the operations in the table."""

    def __init__(self, server: Connection) -> None:
        super().__init__(Store, partial(_send, server, ""))
        self.catalogue = Forwarded(Catalogue, partial(_send, server, "catalogue."))
        self._server = server
        self.pool = Pool(server)

    def submit(self, new: Any) -> Any:
        """See `Store.submit`."""
        return self._submit("submit", new)

    def submit_array(self, new: Any) -> Any:
        """See `Store.submit_array`."""
        return self._submit("submit_array", new)

    def put_sweep(self, new: Any) -> Any:
        """See `Store.put_sweep`."""
        return self._submit("put_sweep", new)

    def put_pipeline(self, new: Any) -> Any:
        """See `Store.put_pipeline`."""
        return self._submit("put_pipeline", new)

    def run_writers(self) -> list[tuple[str, Any]]:
        """See `Store.run_writers`: only this user's runs, since this client cannot end others."""
        found = _call(self._server, operations.BY_METHOD["run_writers"], (), {})
        if not found:
            return []
        user = self._server.ask("GET", "/v1/user", CurrentUser).user
        of_job = operations.BY_METHOD["job"]
        return [
            (run, writer)
            for run, writer in found
            if _call(self._server, of_job, (run,), {}).user == user
        ]

    def start_run(self, new: Any) -> Any:
        """See `Store.start_run`; the client sets an id, so that the request can be repeated."""
        if new.id is None:
            new = replace(new, id=job_id(new.experiment))
        return _call(self._server, operations.BY_METHOD["start_run"], (new,), {})

    def _submit(self, method: str, new: Any) -> Any:
        """Submit with a key, so that a request whose answer was lost can be repeated."""
        has_key = new.idempotency_key is not None
        if new.idempotency_key is None:
            new = replace(new, idempotency_key=f"client-{token()}")
        made, created = _call(self._server, operations.BY_METHOD[method], (new,), {})
        return made, created or not has_key

    def close(self) -> None:
        """Close the connection."""
        reach_through(None)
        self.pool.close()
        self._server.close()


def _send(
    server: Connection, part: str, name: str, arguments: Sequence[Any], more: Mapping[str, Any]
) -> Any:
    """Return the server's answer to a call. Raises UsageError if it has no such operation."""
    operation = operations.BY_METHOD.get(part + name)
    if operation is None:
        raise UsageError(
            f"this needs {name}, which only works on the server's own machine, not through "
            f"{server.address}"
        )
    return _call(server, operation, arguments, more)


def _call(
    server: Connection,
    operation: operations.Operation,
    arguments: Sequence[Any],
    more: Mapping[str, Any],
) -> Any:
    bound = operations.signature_of(operation.method).bind(*arguments, **more).arguments
    path = operation.path
    for name in operation.in_path:
        path = path.replace(f"{{{name}}}", str(bound[name]))
        if not str(bound[name]) or "/" in str(bound[name]):
            raise UsageError(f"{bound[name]!r} is not a name")
    hints = operations.hints_of(operation.method)
    rest = {one.name: bound[one.name] for one in operations.others(operation) if one.name in bound}
    if operation.in_body:
        sent = {name: plain.encoder(hints[name])(value) for name, value in rest.items()}
    else:
        sent = {
            name: plain.to_query(hints[name], value)
            for name, value in rest.items()
            if value is not None
        }

    kind = operations.answer_of(operation)

    def ask(more: dict[str, Any]) -> Any:
        given: dict[str, Any] = {"body" if operation.in_body else "query": sent | more}
        found = server.json(operation.verb, path, repeats=operation.repeats, **given)
        return server.read_answer(kind, found, f"{operation.verb} {path}")

    if not operation.is_paged:
        return ask({})
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = ask(cursor)
        found += page.items
        if page.next is None:
            return found
        cursor = {"cursor": page.next}


class HttpBlobs(FetchedBlobs):
    """A `BlobStore` behind a server: sends files in pieces, and resumes after a lost connection."""

    def __init__(self, server: Connection) -> None:
        self._server = server
        self._bucket = Bucket(server)

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """See `BlobStore.put_file`."""
        return self._upload(path, key, digest)

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """See `BlobStore.put_bytes`."""
        if len(data) <= UPLOAD_BYTES:
            return self._send_at_once(data, key, None)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return self._upload(file.name, key, None)

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.add_file`."""
        return self._upload(path, None, digest)

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """See `BlobStore.add_files`."""
        found: list[Blob | RayjobsError] = []
        for path in paths:
            try:
                found.append(self._upload(path, None, None))
            except RayjobsError as error:
                found.append(error)
        return found

    def _upload(self, path: str | Path, key: str | None, digest: str | None) -> Blob:
        from rayjobs.datastore.digests import digest_of_stream

        try:
            with open_source(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size <= UPLOAD_BYTES:
                    return self._send_at_once(stream.read(size), key, digest)
                # The name depends on the bytes: a repeated command continues the upload, and the
                # server recognizes a request whose answer was lost.
                found = digest_of_stream(stream)
                check_digest(digest, found, str(path))
                if key is None and self._used(blob_key(found)) == size:
                    return Blob(blob_key(found), size, found)
                name = hashlib.sha256(f"{key}:{found}:{size}".encode()).hexdigest()[:32]
                for attempt in range(UPLOAD_TRIES):
                    is_direct = self._bucket.send(stream, size, name)
                    if not is_direct:
                        upload(self._server, stream, size, name=name, chunk=UPLOAD_BYTES)
                    body = KeepRequest(size=size, key=key, digest=found, direct=is_direct)
                    try:
                        return self._keep(name, body)
                    except NotFoundError:  # a prune removed the pieces of a paused upload
                        if attempt + 1 == UPLOAD_TRIES:
                            raise
        except OSError as error:
            raise StoreError(f"{path} cannot be sent: {error}") from error
        raise AssertionError("not reached")

    def _keep(self, name: str, body: KeepRequest) -> Blob:
        path = f"/v1/uploads/{name}/keep"
        while True:
            kept = self._server.ask("POST", path, Blob | None, body=body, repeats=True)
            if kept is not None:  # None: the server is still reading the bytes
                return kept

    def _send_at_once(self, data: bytes, key: str | None, digest: str | None) -> Blob:
        named = {"key": key, "digest": digest}
        query = {name: value for name, value in named.items() if value is not None}
        return self._server.ask("POST", "/v1/blobs", Blob, query=query, body=data, repeats=True)

    def _pieces(self, key: str) -> Iterator[bytes]:
        size, offset = self.size(key), 0
        if size <= UPLOAD_BYTES:
            yield from self._through_server(key, 0, size)
            return
        with self._bucket.reading(key) as read:
            while offset < size:
                data = read(offset, min(size, offset + DIRECT_BYTES) - 1)
                if not data:
                    yield from self._through_server(key, offset, size)
                    return
                offset += len(data)
                yield data

    def _through_server(self, key: str, offset: int, size: int) -> Iterator[bytes]:
        while offset < size:
            end = min(size, offset + UPLOAD_BYTES) - 1
            data = self._server.whole(
                "GET", f"/v1/blobs/{key}", headers={"Range": f"bytes={offset}-{end}"}
            )
            if not data:
                raise StoreError(f"{key} has {size} bytes, but the server sends only {offset}")
            offset += len(data)
            yield data

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore.read`: only these bytes are transferred."""
        found = bytearray()
        while len(found) < length:
            begin = start + len(found)
            end = min(start + length, begin + UPLOAD_BYTES) - 1
            data = self._server.whole(
                "GET", f"/v1/blobs/{key}", headers={"Range": f"bytes={begin}-{end}"}
            )
            found += data
            if len(data) < end - begin + 1:
                break
        return bytes(found)

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """See `BlobStore.exists`."""
        try:
            return self._used(key) is not None
        except UsageError:  # a viewer does not refer to blobs
            return self._facts(key) is not None

    def size(self, key: str) -> int:
        """See `BlobStore.size`."""
        found = self._facts(key)
        if found is None:
            raise NotFoundError(f"there is no blob {key!r}; it was never stored, or it was pruned")
        return found

    def _used(self, key: str) -> int | None:
        """Return the size of a blob that is about to be referenced; None: it does not exist."""
        return self._server.ask("POST", f"/v1/blob-uses/{key}", int | None, repeats=True)

    def _facts(self, key: str) -> int | None:
        return self._server.ask("GET", f"/v1/blob-sizes/{key}", int | None)

    def delete(self, key: str) -> bool:
        """Refuse: the server's own `rayjobs prune` deletes."""
        raise UsageError("blobs are deleted on the server's own machine: `rayjobs prune` there")

    def list(self, prefix: str = "") -> Iterator[str]:
        """Refuse: see `delete`."""
        raise UsageError("blobs are listed on the server's own machine only")
