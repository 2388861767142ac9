"""A stored snapshot as a zip file, for ``Run.restore_snapshot``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rayjobs.core.files import replacing
from rayjobs.snapshots.node import NodeSnapshots


def zip_name(digest: str) -> str:
    """Return the usual name of a snapshot's zip file."""
    return f"{digest.replace(':', '-')[:19]}.zip"


def write_zip(digest: str, target: Path, *, cache: Path, fetch: Callable[[], BinaryIO]) -> None:
    """Write a snapshot as a zip file, whole or not at all.

    Args:
        digest: The snapshot's digest.
        target: The zip file; an existing one is replaced.
        cache: Folder of unpacked snapshots.
        fetch: Opens the stored archive if it is not unpacked yet.

    Raises:
        SnapshotError: the archive is damaged.
        NotFoundError: it was pruned.
    """
    snapshots = NodeSnapshots(cache)
    snapshots.ensure(digest, fetch)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder, replacing(target) as draft:
        code = Path(folder, "code")
        snapshots.copy_into(digest, code)
        shutil.move(shutil.make_archive(str(code), "zip", code), draft)
