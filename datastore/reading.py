"""Local paths for a dataset's files, for readers that run in this process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.digests import digest_of_file
from rayjobs.datastore.errors import DataChanged
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.progress import Meter, ProgressCallback
from rayjobs.datastore.sources import OpenRecord, record_for

if TYPE_CHECKING:
    from rayjobs.datastore.datasets import AbstractDataset


def default_cache_root() -> Path:
    """Return the user's cache folder: `DATASTORE_CACHE`, else below the usual cache folder."""
    chosen = os.environ.get("DATASTORE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "rayjobs" / "data"


def local_files(dataset: AbstractDataset, cache_root: Path | None = None) -> list[tuple[str, Path]]:
    """Return (shown path, local path) of every file: in place where it is local, else cached.

    Raises:
        DataChanged: a local file is not the one of the dataset's version.
        DatastoreError: a file cannot be had.
    """
    found: list[tuple[str, Path]] = []
    cache: NodeCache | None = None
    records = dataset.records
    for name in dataset.manifest.datastores:
        backend = open_backend(record_for(name, records.__getitem__))
        for entry in dataset.manifest:
            if entry.datastore != name:
                continue
            if backend.local_path(entry.key) is not None:
                local = check_local(entry, backend)
            else:
                cache = cache or NodeCache(cache_root or default_cache_root())
                local = cache.ensure(entry, backend).path
            found.append((entry.path, local))
    return sorted(found)


def with_digests(
    manifest: Manifest, open_record: OpenRecord, progress: ProgressCallback | None = None
) -> Manifest:
    """Return `manifest` with the digest of every local file that has none, by reading it.

    What lies elsewhere keeps its storage's own mark, which needs no reading.
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


def check_local(entry: FileEntry, backend: Backend) -> Path:
    """Return where a local file lies, if it still is the file of the manifest.

    A file that was touched or copied, but has the recorded digest, is the same file.

    Raises:
        DataChanged: it is not.
    """
    local = backend.local_path(entry.key)
    if local is None:
        raise DataChanged(f"{entry.key!r} does not lie on this machine.")
    now = backend.stat(entry.key)
    if now is not None and now.size == entry.size:
        if now.etag == entry.etag:
            return local
        if entry.digest and digest_of_file(local) == entry.digest:
            return local
    raise DataChanged(
        f"{local} is not the file that this version of the data recorded"
        f"{'; it is gone' if now is None else ''}. Register a new version, or put the old "
        "file back."
    )
