"""Handles `resume_from`: checked and stored at submit, written to the node at start.

A spec's `resume_from` is one of these, and after a submit never a path of the submitter's machine:

- a run's id: its newest whole checkpoint when the job starts;
- ``packed:sha256:…``: files that the submit has put into the workspace, by their content;
- a local file or folder, or ``datastore/path``: `pack` turns both into ``packed:…``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rayjobs.core.errors import (
    NotFoundError,
    PrepareError,
    Problem,
    SpecError,
    StoreError,
    UsageError,
)
from rayjobs.core.failures import FailureClass
from rayjobs.core.text import counted
from rayjobs.injob import checkpoint as injob_checkpoint
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.results import checkpoints
from rayjobs.results.gone import why_gone
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import Blob, BlobStore, blob_key

if TYPE_CHECKING:
    from rayjobs.datastore import Datastore
    from rayjobs.spec.model import JobSpec
    from rayjobs.workspace.folder import OpenWorkspace

FIELD = "resume_from"
PACKED = "packed:"
LISTING_VERSION = 1

# Source: ScriptRunConfig of Azure ML v1 adds this for its resume_from.
ARGUMENTS = ("--resume-from", "$AZUREML_DATAREFERENCE_MODEL_LOCATION")


@dataclass(frozen=True)
class Brought:
    """The content of an attempt's resume folder.

    Attributes:
        sentence: For the job's history.
        checkpoint: None when it came from packed files.
    """

    sentence: str
    checkpoint: checkpoints.StoredCheckpoint | None = None


def with_arguments(arguments: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return a script's arguments with ``--resume-from DIR``, unless they already have it."""
    given = tuple(arguments)
    if any(one == ARGUMENTS[0] or one.startswith(ARGUMENTS[0] + "=") for one in given):
        return given
    return (*given, *ARGUMENTS)


# -- at submit --------------------------------------------------------------------------------


def check(workspace: OpenWorkspace, spec: JobSpec) -> tuple[JobSpec, list[Problem]]:
    """Return the spec with `resume_from` named in full, and what is wrong with it.

    Changes nothing; `pack` stores the files.
    """
    if spec.resume_from is None:
        return spec, []
    try:
        named = _named(workspace, spec.resume_from)
    except _Refused as refused:
        return spec, [refused.problem]
    return spec.model_copy(update={FIELD: named}), []


def pack(workspace: OpenWorkspace, spec: JobSpec, *, stores: bool = True) -> JobSpec:
    """Return the spec with local files and datastore paths stored in the workspace.

    Args:
        workspace: The workspace that stores them.
        spec: The job.
        stores: Store them; otherwise only compute their digests.

    Raises:
        SpecError: the files cannot be read, or hold no whole checkpoint.
        StoreError: they cannot be stored.
    """
    text = spec.resume_from
    if text is None or text.startswith(PACKED) or "/" not in text:
        return spec
    try:
        if text.startswith("/"):
            packed = pack_path(workspace.blobs, Path(text), stores=stores)
        else:
            packed = _pack_datastore(workspace, text, stores=stores)
    except _Refused as refused:
        raise SpecError(problems=[refused.problem]) from refused.__cause__
    return spec.model_copy(update={FIELD: packed})


class _Refused(Exception):
    """`resume_from` is wrong."""

    def __init__(self, message: str, remedy: str = "", *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.problem = Problem(FIELD, message, remedy, is_missing)


def _named(workspace: OpenWorkspace, text: str) -> str:
    if text.startswith(PACKED):
        digest = text.removeprefix(PACKED)
        try:
            known = workspace.blobs.exists(blob_key(digest), quick=True)
        except UsageError as error:
            raise _Refused(f"{error}") from error
        if not known:
            raise _Refused(f"{text!r} is not in this workspace.", "Give the files' path again.")
        return text
    path = Path(text).expanduser()
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        if not path.exists():
            raise _Refused(
                f"{text!r} does not exist.", "Give a checkpoint's file or folder.", is_missing=True
            )
        return _checked_path(path)
    run = _run_called(workspace, text)
    if path.exists():
        if run is not None:
            raise _Refused(
                f"{text!r} is the run {run} and a path here as well.",
                f"Write ./{text} for the path, {run} for the run.",
            )
        return _checked_path(path)
    if run is not None:
        return run
    if "/" in text:
        _check_datastore(workspace, text)
        return text
    raise _Refused(
        f"{text!r} is neither a run nor a path here.",
        "Give a run's id, a file or folder, or datastore/path; `rayjobs ls -a` lists runs.",
    )


def _run_called(workspace: OpenWorkspace, text: str) -> str | None:
    try:
        job = workspace.store.find(text)
    except NotFoundError:
        return None
    except UsageError as error:
        raise _Refused(f"{error}") from error
    if job.state.is_final and checkpoints.newest(workspace.store, workspace.blobs, job.id) is None:
        raise _Refused(no_checkpoint(workspace.store, job.id))
    return job.id


def no_checkpoint(store: Store, run: str) -> str:
    """Return the sentence that says why a run has nothing to resume from."""
    torn = any("outputs/checkpoints/" in one.name for one in store.files(run))
    what = "only checkpoints that were cut short" if torn else "no checkpoint"
    gone = why_gone(store, store.job(run))
    if gone:
        return f"run {run} has {what}: {gone}. `rayjobs rerun {run}` starts it from the beginning."
    return (
        f"run {run} has {what}: a script saves them with rayjobs.checkpoint.save(). To continue "
        f"from other files, download them and give their path."
    )


def _checked_path(path: Path) -> str:
    absolute = Path(os.path.normpath(path.absolute()))
    if absolute.is_dir():
        _checkpoint_in(absolute)
        if next(_files_of(absolute), None) is None:
            raise _Refused(f"the folder {str(path)!r} holds no files.")
    elif not absolute.is_file():
        raise _Refused(f"{str(path)!r} is neither a file nor a folder.")
    return str(absolute)


def _checkpoint_in(folder: Path) -> Path:
    """Return the checkpoint to take from a folder: its newest whole one, else the folder itself."""
    has_steps = any(
        name.startswith("step-")
        for root in (folder, folder / "checkpoints", folder / "outputs" / "checkpoints")
        if root.is_dir()
        for name in os.listdir(root)
    )
    if _is_ours(folder):
        if not injob_checkpoint.is_whole(str(folder)):
            raise _Refused(
                f"the checkpoint {str(folder)!r} is incomplete: a file is missing, or differs from "
                f"its {injob_checkpoint.MANIFEST}.",
                "Give an earlier one, or the folder of all checkpoints to use the newest complete "
                "one.",
            )
        return folder
    if not has_steps:
        return folder
    found = injob_checkpoint.latest(str(folder))
    if found is None:
        raise _Refused(f"no checkpoint in {str(folder)!r} is complete.")
    return Path(found.path)


def _is_ours(folder: Path) -> bool:
    """Whether a folder has a manifest of `save`, complete or not."""
    path = folder / injob_checkpoint.MANIFEST
    if not path.is_file():
        return False
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return folder.name.startswith("step-")
    return isinstance(content, dict) and {"version", "step", "files"} <= content.keys()


def pack_path(blobs: BlobStore, path: Path, *, stores: bool = True) -> str:
    """Store a file or folder by its content; return the ``packed:…`` reference to it.

    A checkpoint, or a folder of them, is checked first, and only the newest whole one is stored.

    Raises:
        SpecError: it cannot be read, or holds no whole checkpoint.
        StoreError: it cannot be stored.
    """
    try:
        _checked_path(path)
        files = [(path.name, path)]
        if path.is_dir():
            files = list(_files_of(_checkpoint_in(path)))
    except _Refused as refused:
        raise SpecError(problems=[refused.problem]) from refused.__cause__
    listed = []
    for name, file in sorted(files):
        blob = blobs.add_file(file) if stores else _blob_of(file)
        listed.append({"name": name, "size": blob.size, "digest": blob.digest})
    data = json.dumps(
        {"version": LISTING_VERSION, "files": listed}, separators=(",", ":"), ensure_ascii=False
    ).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    key = blob_key(digest)
    if stores and not blobs.exists(key, quick=True):
        blobs.put_bytes(data, key)
    return PACKED + digest


def _blob_of(file: Path) -> Blob:
    """Return the blob that storing a file would create."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Blob(blob_key(f"sha256:{digest}"), stream.tell(), f"sha256:{digest}")


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(parent) / name
            if path.is_file() and not name.startswith(".part-"):
                yield path.relative_to(folder).as_posix(), path


# -- datastores ---------------------------------------------------------------------------------


def _datastore(workspace: OpenWorkspace, text: str) -> tuple[Datastore, str]:
    """Return the datastore and the path in it that a text names."""
    name, _, path = text.partition("/")
    from rayjobs.datastore import Datastore, DatastoreError

    try:
        return Datastore(workspace, name), path
    except DatastoreError as error:
        raise _Refused(
            f"{text!r} is neither a run, nor a path here, nor in a datastore: {error}"
        ) from error


def _check_datastore(workspace: OpenWorkspace, text: str) -> None:
    _datastore(workspace, text)


def _pack_datastore(workspace: OpenWorkspace, text: str, *, stores: bool) -> str:
    """Store a datastore's path in the workspace by content: all attempts get the same files."""
    from rayjobs.datastore import DatastoreError

    store, path = _datastore(workspace, text)
    with TemporaryDirectory(prefix="rayjobs-resume-") as folder:
        try:
            store.download(folder, prefix=path or None, show_progress=False)
        except DatastoreError as error:
            raise _Refused(f"{text!r} cannot be read: {error}") from error
        found = Path(folder) / path if path else Path(folder)
        if not found.exists():
            raise _Refused(f"{text!r}: there is nothing in the datastore {store.name!r}.")
        return pack_path(workspace.blobs, found, stores=stores)


# -- on the node --------------------------------------------------------------------------------


def bring(
    store: Store, blobs: BlobStore, folder: Path, *, own: str | None, path: str | None
) -> Brought | None:
    """Write what an attempt resumes from to `folder`; None if it starts from the beginning.

    Args:
        own: The job's own id on a retry: its newest checkpoint takes precedence.
        path: The `resume_from` of the spec.

    Raises:
        PrepareError: class ``data``: the files that the spec names do not exist; class
            ``storage``: it cannot be read now.
    """
    try:
        if own is not None:
            found = checkpoints.bring_newest(store, blobs, own, folder)
            if found is not None:
                return Brought(
                    f"continues from its checkpoint of step {found.step} (attempt {found.attempt})",
                    found,
                )
        if path is None:
            return None
        if path.startswith(PACKED):
            return _bring_packed(blobs, path, folder)
        return _bring_run(store, blobs, path, folder)
    except StoreError as error:
        raise PrepareError(
            f"the checkpoint to resume from cannot be fetched to the node: {error}",
            failure_class=FailureClass.STORAGE,
        ) from error


def _bring_run(store: Store, blobs: BlobStore, run: str, folder: Path) -> Brought:
    try:
        found = checkpoints.bring_newest(store, blobs, run, folder)
        if found is None:
            raise PrepareError(no_checkpoint(store, run), failure_class=FailureClass.DATA)
    except NotFoundError as error:
        raise PrepareError(f"resume_from: {error}", failure_class=FailureClass.DATA) from error
    return Brought(f"continues from the checkpoint of step {found.step} of {run}", found)


def _bring_packed(blobs: BlobStore, reference: str, folder: Path) -> Brought:
    digest = reference.removeprefix(PACKED)
    try:
        with blobs.open(blob_key(digest)) as stream:
            data = stream.read()
    except NotFoundError as error:
        raise PrepareError(f"resume_from: {error}", failure_class=FailureClass.DATA) from error
    if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise PrepareError(f"the listing {reference} is damaged", failure_class=FailureClass.DATA)
    files = json.loads(data)["files"]
    checkpoints.write_to(
        blobs, {one["name"]: (blob_key(one["digest"]), one["digest"]) for one in files}, folder
    )
    return Brought(f"continues from {counted(len(files), 'file')} given at submit")
