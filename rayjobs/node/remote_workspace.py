"""A workspace for a node that does not share its disk: all calls go to the target through Ray."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from rayjobs.core.errors import RayjobsError, StoreError
from rayjobs.datastore.errors import DatastoreError
from rayjobs.protocol.names import CHUNK_BYTES
from rayjobs.protocol.workspaces import WorkspaceFacts
from rayjobs.store.base import Store
from rayjobs.store.forwarding import Forwarded
from rayjobs.workspace.blobs import Blob, open_source
from rayjobs.workspace.fetched_blobs import FetchedBlobs
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_blobs import S3Blobs

log = logging.getLogger(__name__)

# For one call. The target may be busy or may restart meanwhile.
ANSWER_S = 120.0
Ask = Callable[..., Any]


def open_remote(target: str, path: str, *, scratch: Path | None = None) -> OpenWorkspace:
    """Return a workspace whose store and blobs are reached through the target's actor.

    Blobs in S3 are read and written directly, if this node can reach them.

    Args:
        scratch: A folder of the node for downloads.

    Raises:
        StoreError: the target does not answer, or cannot open it.
        NotFoundError: it no longer exists.
    """
    ask = partial(ask_target, target)
    facts = WorkspaceFacts.from_json(ask("about", path))
    blobs = None if facts.blobs is None else _direct(facts.blobs, facts.id, scratch)
    return OpenWorkspace(
        path=Path(path),
        id=facts.id,
        name=facts.name,
        store=cast(Store, RemoteStore(ask, path)),
        blobs=blobs or RemoteBlobs(ask, path, facts.blobs),
    )


def _direct(address: S3Address, workspace: str, scratch: Path | None) -> S3Blobs | None:
    """Return the workspace's files in S3 if this node reaches them; None: use the target's calls.

    This lets nodes without credentials or without access to the server run jobs too.
    """
    blobs = S3Blobs(address, scratch or Path(tempfile.gettempdir()) / f"rayjobs-{os.getuid()}")
    try:
        record = blobs.owner()
    except StoreError as error:
        log.info("files go through the target: %s", error)
        return None
    return blobs if record is not None and record.get("id") == workspace else None


def ask_target(target: str, method: str, *args: Any) -> Any:
    """Return the answer of the target's actor. Blocks: call it on a thread.

    Raises:
        StoreError: it does not answer.
        RayjobsError: an error of the workspace.
        DatastoreError: an error of its catalogue.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    from rayjobs.protocol.names import NAMESPACE, actor_name

    try:
        actor = ray.get_actor(actor_name(target), namespace=NAMESPACE)
        return ray.get(actor.workspace.remote(method, *args), timeout=ANSWER_S)
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, (RayjobsError, DatastoreError)):
            raise cause from error
        raise StoreError(
            f"the call {method} of the target {target} failed: {cause or error}"
        ) from error
    except (RayError, ValueError) as error:
        # Ray raises ValueError for an actor that does not exist.
        raise StoreError(f"the target {target} cannot be reached: {error}") from error


class RemoteStore(Forwarded):
    """A `Store` over Ray."""

    def __init__(self, ask: Ask, path: str) -> None:
        """Represent the store of the workspace at `path` on the target's machine."""
        from rayjobs.datastore.catalogue import Catalogue

        super().__init__(Store, partial(ask, "call", path, "store"))
        self.catalogue = Forwarded(Catalogue, partial(ask, "call", path, "catalogue"))

    def close(self) -> None:
        """Leave the target's own store open."""


class RemoteBlobs(FetchedBlobs):
    """A `BlobStore` over Ray: transfers files in pieces, and completes each or stores nothing."""

    def __init__(self, ask: Ask, path: str, address: S3Address | None = None) -> None:
        """Represent the blobs of the workspace at `path` on the target's machine.

        Args:
            address: Where the target keeps them in S3; None: in its folder.
        """
        self.address = address
        self._ask = ask
        self._path = path

    def _call(self, method: str, *args: Any) -> Any:
        return self._ask("call", self._path, "blobs", method, args, {})

    def _upload(self, path: str | Path, key: str | None, digest: str | None) -> Blob:
        try:
            with open_source(path) as stream:
                # Bytes that are appended in the meantime wait for the next call.
                left = os.fstat(stream.fileno()).st_size
                data = stream.read(min(CHUNK_BYTES, left))
                name = self._ask("append", self._path, None, data)
                left -= len(data)
                while data := stream.read(min(CHUNK_BYTES, left)):
                    self._ask("append", self._path, name, data)
                    left -= len(data)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        return cast(Blob, self._ask("keep", self._path, name, key, digest))

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """See `BlobStore.put_file`."""
        return self._upload(path, key, digest)

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """See `BlobStore.put_bytes`."""
        return cast(Blob, self._call("put_bytes", data, key))

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.add_file`."""
        return self._upload(path, None, digest)

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """See `BlobStore.add_files`: all bytes travel as one upload."""
        sizes: list[int] = []
        failed: dict[int, RayjobsError] = {}
        name: str | None = None
        held = bytearray()
        for number, path in enumerate(paths):
            try:
                with open_source(path) as stream:
                    data = stream.read(os.fstat(stream.fileno()).st_size)
            except (RayjobsError, OSError) as error:
                failed[number] = StoreError(f"{path} cannot be read: {error}")
                continue
            sizes.append(len(data))
            held += data
            if len(held) >= CHUNK_BYTES:
                name = self._ask("append", self._path, name, bytes(held))
                held.clear()
        if held or name is None:
            name = self._ask("append", self._path, name, bytes(held))
        stored = iter(self._ask("keep_parts", self._path, name, sizes))
        return [failed.get(number) or next(stored) for number in range(len(paths))]

    def _pieces(self, key: str) -> Iterator[bytes]:
        offset = 0
        while data := self._ask("read", self._path, key, offset):
            offset += len(data)
            yield data

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """See `BlobStore.exists`."""
        return bool(self._call("exists", key))

    def size(self, key: str) -> int:
        """See `BlobStore.size`."""
        return int(self._call("size", key))

    def delete(self, key: str) -> bool:
        """See `BlobStore.delete`."""
        return bool(self._call("delete", key))

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `BlobStore.list`."""
        return iter(self._call("list", prefix))
