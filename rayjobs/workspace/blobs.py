"""Blobs: bytes by key, written once and whole; in a folder here, in object storage elsewhere."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from rayjobs.core.durable import make_folders, sync_files, sync_folder, sync_folders
from rayjobs.core.errors import (
    NotFoundError,
    RayjobsError,
    StorageFullError,
    StoreError,
    UsageError,
)
from rayjobs.core.files import replacing
from rayjobs.core.ids import token
from rayjobs.core.safe_delete import OwnFolder, Removed

CHUNK_BYTES = 1 << 20
TEMPORARY = ".tmp"
UPLOADS = "uploads/"  # keys of the pieces that a server receives; pruned when they are abandoned
HASHED_AT_MOST = 16 * 1024**2  # bytes: what is kept and not larger is read before it is trusted
ABANDONED_S = 86_400.0  # a temporary file untouched for so long is of a process that died


@dataclass(frozen=True)
class Blob:
    """What was stored: its key, size in bytes, and ``sha256:…`` of the bytes."""

    key: str
    size: int
    digest: str


@dataclass(frozen=True)
class Stored:
    """A blob as a prune sees it.

    Attributes:
        unused_s: How long ago it was stored, or somebody relied on it (`BlobStore.exists`).
    """

    key: str
    size: int
    unused_s: float


class BlobStore(Protocol):
    """Bytes by key.

    A key is a relative path with ``/`` between its parts. What a key holds is there as a whole
    or not at all, durably once `put_…` returns. Safe from threads and processes.

    Raises (all methods):
        UsageError: the key is not one.
        StorageFullError: no space is left; what was there before is unchanged.
        StoreError: the storage cannot be read or written.
    """

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """Store a file's bytes under `key`, replacing what was there.

        Args:
            digest: ``sha256:…`` that the bytes must have; others raise StoreError and change
                nothing.
        """
        ...

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """Store bytes under `key`, replacing what was there."""
        ...

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """Store a file's bytes under `blob_key` of their digest; bytes that are there stay."""
        ...

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """Store many small files as `add_file` does, faster than one by one.

        Returns what became of each: its blob, or why that one is not stored.
        """
        ...

    def open(self, key: str) -> BinaryIO:
        """Return a seekable file for reading. Raises NotFoundError."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`; none behind the end. Raises NotFoundError."""
        ...

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """Write a blob to `path`, which gets it as a whole or not at all. Raises NotFoundError."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether the key holds something.

        What does is then kept for an hour at least, also if nothing refers to it: a caller that
        stores nothing since it is there already goes on to refer to it.
        """
        ...

    def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError."""
        ...

    def delete(self, key: str) -> bool:
        """Remove a blob; False when there was none."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Return the keys that begin with `prefix`, sorted."""
        ...


@runtime_checkable
class PrunableBlobs(BlobStore, Protocol):
    """A `BlobStore` whose unused blobs can be removed from here."""

    def stored(self) -> Iterator[Stored]:
        """Return all blobs with their sizes and ages, in no order, for a prune."""
        ...

    def discard(self, keys: Iterable[str], *, unused_s: float) -> Removed:
        """Remove those of these blobs that were neither stored nor relied on for `unused_s`.

        Nobody loses a blob who stores it, or relies on it, at the same time.
        """
        ...

    def put_back(self, key: str) -> None:
        """Give a blob its key back that a prune has set aside, and then died."""
        ...


def blob_key(digest: str) -> str:
    """Return the key of bytes that are kept by their digest, e.g. ``files/sha256/ab/ab…``.

    Raises:
        UsageError: it is not a digest.
    """
    kind, _, value = digest.partition(":")
    if not kind.isalnum() or len(value) < 16 or set(value) - set("0123456789abcdef"):
        raise UsageError(f"{digest!r} is not a digest such as sha256:0f…")
    return f"files/{kind}/{value[:2]}/{value}"


class FolderBlobs:
    """A `BlobStore` in a folder: a file for each blob, first under another name, then renamed."""

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
                # Bytes first, names after: what has a name is whole even after a power cut.
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
        """Copy a file below a temporary name, and note where it goes unless it is there."""
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

    def exists(self, key: str) -> bool:
        """See `BlobStore.exists`."""
        path = self._path(key)
        try:
            os.utime(path)  # `rayjobs prune` leaves what was touched lately
        except PermissionError:
            pass  # another user's workspace, or a read-only one: nothing is pruned from here
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
        # Only the folder that the prefix leads to is walked.
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

    # -- what may go -------------------------------------------------------------------------

    def stored(self) -> Iterator[Stored]:
        """See `BlobStore.stored`."""
        now = time.time()  # compared with file times, which are wall time
        with OwnFolder(self.root) as folder:
            for key, info in folder.walk():
                if not key.startswith(f"{TEMPORARY}/"):  # of those `drop_abandoned` removes some
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
        place: _Place,
        what: str,
        *,
        keep: bool = False,
        most_bytes: int | None = None,
    ) -> Blob:
        """Copy, check, fsync, rename; with `keep`, bytes that are there already stay."""
        temporary = self._temporary / f"{os.getpid()}-{token(8)}"
        with _storage_errors(self.root):
            try:
                descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as sink:
                    size, found = _copy(source, sink, most_bytes)
                    check_digest(digest, found, what)
                    key, target = place(found)
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
        """Return whether kept bytes are what their key says; damaged ones are written again.

        Large ones are only measured: to read them costs as much as to write them.
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
            f"{key!r} is not a key of a blob: give a relative path without empty parts, "
            f"'.' and '..', at most 255 bytes each"
        )
    return parts


def drop_abandoned(folder: Path) -> None:
    """Remove the temporary files of processes that died a day ago."""
    oldest = time.time() - ABANDONED_S  # compared with file times, which are wall time
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process is as tidy
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                Path(entry).unlink()


class _Place(Protocol):
    """Says where bytes with a digest go."""

    def __call__(self, digest: str, /) -> tuple[str, Path]: ...


def _copy(source: BinaryIO, sink: BinaryIO, most: int | None = None) -> tuple[int, str]:
    """Copy all bytes, or the first `most`; return their number and digest.

    A file that somebody appends to all the time has no end: its size at the start is one.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES if most is None else min(CHUNK_BYTES, most - size)):
        digest.update(chunk)
        sink.write(chunk)
        size += len(chunk)
    return size, f"sha256:{digest.hexdigest()}"


def check_digest(wanted: str | None, found: str, what: str) -> None:
    """Refuse bytes that have another digest than announced. Raises StoreError."""
    if wanted is not None and wanted != found:
        raise StoreError(
            f"{what} has the digest {found} instead of {wanted}: it changed while it was read, "
            f"or it is damaged; nothing was stored. Repeat once no program writes to it",
            wanted=wanted,
            found=found,
        )


def open_source(path: str | Path) -> BinaryIO:
    """Open a regular file that is to be stored.

    Raises:
        NotFoundError: there is none.
        StoreError: it cannot be read, or is a FIFO, socket, device or folder.
    """
    try:
        # Without waiting: a FIFO may have taken the file's place since somebody looked at it.
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
    """Say the operating system's errors in our words; with `key`, its absence too."""
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
                f"no space is left for files in {where} ({error.strerror}); what was there is "
                f"unchanged. Free space there (try `df -h {where}`).",
                path=str(where),
            ) from error
        raise StoreError(
            f"files in {where} cannot be read or written: {error.strerror or error}; check the "
            f"folder's owner and rights",
            path=str(where),
        ) from error
