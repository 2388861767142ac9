"""The location of this user's downloaded data."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_root() -> Path:
    """Return the user's cache folder: `DATASTORE_CACHE`, else one below the usual cache folder."""
    chosen = os.environ.get("DATASTORE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "rayjobs" / "data"
