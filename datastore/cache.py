"""The node's cache of stored files: keyed by content, verified before visible, fetched once.

    objects/ab/<sha256>        the bytes
    objects/ab/<sha256>.seal   the file's stat when it was verified; the seal's time is the last use
    index/<identity>           the content behind a stored file whose digest was not known before
    partial/<random>           a file being fetched, and its size (.need), which the fetching
                               process locks: unlocked ones are removed
    locks/                     one per file being fetched: a second process waits, then finds it
    usage                      the size of all objects; counted again when space is freed

Users get their own copies (`copy`), or hard links where writes cannot reach them (`link`). An
object with a second link is in use and is never removed, no matter which process made the link or
how it ended; processes that have a removed object open can still read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from pathlib import Path

from rayjobs.core.files import is_locked, locked, write_atomic
from rayjobs.core.text import size_text
from rayjobs.datastore.backends import Backend, StoredFile
from rayjobs.datastore.backends.base import CountBytes, ignore_bytes
from rayjobs.datastore.clones import clone
from rayjobs.datastore.digests import digest_of_file, digest_of_text, hex_of
from rayjobs.datastore.errors import CacheFull, DataIntegrityError, DatastoreError
from rayjobs.datastore.manifest import FileEntry
from rayjobs.injob.identity import boot_id
from rayjobs.injob.lazy_dataclass import dataclass

SPARE_BYTES = 1 << 30
"""The cache leaves at least this much of the disk free."""
FILE_MODE = 0o644
_TRIES = 5  # how often a file may be removed between finding and linking it


@dataclass(frozen=True)
class Cached:
    """A verified file in the cache. `fetched` is True if this call fetched it."""

    path: Path
    digest: str
    size: int
    fetched: bool


class NodeCache:
    """One folder of one node, for all its processes. `max_bytes` None: only the disk limits it."""

    def __init__(
        self, root: Path, *, max_bytes: int | None = None, spare_bytes: int = SPARE_BYTES
    ) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.spare_bytes = spare_bytes
        for name in ("objects", "index", "partial", "locks"):
            (root / name).mkdir(parents=True, exist_ok=True)

    # --- using ---

    def ensure(
        self, entry: FileEntry, backend: Backend, count: CountBytes = ignore_bytes
    ) -> Cached:
        """Return the file in the cache, after fetching and verifying it if necessary.

        Raises:
            DataIntegrityError: the fetched bytes are not the requested ones; they are discarded.
            CacheFull: there is no space, and no unused object to remove.
            DatastoreError: the storage cannot provide it.
        """
        identity = self._identity(entry, backend)
        found = self._find(identity, entry)
        if found is not None:
            count(entry.size)
            return found
        with locked(self.root / "locks" / identity, remove=True):
            found = self._find(identity, entry)
            if found is not None:
                count(entry.size)
                return found
            return self._fetch(identity, entry, backend, count)

    def link(
        self, entry: FileEntry, backend: Backend, to: Path, count: CountBytes = ignore_bytes
    ) -> Cached:
        """Make `to` a hard link of the cached file (a copy on another file system).

        Use it only where no user can write to the link, such as below a private layer: writes
        through the link would change the cache.

        Raises: as `ensure`.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            cached = self.ensure(entry, backend, count)
            try:
                try:
                    os.link(cached.path, to)
                except OSError as error:
                    if isinstance(error, FileNotFoundError | FileExistsError):
                        raise
                    shutil.copyfile(cached.path, to)
                return cached
            except FileNotFoundError:
                count(-entry.size)  # removed just now to make space
        raise self._too_busy(entry)

    def copy(
        self,
        entry: FileEntry,
        backend: Backend,
        to: Path,
        count: CountBytes = ignore_bytes,
        *,
        mode: int = FILE_MODE,
    ) -> None:
        """Make `to` a private copy of the cached file, which shares its blocks where possible.

        Raises: as `ensure`; OSError: `to` cannot be written.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        source = self.open(entry, backend, count)
        try:
            clone(source, to, mode=mode)
        finally:
            os.close(source)

    def open(self, entry: FileEntry, backend: Backend, count: CountBytes = ignore_bytes) -> int:
        """Return a descriptor for reading the cached file; it stays valid if the file is removed.

        Raises: as `ensure`.
        """
        for _ in range(_TRIES):
            cached = self.ensure(entry, backend, count)
            with contextlib.suppress(FileNotFoundError):
                return os.open(cached.path, os.O_RDONLY | os.O_CLOEXEC)
            count(-entry.size)
        raise self._too_busy(entry)

    def has(self, entry: FileEntry, backend: Backend) -> bool:
        """Return whether the file is in the cache and verified."""
        return self._find(self._identity(entry, backend), entry) is not None

    def used_bytes(self) -> int:
        """Return the current size of all objects."""
        return sum(path.stat().st_size for path in self._objects())

    # --- finding ---

    def _identity(self, entry: FileEntry, backend: Backend) -> str:
        if entry.digest:
            return hex_of(entry.digest)
        # The storage's mark changes with the bytes, so it identifies them as well as a digest does.
        text = f"{backend.where}\n{entry.key}\n{entry.etag}\n{entry.size}"
        return hex_of(digest_of_text(text))

    def _find(self, identity: str, entry: FileEntry) -> Cached | None:
        digest = entry.digest
        if not digest:
            try:
                digest = (self.root / "index" / identity).read_text()
                hex_of(digest)
            except (OSError, DatastoreError):
                return None
        path = self._object(digest)
        if not self._is_sound(path, digest):
            return None
        return Cached(path, digest, entry.size, fetched=False)

    def _object(self, digest: str) -> Path:
        name = hex_of(digest)
        return self.root / "objects" / name[:2] / name

    def _is_sound(self, path: Path, digest: str) -> bool:
        seal = path.with_name(path.name + ".seal")
        try:
            now = _look_of(path)
        except FileNotFoundError:
            return False
        try:
            if json.loads(seal.read_text()) == now:
                os.utime(seal)
                return True
        except (OSError, ValueError):
            pass  # no seal, or a partial one: the content decides
        # A user wrote to the file, or the machine crashed before a flush: check the bytes.
        try:
            if digest_of_file(path) == digest:
                write_atomic(seal, json.dumps(now))
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    # --- fetching ---

    def _fetch(
        self, identity: str, entry: FileEntry, backend: Backend, count: CountBytes
    ) -> Cached:
        partial = self.root / "partial" / secrets.token_hex(12)
        need = partial.with_suffix(".need")
        claim = self._reserve(entry.size, need)
        reserved = entry.size
        wanted = StoredFile(entry.key, entry.size, entry.etag, entry.digest)
        try:
            digest = _fetch_verified(backend, wanted, partial, count)
            if entry.digest and digest != entry.digest:
                raise DataIntegrityError(
                    f"{entry.key!r} on {backend.where} has digest {digest}; the requested version "
                    f"has {entry.digest}. It was not used."
                )
            # A private layer shows this file's mode, and a job may change its private files.
            partial.chmod(FILE_MODE)
            path = self._object(digest)
            path.parent.mkdir(exist_ok=True)
            if self._is_sound(path, digest):
                self._unreserve(reserved)  # the same bytes are cached under another name
                reserved = 0
            else:
                partial.replace(path)
                reserved = 0  # the object takes the space
                write_atomic(path.with_name(path.name + ".seal"), json.dumps(_look_of(path)))
            if not entry.digest:
                write_atomic(self.root / "index" / identity, digest)
            return Cached(path, digest, entry.size, fetched=True)
        except BaseException as error:
            if reserved:
                self._unreserve(reserved)
            if isinstance(error, OSError):
                raise CacheFull(
                    f"cannot write to the cache at {self.root}: {error.strerror or error}."
                ) from error
            raise
        finally:
            partial.unlink(missing_ok=True)
            need.unlink(missing_ok=True)
            os.close(claim)

    # --- making space ---

    def _reserve(self, size: int, need: Path) -> int:
        """Reserve space; return the descriptor whose lock shows that the fetch is alive.

        A lock instead of a pid: the process and its observer may be in different PID namespaces.
        """
        with locked(self.root / "usage.lock"):
            used = self._kept_usage()
            if not self._fits(used, size):
                used = self._make_space(size)
            claim = os.open(need, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX)
                os.write(claim, str(size).encode())
                write_atomic(self.root / "usage", str(used + size))
            except BaseException:
                os.close(claim)
                raise
        return claim

    def _unreserve(self, size: int) -> None:
        with locked(self.root / "usage.lock"):
            write_atomic(self.root / "usage", str(max(0, self._kept_usage() - size)))

    def _kept_usage(self) -> int:
        try:
            return int((self.root / "usage").read_text())
        except (OSError, ValueError):
            return self.used_bytes()

    def _fits(self, used: int, size: int) -> bool:
        if self.max_bytes is not None and used + size > self.max_bytes:
            return False
        return shutil.disk_usage(self.root).free - size >= self.spare_bytes

    def _make_space(self, size: int) -> int:
        """Remove the least recently used objects until `size` fits; return the remaining usage."""
        unused: list[tuple[float, Path, int]] = []
        used = self._clean_partials()
        for path in self._objects():
            try:
                status = path.stat()
                used += status.st_size
                if status.st_nlink == 1:
                    unused.append((_last_use(path), path, status.st_size))
            except FileNotFoundError:
                continue
        for _, path, freed in sorted(unused):
            if self._fits(used, size):
                break
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".seal").unlink(missing_ok=True)
            used -= freed
        if not self._fits(used, size):
            bound = (
                f"its limit is {size_text(self.max_bytes)}"
                if self.max_bytes is not None and used + size > self.max_bytes
                else f"{size_text(self.spare_bytes)} of the disk must stay free"
            )
            raise CacheFull(
                f"the cache at {self.root} has no space for {size_text(size)}: "
                f"{size_text(used)} are in use by running jobs, and {bound}. "
                "Raise the limit, free disk space, or mount the data from a shared folder."
            )
        return used

    def _clean_partials(self) -> int:
        """Remove what dead processes left; return the size of what live processes are fetching.

        Call it while holding the lock of `usage`, under which fetches begin.
        """
        size = 0
        living = set()
        folder = self.root / "partial"
        for need in folder.glob("*.need"):
            if is_locked(need):
                living.add(need.stem)
                with contextlib.suppress(FileNotFoundError, ValueError):
                    size += int(need.read_text())
        for path in folder.iterdir():
            if path.stem not in living:
                path.unlink(missing_ok=True)
        return size

    def _objects(self) -> list[Path]:
        return [path for path in (self.root / "objects").glob("??/*") if path.suffix != ".seal"]

    def _too_busy(self, entry: FileEntry) -> CacheFull:
        return CacheFull(
            f"{entry.path!r} was removed from the cache at {self.root} as often as it was fetched: "
            "the cache is too small for the jobs on this node. Raise its limit."
        )


def _fetch_verified(backend: Backend, wanted: StoredFile, to: Path, count: CountBytes) -> str:
    try:
        return backend.fetch(wanted, to, count)
    except DataIntegrityError as error:
        if error.__class__ is not DataIntegrityError:
            raise  # the source has changed: a retry would fail too
        # Bytes can be damaged in transit; if they are damaged at rest, the error repeats.
        return backend.fetch(wanted, to, count)


def _look_of(path: Path) -> list[object]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino, boot_id()]


def _last_use(path: Path) -> float:
    try:
        return path.with_name(path.name + ".seal").stat().st_mtime
    except FileNotFoundError:
        return 0.0
