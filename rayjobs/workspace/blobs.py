"""Blobs: bytes by key, written atomically. This module stores them in a folder."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from rayjobs.core.durable import make_folders, sync_files, sync_folder, sync_folders
from rayjobs.core.errors import (
    DamagedError,
    NotFoundError,
    RayjobsError,
    StorageFullError,
    StoreError,
    UsageError,
)
from rayjobs.core.files import replacing
from rayjobs.core.ids import token
from rayjobs.core.safe_delete import OwnFolder, Removed
from rayjobs.injob.lazy_dataclass import dataclass

CHUNK_BYTES = 1 << 20
TEMPORARY = ".tmp"
UPLOADS = "uploads/"  # keys of pieces that a server receives; pruned when they are abandoned
HASHED_AT_MOST = 16 * 1024**2  # bytes: stored files up to this size are hashed before reuse
ABANDONED_S = 86_400.0  # a temporary file untouched for this long belongs to a dead process


@dataclass(frozen=True)
class Blob:
    """The key of stored bytes, their size, and their ``sha256:…`` digest."""

    key: str
    size: int
    digest: str


@dataclass(frozen=True)
class Stored:
    """A blob as a prune sees it.

    Attributes:
        unused_s: The time since it was stored or last relied on (`BlobStore.exists`).
    """

    key: str
    size: int
    unused_s: float


class BlobStore(Protocol):
    """Bytes by key.

    A key is a relative path with ``/`` between its parts. A write is atomic, and durable once
    `put_…` returns. Threads and processes may use a store concurrently.

    Raises (all methods):
        UsageError: the key is not valid.
        StorageFullError: no space is left; the existing content is unchanged.
        StoreError: the storage cannot be read or written.
    """

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """Store a file's bytes under `key`, replacing existing content.

        Args:
            digest: ``sha256:…`` that the bytes must have; a difference raises StoreError and
                changes nothing.
        """
        ...

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """Store bytes under `key`, replacing existing content."""
        ...

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """Store a file's bytes under the `blob_key` of their digest, unless already stored."""
        ...

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """Store many small files as `add_file` does, but faster than one by one.

        Returns for each file its blob, or the error if it was not stored.
        """
        ...

    def open(self, key: str) -> BinaryIO:
        """Return a seekable file for reading. Raises NotFoundError."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; none past the end. Raises NotFoundError."""
        ...

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """Write a blob to `path`, atomically. Raises NotFoundError."""
        ...

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """Return whether there is a blob under the key.

        If so, it is then kept for at least an hour even if nothing refers to it. A caller that
        finds the blob does not store it, but still needs time to refer to it.

        Args:
            quick: A person waits, so fail soon if the storage does not answer.
        """
        ...

    def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError."""
        ...

    def delete(self, key: str) -> bool:
        """Remove a blob; return False if there was none."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Return the keys that begin with `prefix`, sorted."""
        ...


@runtime_checkable
class PrunableBlobs(BlobStore, Protocol):
    """A `BlobStore` whose unused blobs this process can remove."""

    def stored(self) -> Iterator[Stored]:
        """Return all blobs with their sizes and ages for a prune, in any order."""
        ...

    def discard(self, keys: Iterable[str], *, unused_s: float) -> Removed:
        """Remove the given blobs that were neither stored nor relied on for `unused_s`.

        A process that stores or relies on a blob at the same time does not lose it.
        """
        ...

    def put_back(self, key: str) -> None:
        """Restore the key of a blob that a prune set aside before it died."""
        ...


def blob_key(digest: str) -> str:
    """Return the key for bytes with a digest, e.g. ``files/sha256/ab/ab…``.

    Raises:
        UsageError: it is not a digest.
    """
    kind, _, value = digest.partition(":")
    if not kind.isalnum() or len(value) < 16 or set(value) - set("0123456789abcdef"):
        raise UsageError(f"{digest!r} is not a digest such as sha256:0f…")
    return f"files/{kind}/{value[:2]}/{value}"


class FolderBlobs:
    """A `BlobStore` in a folder: one file per blob, written under a temporary name and renamed."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._temporary = self.root / TEMPORARY
        with _storage_errors(self.root):
            make_folders(self._temporary)
            drop_abandoned(self._temporary)

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """See `BlobStore.put_file`."""
        target = self._path(key)
        with open_source(path) as source:
            most = os.fstat(source.fileno()).st_size
            return self._put(source, digest, lambda _: (key, target), str(path), most_bytes=most)

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """See `BlobStore.put_bytes`."""
        target = self._path(key)
        return self._put(io.BytesIO(data), None, lambda _: (key, target), key)

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.add_file`."""
        if digest is not None:
            key = blob_key(digest)
            size = Path(path).stat().st_size if Path(path).exists() else -1
            if self.exists(key) and self._is_whole(key, size, digest):
                return Blob(key, size, digest)

        def by_digest(found: str) -> tuple[str, Path]:
            return blob_key(found), self._path(blob_key(found))

        with open_source(path) as source:
            most = os.fstat(source.fileno()).st_size
            return self._put(source, digest, by_digest, str(path), keep=True, most_bytes=most)

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """See `BlobStore.add_files`."""
        found: list[Blob | RayjobsError] = []
        drafts: list[tuple[Path, Path]] = []
        try:
            for path in paths:
                try:
                    found.append(self._draft(path, drafts))
                except RayjobsError as error:
                    found.append(error)
            with _storage_errors(self.root):
                # Bytes first, then names: a named file is complete even after a power cut.
                sync_files([draft for draft, _ in drafts])
                folders = {target.parent for _, target in drafts}
                for folder in folders:
                    make_folders(folder)
                for draft, target in drafts:
                    draft.replace(target)
                sync_folders(folders)
        finally:
            for draft, _ in drafts:
                draft.unlink(missing_ok=True)
        return found

    def _draft(self, path: Path, drafts: list[tuple[Path, Path]]) -> Blob:
        """Copy a file to a temporary name; add its destination to `drafts` unless it is stored."""
        draft = self._temporary / f"{os.getpid()}-{token(8)}"
        with open_source(path) as source, _storage_errors(self.root):
            most = os.fstat(source.fileno()).st_size
            descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as sink:
                    size, digest = _copy(source, sink, most)
                key = blob_key(digest)
                if self.exists(key) and self._is_whole(key, size, digest):
                    draft.unlink()
                else:
                    drafts.append((draft, self._path(key)))
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
        return Blob(key, size, digest)

    def open(self, key: str) -> BinaryIO:
        """See `BlobStore.open`."""
        path = self._path(key)
        with _storage_errors(path, key=key):
            return path.open("rb")

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore.read`."""
        with self.open(key) as source, _storage_errors(self.root):
            source.seek(start)
            return source.read(length)

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.get_to`."""
        with self.open(key) as source, _storage_errors(Path(path)), replacing(path) as draft:
            with open(draft, "xb") as sink:
                size, found = _copy(source, sink)
            check_digest(digest, found, f"the blob {key!r} of {self.root}")
        return Blob(key, size, found)

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """See `BlobStore.exists`."""
        path = self._path(key)
        try:
            os.utime(path)  # `rayjobs prune` spares recently touched files
        except PermissionError:
            pass  # another user's or a read-only workspace: this user cannot prune it
        except OSError as error:
            if error.errno != errno.EROFS:
                return False
        return path.is_file()

    def size(self, key: str) -> int:
        """See `BlobStore.size`."""
        path = self._path(key)
        with _storage_errors(path, key=key):
            return path.stat().st_size

    def delete(self, key: str) -> bool:
        """See `BlobStore.delete`."""
        path = self._path(key)
        with _storage_errors(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `BlobStore.list`."""
        # Walk only the folder that contains the prefix.
        start = self.root / prefix.rpartition("/")[0]
        found = []
        for folder, folders, files in os.walk(start):
            if Path(folder) == self.root:
                folders[:] = [name for name in folders if name != TEMPORARY]
            for name in files:
                key = (Path(folder) / name).relative_to(self.root).as_posix()
                if key.startswith(prefix):
                    found.append(key)
        return iter(sorted(found))

    # -- pruning --------------------------------------------------------------------------------

    def stored(self) -> Iterator[Stored]:
        """See `BlobStore.stored`."""
        now = time.time()  # wall time, like file times
        with OwnFolder(self.root) as folder:
            for key, info in folder.walk():
                if not key.startswith(f"{TEMPORARY}/"):  # `drop_abandoned` takes care of these
                    yield Stored(key, info.st_size, now - info.st_mtime)

    def discard(self, keys: Iterable[str], *, unused_s: float) -> Removed:
        """See `BlobStore.discard`."""
        removed, cutoff = Removed(), time.time() - unused_s
        with OwnFolder(self.root) as folder:
            for key in sorted(keys):
                removed.add(folder.remove(key, only_if=lambda info: info.st_mtime < cutoff))
        return removed

    def put_back(self, key: str) -> None:
        """See `BlobStore.put_back`."""
        with OwnFolder(self.root) as folder:
            folder.remove(key, only_if=lambda _info: False)

    # -- writing -----------------------------------------------------------------------------

    def _put(
        self,
        source: BinaryIO,
        digest: str | None,
        locate: _Locate,
        what: str,
        *,
        keep: bool = False,
        most_bytes: int | None = None,
    ) -> Blob:
        """Copy, check, fsync, rename; with `keep`, existing complete bytes stay."""
        temporary = self._temporary / f"{os.getpid()}-{token(8)}"
        with _storage_errors(self.root):
            try:
                descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as sink:
                    size, found = _copy(source, sink, most_bytes)
                    check_digest(digest, found, what)
                    key, target = locate(found)
                    if keep and self.exists(key) and self._is_whole(key, size, found):
                        return Blob(key, size, found)
                    sink.flush()
                    os.fsync(sink.fileno())
                make_folders(target.parent)
                temporary.replace(target)
                sync_folder(target.parent)
            finally:
                temporary.unlink(missing_ok=True)
        return Blob(key, size, found)

    def _is_whole(self, key: str, size: int, digest: str) -> bool:
        """Return whether stored bytes match their key; if not, the caller stores them again.

        For large files, only the size is compared: reading them costs as much as writing them.
        """
        try:
            path = self._path(key)
            if path.stat().st_size != size:
                return False
            if size > HASHED_AT_MOST:
                return True
            with path.open("rb") as source:
                return _copy(source, io.BytesIO())[1] == digest
        except OSError:
            return False

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*check_key(key))


def check_key(key: str) -> list[str]:
    """Return the parts of a key.

    Raises:
        UsageError: it is not one.
    """
    parts = key.split("/")
    bad = (
        not key
        or "\0" in key
        or any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts)
        or parts[0] == TEMPORARY
    )
    if bad:
        raise UsageError(
            f"{key!r} is not a blob key: give a relative path without empty parts, '.' and '..', "
            f"each part at most 255 bytes long"
        )
    return parts


def drop_abandoned(folder: Path) -> None:
    """Remove the temporary files of processes that died more than a day ago."""
    oldest = time.time() - ABANDONED_S  # wall time, like file times
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process may remove it first
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                Path(entry).unlink()


class _Locate(Protocol):
    """Returns the key and path for bytes with a digest."""

    def __call__(self, digest: str, /) -> tuple[str, Path]: ...


def _copy(source: BinaryIO, sink: BinaryIO, most: int | None = None) -> tuple[int, str]:
    """Copy all bytes, or the first `most`; return their number and digest.

    With `most`, a file to which another process keeps appending ends at its initial size.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES if most is None else min(CHUNK_BYTES, most - size)):
        digest.update(chunk)
        sink.write(chunk)
        size += len(chunk)
    return size, f"sha256:{digest.hexdigest()}"


def check_digest(wanted: str | None, found: str, what: str) -> None:
    """Refuse bytes whose digest differs from the announced one. Raises DamagedError."""
    if wanted is not None and wanted != found:
        raise DamagedError(
            f"{what} has the digest {found} instead of {wanted}: it changed while it was read, "
            f"or it is damaged; nothing was stored. Try again when no program writes to it",
            wanted=wanted,
            found=found,
        )


def open_source(path: str | Path) -> BinaryIO:
    """Open a regular file in order to store it.

    Raises:
        NotFoundError: there is no such file.
        StoreError: it cannot be read, or is a FIFO, socket, device or folder.
    """
    try:
        # Without blocking: a FIFO may have replaced the file since the last check.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path} to store") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be stored: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} cannot be stored: it is not a file")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _storage_errors(where: Path, *, key: str | None = None) -> Iterator[None]:
    """Convert OSErrors to rayjobs errors; with `key`, a missing file too."""
    try:
        yield
    except FileNotFoundError as error:
        if key is None:
            raise StoreError(f"{where} cannot be used: {error}") from error
        raise NotFoundError(
            f"there is no blob {key!r} ({where}); it was never stored, or it was pruned", key=key
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"no space is left for files in {where} ({error.strerror}); the existing files are "
                f"unchanged. Free space there (try `df -h {where}`).",
                path=str(where),
            ) from error
        raise StoreError(
            f"files in {where} cannot be read or written: {error.strerror or error}; check the "
            f"folder's owner and permissions",
            path=str(where),
        ) from error
