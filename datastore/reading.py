"""Local paths for a dataset's files, for readers that run in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from datastore.backends import open_backend
from datastore.cache import NodeCache
from datastore.errors import DataChanged
from datastore.sources import record_for

if TYPE_CHECKING:
    from datastore.datasets import AbstractDataset


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
            local = backend.local_path(entry.key)
            if local is not None:
                now = backend.stat(entry.key)
                if now is None or (now.etag != entry.etag or now.size != entry.size):
                    raise DataChanged(
                        f"{local} is not the file that this version of the dataset recorded. "
                        "Register a new version, or put the old file back."
                    )
            else:
                cache = cache or NodeCache(cache_root or default_cache_root())
                local = cache.ensure(entry, backend).path
            found.append((entry.path, local))
    return sorted(found)
