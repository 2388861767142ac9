"""Local paths for a dataset's files, for readers that run in this process."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.cache_root import default_cache_root
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import digest_of_file
from rayjobs.datastore.errors import DataChanged
from rayjobs.datastore.looks import Look, etag_of, look_at, what
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.progress import Meter, ProgressCallback
from rayjobs.datastore.sources import OpenRecord, Source, is_url_root, record_for
from rayjobs.injob.lazy_dataclass import dataclass

# A file of another size is another file; its digest is only displayed, so do not read large files
# for it.
_MOST_SHOWN_BYTES = 64 << 20


class HasFiles(Protocol):
    """The part of a dataset that is read here."""

    @property
    def name(self) -> str:
        """The registered name, or ""."""

    @property
    def version(self) -> int | None:
        """The registered version."""

    @property
    def registered_at(self) -> str:
        """When it was registered."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its sources."""

    @property
    def records(self) -> Mapping[str, DatastoreRecord]:
        """The records of its datastores."""

    @property
    def manifest(self) -> Manifest:
        """Its files."""


@dataclass(frozen=True)
class Version:
    """The displayed name of the version that a file belongs to; empty if there is none.

    `sources` are the registered locations, in command-line notation.
    """

    name: str = ""
    registered_at: str = ""
    sources: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: HasFiles) -> Version:
        """Return the displayed name of the version that `dataset` is."""
        if not dataset.name:
            return cls()
        sources = tuple(command_word(source) for source in dataset.sources)
        return cls(f"{dataset.name}:{dataset.version}", dataset.registered_at, sources)


def command_word(source: Source) -> str:
    """Return a source in command-line notation."""
    if source.datastore == "file:///":
        return f"/{source.path}"
    return f"{source.datastore}/{source.path}".rstrip("/")


def local_files(dataset: HasFiles, cache_root: Path | None = None) -> list[tuple[str, Path]]:
    """Return (shown path, local path) of every file: in place if it is local, else cached.

    Raises:
        DataChanged: a local file is not the one of the dataset's version.
        DatastoreError: a file is not available.
    """
    found: list[tuple[str, Path]] = []
    cache: NodeCache | None = None
    records = dataset.records
    version = Version.of(dataset)
    for name in dataset.manifest.datastores:
        backend = open_backend(record_for(name, records.__getitem__))
        for entry in dataset.manifest:
            if entry.datastore != name:
                continue
            if backend.local_path(entry.key) is not None:
                local = check_local(entry, backend, version)
            else:
                cache = cache or NodeCache(cache_root or default_cache_root())
                local = cache.ensure(entry, backend).path
            found.append((entry.path, local))
    return sorted(found)


def with_digests(
    manifest: Manifest, open_record: OpenRecord, progress: ProgressCallback | None = None
) -> Manifest:
    """Return `manifest` with missing digests of local files, computed by reading them.

    Other files keep their storage's mark, which requires no reading.
    """
    backends = {name: open_backend(record_for(name, open_record)) for name in manifest.datastores}
    unread = [
        entry
        for entry in manifest
        if not entry.digest and backends[entry.datastore].local_path(entry.key) is not None
    ]
    meter = Meter("register", len(unread), sum(entry.size for entry in unread), progress)
    digests: dict[str, str] = {}
    for entry in unread:
        local = check_local(entry, backends[entry.datastore])
        digests[entry.path] = digest_of_file(local, meter.add_bytes)
        meter.add_file()
    if unread:
        meter.finish()
    files = tuple(
        replace(entry, digest=digests.get(entry.path, entry.digest)) for entry in manifest
    )
    return replace(manifest, files=files)


def check_local(entry: FileEntry, backend: Backend, version: Version | None = None) -> Path:
    """Return the path of a local file, if it is still the file of the manifest.

    A file that was touched or copied but has the recorded digest is the same file.

    Raises:
        DataChanged: it is not; the message has the recorded state, the current state, and how to
            restore the recorded file.
    """
    return checked(entry, backend, version)[0]


def checked(
    entry: FileEntry, backend: Backend, version: Version | None = None
) -> tuple[Path, Look]:
    """Return the result of `check_local`, and the file's stat.

    Raises: as `check_local`.
    """
    local = backend.local_path(entry.key)
    if local is None:
        raise DataChanged(f"{entry.key!r} is not on this machine.")
    look, digest = None, ""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        look = look_at(local)
        if look[0] == entry.size and etag_of(look) == entry.etag:
            return local, look
        if not local.is_file():
            look = None
        elif entry.digest and (look[0] == entry.size or look[0] <= _MOST_SHOWN_BYTES):
            digest = digest_of_file(local)
            if digest == entry.digest:
                return local, look
    raise DataChanged(_damage(entry, local, look, digest, version or Version()))


def _damage(entry: FileEntry, local: Path, look: Look | None, digest: str, version: Version) -> str:
    name = f"dataset {version.name}" if version.name else "this version of the data"
    since = f" (registered {version.registered_at})" if version.registered_at else ""
    now = "it is gone" if look is None else what(look, digest)
    changed_ns, _, _ = entry.etag.partition("-")
    try:
        before = what((entry.size, int(changed_ns, 16), 0), entry.digest)
    except (ValueError, OverflowError):
        before = f"{entry.size} bytes"
    restore = f"copy the recorded file back to {local}"
    register = "register a new version"
    if not is_url_root(entry.datastore):
        folder = f"{entry.datastore}/{posixpath.dirname(entry.key)}".rstrip("/")
        copy = f"COPY/{posixpath.basename(entry.key)}"
        restore = f"put the recorded file back: rayjobs data put {copy} {folder} --overwrite"
    if version.name and version.sources:
        dataset = version.name.rpartition(":")[0]
        sources = " ".join(version.sources)
        register += f": rayjobs data register {dataset} {sources} --new-version"
    if entry.digest:
        restore += " (any copy with the recorded content is accepted)"
    return (
        f"{local} is not the file that {name} recorded{since}. Recorded: {before}. Now: {now}. "
        f"To restore it, {restore}. To use the current file, {register}."
    )
