"""Finds the whole checkpoints that a job has stored, and checks hashes when it writes one.

`rayjobs.checkpoint.save` writes ``outputs/checkpoints/step-…/`` with a manifest of sizes and
hashes. Its files are published one by one, each with its attempt's number. A checkpoint counts
only when the manifest and every file that it names are stored with these hashes, so incomplete ones
are skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.core.errors import DamagedError, NotFoundError
from rayjobs.core.ids import token
from rayjobs.injob.checkpoint import MANIFEST, VERSION
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import StoredFile
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import BlobStore

_MANIFEST_NAME = re.compile(
    rf"(?P<folder>(?:node-\d+/)?outputs/checkpoints/step-(?P<step>\d+))/{re.escape(MANIFEST)}"
)


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A whole checkpoint of a job.

    Attributes:
        run: The job's id.
        step: The step it was saved at.
        attempt: The attempt that published it.
        folder: Its name among the job's files, ``outputs/checkpoints/step-000000000007``.
        files: Its stored files by their names below the folder, including the manifest.
        metadata: The metadata passed to `save`.
    """

    run: str
    step: int
    attempt: int
    folder: str
    files: Mapping[str, StoredFile]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files.values())


def newest(store: Store, blobs: BlobStore, job_id: str) -> StoredCheckpoint | None:
    """Return the whole checkpoint with the highest step, of any attempt of a job, or None.

    Raises:
        NotFoundError: there is no such job.
        StoreError: store or blobs cannot be read.
    """
    return next(whole(store, blobs, job_id), None)


def whole(store: Store, blobs: BlobStore, job_id: str) -> Iterator[StoredCheckpoint]:
    """Yield a job's whole checkpoints, the newest (of the highest step) first.

    The bytes of the manifest are checked here, those of its files by `write_to`.
    """
    by_folder: dict[str, list[StoredFile]] = defaultdict(list)
    manifests = []
    for one in store.files(job_id):
        by_folder[one.name.rpartition("/")[0]].append(one)
        match = _MANIFEST_NAME.fullmatch(one.name)
        if match is not None:
            manifests.append((int(match["step"]), one.attempt, match["folder"], one))
    for step, attempt, folder, manifest in sorted(manifests, key=lambda found: found[:3])[::-1]:
        below = [
            one
            for at, files in by_folder.items()
            if at == folder or at.startswith(folder + "/")
            for one in files
        ]
        found = _of_manifest(job_id, step, attempt, folder, manifest, below, blobs)
        if found is not None:
            yield found


def _of_manifest(
    job_id: str,
    step: int,
    attempt: int,
    folder: str,
    manifest: StoredFile,
    below: Sequence[StoredFile],
    blobs: BlobStore,
) -> StoredCheckpoint | None:
    rows = {one.name[len(folder) + 1 :]: one for one in below}
    try:
        with blobs.open(manifest.blob) as stream:
            data = stream.read()
        if manifest.digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            return None
        content = json.loads(data)
        if content["version"] != VERSION or content["step"] != step or not content["files"]:
            return None
        files = {MANIFEST: manifest}
        for name, facts in content["files"].items():
            row = rows[name]
            if row.digest != f"sha256:{facts['sha256']}" or row.size != facts["size"]:
                return None
            if blobs.size(row.blob) != row.size:
                return None
            files[name] = row
        return StoredCheckpoint(
            run=job_id,
            step=step,
            attempt=attempt,
            folder=folder,
            files=files,
            metadata=dict(content.get("metadata") or {}),
        )
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None  # torn: a row or a blob is missing, or the manifest is not one


def write_to(blobs: BlobStore, files: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Write files (name → blob key, digest) to `folder`, which appears whole or not at all.

    Raises:
        DamagedError: a blob is missing or damaged; nothing is left.
        StorageFullError: the disk is full; nothing is left.
        StoreError: a blob cannot be read now; nothing is left.
    """
    part = folder.with_name(f".{folder.name}-{token(4)}")
    try:
        for name, (key, digest) in files.items():
            target = part.joinpath(*_parts(name))
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            blobs.get_to(key, target, digest=digest)
        part.rename(folder)
    except NotFoundError as error:
        raise DamagedError(f"{error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def bring_newest(
    store: Store, blobs: BlobStore, job_id: str, folder: Path
) -> StoredCheckpoint | None:
    """Write a job's newest whole checkpoint to `folder`; None when there is none.

    Damaged ones are skipped; one that cannot be read now is not, since the job would repeat the
    work after an older one.

    Raises:
        StorageFullError: the node's disk is full.
        StoreError: store or blobs cannot be read now.
    """
    for found in whole(store, blobs, job_id):
        try:
            write_to(
                blobs,
                {name: (one.blob, one.digest) for name, one in found.files.items()},
                folder,
            )
        except DamagedError:
            continue
        return found
    return None


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise DamagedError(f"{name!r} cannot be the name of a checkpoint's file")
    return parts


@dataclass(frozen=True)
class Lost:
    """The last step of a job, and the step from which its next attempt continues.

    Attributes:
        last_step: The highest step of any metric; None if no metric has steps.
        checkpoint_step: The step of the newest whole checkpoint; None if there is none.
    """

    last_step: int | None
    checkpoint_step: int | None

    @property
    def steps(self) -> int | None:
        """Steps that will be repeated; None if the checkpoint or the last step is unknown."""
        if self.last_step is None or self.checkpoint_step is None:
            return None
        return max(0, self.last_step - self.checkpoint_step)

    @property
    def sentence(self) -> str:
        """Text for a job's history, after a semicolon."""
        if self.checkpoint_step is None:
            reached = "" if self.last_step is None else f" (it had reached step {self.last_step})"
            return f"it has saved no checkpoint and starts from the beginning{reached}"
        at = f"it continues from its checkpoint of step {self.checkpoint_step}"
        if self.steps is None:
            return at
        return f"{at}; its last step was {self.last_step}: {self.steps} lost"

    def to_dict(self) -> dict[str, int | None]:
        """Return it as plain data, for an event."""
        return {
            "last_step": self.last_step,
            "checkpoint_step": self.checkpoint_step,
            "steps_lost": self.steps,
        }


def steps_lost(store: Store, blobs: BlobStore, job_id: str) -> Lost:
    """Return how many steps a job would lose if it were started again now.

    Raises:
        NotFoundError: there is no such job.
        StoreError: store or blobs cannot be read.
    """
    steps = [point.step for point in store.metrics(job_id) if point.step is not None]
    found = newest(store, blobs, job_id)
    return Lost(
        last_step=max(steps, default=None),
        checkpoint_step=None if found is None else found.step,
    )
