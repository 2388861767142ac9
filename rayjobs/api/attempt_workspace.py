"""The workspace of a running job, as its script sees it: all calls go through the node agent.

The agent checks the attempt's token on each call. Until its attempt ends, a script can read its
workspace, report its own run, and register models, datasets and environments.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

# Imported here so that a missing package fails now; the caller then falls back to a smaller class.
from rayjobs.api.experiment import Experiment as Experiment
from rayjobs.api.run import JobRun as JobRun
from rayjobs.api.workspace import Workspace
from rayjobs.core import errors, ids
from rayjobs.core.errors import RayjobsError, StoreError, UsageError
from rayjobs.datastore import errors as data_errors
from rayjobs.datastore.catalogue import Catalogue
from rayjobs.injob import run_calls
from rayjobs.injob.channel import Channel, ChannelError
from rayjobs.injob.run_calls import Request, Value
from rayjobs.jobs.records import Job
from rayjobs.protocol import values
from rayjobs.store.base import Store
from rayjobs.store.forwarding import Forwarded
from rayjobs.store.requests import NewJob, NewRun
from rayjobs.workspace.blobs import Blob
from rayjobs.workspace.folder import OpenWorkspace


def workspace_of(channel: Channel) -> Workspace:
    """Return the workspace of the job that a channel belongs to.

    Raises:
        StoreError: the agent does not answer, or the attempt has ended.
    """
    ask = _asking(channel)
    name = os.environ.get("RAYJOBS_WORKSPACE_NAME", "")
    made = Workspace._of(
        OpenWorkspace(
            # Caches next to a workspace, such as unpacked snapshots, belong to the attempt.
            path=Path(channel.root, "workspace"),
            id=name,
            name=name,
            store=cast(Store, ChannelStore(ask)),
            blobs=ChannelBlobs(channel, ask),
        )
    )
    made.wakes_targets = False  # the target that runs this job polls the store
    return made


class Ask(Protocol):
    """Sends a request to the agent and returns the value of its answer."""

    def __call__(self, request: Request[Value], *, once: bool = False) -> Value:
        """See `Channel.call`; raises the error that the agent raised."""


# Each of these calls makes a new version or record, so a repeated call would make two.
ONCE = frozenset(("put_model", "put_environment", "add_dataset"))


def _asking(channel: Channel) -> Ask:
    def ask(request: Request[Value], *, once: bool = False) -> Value:
        try:
            return channel.call(request, once=once)
        except ChannelError as error:
            raise _error_of(error) from error

    return ask


def _error_of(error: ChannelError) -> Exception:
    """Return the error that the agent raised, with its original class."""
    for module in (errors, data_errors):
        kind = getattr(module, error.kind, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(str(error))
    return StoreError(str(error))


class ChannelStore(Forwarded):
    """A `Store` through the agent."""

    def __init__(self, ask: Ask) -> None:
        """Represent the store of the job's workspace."""
        super().__init__(Store, partial(_send, ask, "store"))
        self.catalogue = Forwarded(Catalogue, partial(_send, ask, "catalogue"))

    def submit(self, new: NewJob) -> tuple[Job, bool]:
        """See `Store.submit`; a repeated call returns the job of the first one."""
        if new.idempotency_key is None:
            new = replace(new, idempotency_key=f"{new.parent}-{uuid.uuid4().hex}")
        return cast(tuple[Job, bool], self._send("submit", (new,), {}))

    def start_run(self, new: NewRun) -> tuple[Job, bool]:
        """See `Store.start_run`; a repeated call returns the run of the first one."""
        if new.id is None:
            new = replace(new, id=ids.job_id(new.experiment))
        return cast(tuple[Job, bool], self._send("start_run", (new,), {}))

    def run_writers(self) -> list[tuple[str, Any]]:
        """Return an empty list: a job cannot tell which processes are gone."""
        return []

    def close(self) -> None:
        """Do nothing: the agent keeps the store open."""


def _send(ask: Ask, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the answer of the agent to a call of a part of the workspace."""
    request = run_calls.Method(part, method, values.encode(args), values.encode(kwargs))
    return values.decode(ask(request, once=method in ONCE))


class ChannelBlobs:
    """A `BlobStore` through the agent: bytes travel as files of the attempt's folder."""

    def __init__(self, channel: Channel, ask: Ask) -> None:
        """Represent the blobs of the job's workspace."""
        self._channel = channel
        self._ask = ask

    def _keep(self, path: Path, key: str | None, digest: str | None) -> Blob:
        request = run_calls.KeepBlob(path.name, key, digest)
        return cast(Blob, values.decode(self._ask(request)))

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """See `BlobStore.put_file`."""
        return self._keep(self._copy_of(path), key, digest)

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """See `BlobStore.put_bytes`."""
        target = Path(self._channel.new_file())
        target.write_bytes(data)
        return self._keep(target, key, None)

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.add_file`."""
        return self._keep(self._copy_of(path), None, digest)

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """See `BlobStore.add_files`."""
        found: list[Blob | RayjobsError] = []
        for path in paths:
            try:
                found.append(self.add_file(path))
            except RayjobsError as error:
                found.append(error)
        return found

    def _copy_of(self, path: str | Path) -> Path:
        target = Path(self._channel.new_file())
        try:
            with open(path, "rb") as source, target.open("wb") as sink:
                while data := source.read(1 << 20):
                    sink.write(data)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        return target

    def open(self, key: str) -> BinaryIO:
        """See `BlobStore.open`; returns a copy that is deleted when it is closed."""
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            path = Path(folder, "blob")
            self.get_to(key, path)
            return path.open("rb")

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore.read`."""
        with self.open(key) as stream:
            stream.seek(start)
            return stream.read(length)

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.get_to`."""
        name, blob = self._ask(run_calls.FetchBlob(key, digest))
        try:
            self._channel.take(name, os.fspath(path))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return cast(Blob, values.decode(blob))

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """See `BlobStore.exists`."""
        return self._ask(run_calls.HasBlob(key)) is not None

    def size(self, key: str) -> int:
        """See `BlobStore.size`."""
        size = self._ask(run_calls.HasBlob(key))
        if size is None:
            raise errors.NotFoundError(f"the workspace has no blob {key!r}")
        return size

    def delete(self, key: str) -> bool:
        """Refuse: a script may not remove anything from its workspace. Raises UsageError."""
        raise UsageError(f"a script may not remove the blob {key!r}")

    def list(self, prefix: str = "") -> Iterator[str]:
        """Refuse: a script can only open items by name. Raises UsageError."""
        raise UsageError("a script may not list the blobs of its workspace")
