"""Opens the storage that a datastore record describes."""

from __future__ import annotations

from collections.abc import Callable

from rayjobs.datastore.backends.base import Backend, Folder, StoredFile
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import InvalidReference

__all__ = ["Backend", "Folder", "StoredFile", "open_backend", "open_directly", "reach_through"]


_through: Callable[[DatastoreRecord], Backend] | None = None


def reach_through(opener: Callable[[DatastoreRecord], Backend] | None) -> None:
    """From now on, reach all storages except the web through `opener`; None: directly.

    This is for a client that has neither the disks nor the credentials of its workspace's storages.
    """
    global _through
    _through = opener


def open_backend(record: DatastoreRecord) -> Backend:
    """Return the storage behind `record`, without contacting it.

    Raises:
        InvalidReference: this release does not know the record's kind or one of its settings.
    """
    if _through is not None and record.kind != "web":
        return _through(record)
    return open_directly(record)


def open_directly(record: DatastoreRecord) -> Backend:
    """Return the storage behind `record` as this machine accesses it; see `open_backend`."""
    if record.kind == "local":
        from rayjobs.datastore.backends.local import LocalBackend

        return LocalBackend.from_record(record)
    if record.kind == "s3":
        from rayjobs.datastore.backends.s3 import S3Backend

        return S3Backend.from_record(record)
    if record.kind == "web":
        from rayjobs.datastore.backends.web import WebBackend

        return WebBackend.from_record(record)
    if record.kind == "fsspec":
        from rayjobs.datastore.backends.fsspec import FsspecBackend

        return FsspecBackend.from_record(record)
    raise InvalidReference(
        f"datastore {record.name!r} is of kind {record.kind!r}; this release knows local, s3, "
        "fsspec and web."
    )
