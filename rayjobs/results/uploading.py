"""Files that a program outside a run adds to it: all of a call, or none."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.uploads import UploadArea, clean_name
from rayjobs.jobs.records import StoredFile

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


def add_files(
    workspace: OpenWorkspace,
    run_id: str,
    names: Sequence[str],
    paths: Sequence[str | Path],
    *,
    timeout_s: float | None = None,
) -> Sequence[StoredFile]:
    """Store several files with a run: all of them, or none.

    Args:
        timeout_s: Store no file if not all bytes are stored within this time; None sets no limit.

    Raises:
        UsageError: the run already has such a file or has ended, a name leads out of the run, or
            the numbers of names and paths differ.
        NotFoundError: there is no such file.
        TimeoutError: the time is up.
    """
    if len(names) != len(paths):
        raise UsageError(f"{len(names)} names for {len(paths)} paths; give one name per path")
    stored = [_checked_name(name) for name in names]
    store = workspace.store
    known = {one.name for one in store.files(run_id)}
    for number, name in enumerate(stored):
        if name in known or name in stored[:number]:
            raise UsageError(
                f"run {run_id} already has a file {name!r}; uploads are never replaced, "
                f"choose another name"
            )
    for path in paths:
        if not Path(path).is_file():
            raise NotFoundError(f"there is no file {Path(path).absolute()} to upload")
    job = store.job(run_id)
    now = SystemClock().now()
    files = []
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    for name, path in zip(stored, paths, strict=True):
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise TimeoutError(
                f"{len(stored)} files could not be stored in {timeout_s:g} s; none of "
                f"them was added. Give fewer files per call, or a longer timeout_seconds"
            )
        blob = workspace.blobs.add_file(Path(path))
        files.append(
            StoredFile(
                name=name,
                attempt=job.attempt,
                size=blob.size,
                digest=blob.digest,
                blob=blob.key,
                stored_at=now,
            )
        )
    if not store.publish_files(run_id, attempt=job.attempt, files=files):
        state = store.job(run_id).state
        raise UsageError(f"run {run_id} is {state}: files can only be added until a run ends")
    return files


def add_stream(workspace: OpenWorkspace, run_id: str, name: str, stream: Any) -> StoredFile:
    """Store what a binary stream contains with a run. Raises as `add_files` does."""
    with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
        stored = _checked_name(name)
        UploadArea(folder).add(stored, stream)
        return add_files(workspace, run_id, [stored], [Path(folder, *stored.split("/"))])[0]


def add_folder(
    workspace: OpenWorkspace, run_id: str, name: str, path: str | Path
) -> Sequence[StoredFile]:
    """Store all files below a folder under `name`/…. Raises as `add_files` does."""
    if not Path(path).is_dir():
        raise NotFoundError(f"there is no folder {Path(path).absolute()} to upload")
    below = list(UploadArea(str(path)).files_below(str(path)))
    return add_files(
        workspace,
        run_id,
        [f"{name.rstrip('/')}/{relative}" for relative, _full in below],
        [full for _relative, full in below],
    )


def add_image(workspace: OpenWorkspace, run_id: str, name: str, path: str | None, plot: Any) -> str:
    """Store an image or a figure with a run; return the name of the stored file."""
    with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
        stored = UploadArea(folder).add_image(name, path, plot)
        add_files(workspace, run_id, [stored], [Path(folder, *stored.split("/"))])
    return stored


def _checked_name(name: str) -> str:
    try:
        return clean_name(name)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
