"""A folder as storage, on this machine or on a file system that all nodes share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rayjobs.datastore.backends.base import CountBytes, Folder, StoredFile, ignore_bytes
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import CHUNK_BYTES
from rayjobs.datastore.errors import (
    AccessDenied,
    DataChanged,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
    InvalidReference,
)
from rayjobs.datastore.refs import clean_path

PARTIAL_MARK = ".partial-"


class LocalBackend:
    """Files below one folder. Links are followed; sockets and pipes are hidden."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    @classmethod
    def from_record(cls, record: DatastoreRecord) -> LocalBackend:
        """Return the backend of a `local` record."""
        root = Path(record.settings.get("root", ""))
        if not root.is_absolute():
            raise InvalidReference(
                f"datastore {record.name!r} needs an absolute folder as root, not {str(root)!r}."
            )
        return cls(root)

    def local_path(self, path: str) -> Path | None:
        """See `Backend`."""
        return self.root / clean_path(path)

    def stat(self, path: str) -> StoredFile | None:
        """See `Backend`."""
        if not clean_path(path):
            return None
        target = self.root / clean_path(path)
        with self._explained(path):
            if not target.is_file():
                return None
        return self._stored(target, clean_path(path))

    def walk(self, path: str) -> Iterator[StoredFile]:
        """See `Backend`."""
        top = self.root / clean_path(path)
        with self._explained(path):
            is_folder = top.is_dir()
        if is_folder:
            yield from self._walk(top, clean_path(path), frozenset())

    def _walk(self, folder: Path, shown: str, above: frozenset[str]) -> Iterator[StoredFile]:
        real = os.path.realpath(folder)
        if real in above:  # a link to a parent folder: its files are already listed
            return
        for item, path, is_folder in self._entries(folder, shown):
            if is_folder:
                yield from self._walk(Path(item.path), path, above | {real})
            else:
                yield self._stored(Path(item.path), path)

    def _entries(self, folder: Path, shown: str) -> list[tuple[os.DirEntry[str], str, bool]]:
        """Return a folder's folders and files: the entry, its path, and whether it is a folder."""
        found = []
        with self._explained(shown):
            for item in sorted(os.scandir(folder), key=lambda entry: entry.name):
                path = f"{shown}/{item.name}" if shown else item.name
                is_folder = item.is_dir()
                if is_folder or (item.is_file() and PARTIAL_MARK not in item.name):
                    found.append((item, path, is_folder))
        return found

    def children(self, path: str) -> list[StoredFile | Folder]:
        """See `Backend`."""
        top = self.root / clean_path(path)
        with self._explained(path):
            if not top.is_dir():
                return []
        return [
            Folder(shown) if is_folder else self._stored(Path(item.path), shown)
            for item, shown, is_folder in self._entries(top, clean_path(path))
        ]

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """See `Backend`."""
        source = self.root / clean_path(file.path)
        try:
            digest = _copy(source, to, count)
            now = self._stored(source, file.path)
        except OSError as error:
            to.unlink(missing_ok=True)
            raise self._explain(error, file.path) from error
        changed = digest != file.digest if file.digest else now.etag != file.etag
        if changed or now.size != file.size:
            to.unlink(missing_ok=True)
            raise DataChanged(
                f"{source} has changed since it was listed ({file.size} bytes then, "
                f"{now.size} now). Register a new version, or put the old file back."
            )
        return digest

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """See `Backend`."""
        source = self.root / clean_path(file.path)
        try:
            with source.open("rb") as stream:
                stream.seek(start)
                data = stream.read(length)
            now = self._stored(source, file.path)
        except OSError as error:
            raise self._explain(error, file.path) from error
        if now.size != file.size or (not file.digest and now.etag != file.etag):
            raise DataChanged(
                f"{source} has changed since it was listed. Register a new version, or put the old "
                f"file back."
            )
        return data

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """See `Backend`."""
        target = self.root / clean_path(path)
        partial = target.with_name(f".{target.name[:100]}{PARTIAL_MARK}{secrets.token_hex(6)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = _copy(source, partial, count, durable=True)
            partial.replace(target)
            stored = self._stored(target, clean_path(path))
        except OSError as error:
            in_file = next((one for one in target.parents if one.is_file()), None)
            if in_file is not None:
                raise InvalidReference(f"{in_file} is a file; give a folder.") from error
            raise self._explain(error, path) from error
        finally:
            with contextlib.suppress(OSError):  # it exists only after a failure or an interruption
                partial.unlink()
        return StoredFile(stored.path, stored.size, stored.etag, digest)

    def remove(self, path: str) -> None:
        """See `Backend`."""
        try:
            (self.root / clean_path(path)).unlink(missing_ok=True)
        except OSError as error:
            raise self._explain(error, path) from error

    def check(self) -> None:
        """See `Backend`."""
        if not self.root.is_dir():
            raise DataNotFound(
                f"folder {self.root} does not exist on this machine. Create it, or mount "
                "its file system."
            )
        try:
            with os.scandir(self.root) as entries:
                next(entries, None)
        except OSError as error:
            raise self._explain(error, "") from error

    def _stored(self, target: Path, shown: str) -> StoredFile:
        try:
            status = target.stat()
        except OSError as error:
            raise self._explain(error, shown) from error
        return StoredFile(shown, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}")

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error, path) from error

    def _explain(self, error: OSError, path: str) -> DatastoreError:
        target = self.root / clean_path(path)
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return DataNotFound(f"{error.filename or target} does not exist.")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return AccessDenied(
                f"{error.filename or target}: {error.strerror}; check the folder's permissions."
            )
        return DatastoreUnavailable(
            f"{error.filename or target}: {error.strerror}; the folder cannot be used now."
        )


def _copy(source: Path, to: Path, count: CountBytes, *, durable: bool = False) -> str:
    running = hashlib.sha256()
    with source.open("rb") as reader, to.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            running.update(chunk)
            writer.write(chunk)
            count(len(chunk))
        if durable:
            writer.flush()
            os.fsync(writer.fileno())
    return "sha256:" + running.hexdigest()
