"""Chooses the files of a run that make up a model: found by path, and checked byte by byte."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job, ModelFile, StoredFile
from rayjobs.models import companions
from rayjobs.results import checkpoints
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import BlobStore

CHECKPOINTS = "outputs/checkpoints/"
_OF_NODE = re.compile(r"^node-\d+/")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ChosenFiles:
    """The files of a future model version.

    Attributes:
        path: The run's file or folder, by its full name.
        sources: The run's stored files that were chosen and checked.
        files: The same files, under their names in the model.
        digest: Digest of the files' names and digests.
        left_out: Names of files in the folder that may be incomplete, so they are not chosen.
    """

    path: str
    sources: tuple[StoredFile, ...]
    files: tuple[ModelFile, ...]
    digest: str
    left_out: tuple[str, ...] = ()


def choose(store: Store, blobs: BlobStore, job: Job, path: str) -> ChosenFiles:
    """Return a completed run's file, or all files of its folder, with every byte checked.

    A file is returned with its companion, see `rayjobs.models.companions`.

    A file of an earlier attempt counts only as part of a whole checkpoint, because the attempt may
    have been killed while it wrote. Such a file is refused if `path` names it, and left out of a
    folder. Checkpoints serve to resume, so a folder that contains them means its other files or, if
    there are no others, its newest whole checkpoint. To register a certain checkpoint, name it.

    Raises:
        NotFoundError: the run has no such file or folder.
        UsageError: the file is incomplete or damaged.
    """
    stored = store.files(job.id)
    name = _full_name(stored, path)
    if name is None:
        known = ", ".join(one.name for one in stored[:10]) or "none"
        raise NotFoundError(
            f"run {job.id} has no file or folder {path!r}; its files are: {known}", path=path
        )
    found = list(checkpoints.whole(store, blobs, job.id))
    whole = {one.name for checkpoint in found for one in checkpoint.files.values()}
    companion = companions.name_of(name)
    below = [
        one for one in stored if one.name in (name, companion) or one.name.startswith(name + "/")
    ]
    if not _is_of_checkpoint(name + "/"):
        below = _without_checkpoints(below, found)
    sound = [one for one in below if _is_sound(one, job, whole)]
    left_out = [one.name for one in below if one not in sound]
    if not sound or (left_out and _is_of_checkpoint(name)):
        why = (
            "is a checkpoint that was cut short"
            if _is_of_checkpoint(left_out[0])
            else f"was left by an earlier attempt than {job.attempt}, the one that completed"
        )
        raise UsageError(f"{left_out[0]!r} of run {job.id} {why}: it may be incomplete")
    for one in sound:
        _check_bytes(blobs, one, job.id)
    files = tuple(
        ModelFile(
            name=_name_in_model(one.name, name),
            size=one.size,
            digest=one.digest,
            blob=one.blob,
        )
        for one in sound
    )
    return ChosenFiles(name, tuple(sound), files, digest_of(files), tuple(left_out))


def _name_in_model(file: str, chosen: str) -> str:
    if file in (chosen, companions.name_of(chosen)):
        return PurePosixPath(file).name
    return file[len(chosen) + 1 :]


def digest_of(files: Sequence[ModelFile]) -> str:
    """Return the digest of names and contents."""
    text = "".join(f"{one.digest} {one.name}\n" for one in sorted(files, key=lambda f: f.name))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _full_name(stored: Sequence[StoredFile], path: str) -> str | None:
    """Return the full name for a path, which may begin with ``./`` and omit ``outputs/``."""
    clean = path.removeprefix("./").strip("/")
    for name in (clean, f"outputs/{clean}"):
        if name and any(one.name == name or one.name.startswith(name + "/") for one in stored):
            return name
    return None


def _is_of_checkpoint(name: str) -> bool:
    return _on_its_node(name).startswith(CHECKPOINTS)


def _on_its_node(name: str) -> str:
    """Return a file's name on the node that published it."""
    return _OF_NODE.sub("", name)


def _without_checkpoints(
    below: list[StoredFile], found: Sequence[checkpoints.StoredCheckpoint]
) -> list[StoredFile]:
    """Return a folder's files without checkpoints; without others, the newest whole checkpoint."""
    others = [one for one in below if not _is_of_checkpoint(one.name)]
    if others:
        return others
    names = {one.name for one in below}
    for checkpoint in found:  # the newest first
        files = sorted(checkpoint.files.values(), key=lambda one: one.name)
        if all(one.name in names for one in files):
            return files
    return below  # no checkpoint is whole: the caller refuses them


def _is_sound(one: StoredFile, job: Job, whole: set[str]) -> bool:
    if _on_its_node(one.name).startswith(CHECKPOINTS + "step-"):
        return one.name in whole
    return one.attempt == job.attempt


def _check_bytes(blobs: BlobStore, one: StoredFile, run: str) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with blobs.open(one.blob) as stream:
            while data := stream.read(CHUNK_BYTES):
                digest.update(data)
                size += len(data)
    except NotFoundError as error:
        raise UsageError(
            f"the bytes of {one.name!r} of run {run} are no longer in the workspace; nothing "
            f"was registered"
        ) from error
    if size != one.size or one.digest != f"sha256:{digest.hexdigest()}":
        raise UsageError(
            f"the stored bytes of {one.name!r} of run {run} are damaged (their digest is not "
            f"{one.digest}); nothing was registered"
        )
