"""Backs up a workspace to a folder (records and stored files), and restores it from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayjobs.core.clock import SystemClock, to_text
from rayjobs.core.durable import sync_folder
from rayjobs.core.errors import NotFoundError, StoreError, UsageError
from rayjobs.core.files import replacing, write_atomic
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.store import care
from rayjobs.workspace import folder
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import FolderRecord, WorkspaceFiles

_FILE = "backup.json"


@dataclass(frozen=True, kw_only=True)
class BackupRecord(Message):
    """``backup.json``, which completes a backup.

    Attributes:
        at: When it was made.
        workspace: The record of the workspace.
    """

    version: int = 1
    at: str
    workspace: FolderRecord


@dataclass(frozen=True)
class Copied:
    """What a backup or a restore did.

    Attributes:
        files: Stored files in the copy.
        copied: How many of them were copied now.
        size: Bytes that were copied now.
    """

    folder: Path
    files: int
    copied: int
    size: int


def backup(workspace: Path, to: Path) -> Copied:
    """Copy the records and files of a workspace into a folder, while jobs run.

    An earlier copy in the folder gets the new records and the files that it lacks. It is complete
    at every moment: the files that the new records name are copied first, and then the records are
    replaced atomically.

    Raises:
        NotFoundError: there is no such workspace.
        UsageError: the folder holds something else, or the copy of another workspace.
        StoreError: something cannot be read or written.
    """
    record = folder.record_of(workspace)
    if record is None:
        raise NotFoundError(f"there is no workspace in {workspace}")
    known = _known(to)
    if known is not None and known.workspace.id != record.id:
        raise UsageError(f"{to} is a copy of another workspace, {known.workspace.name}")
    if known is None and to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} holds something else; name a new folder, or an earlier backup")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(WorkspaceFiles(to).store) as draft:
            if record.store is None:
                care.backup(WorkspaceFiles(workspace).store, Path(draft))
            else:
                from rayjobs.store import moving

                moving.copy_to_file(record.store, Path(draft))
            # After the records: the files that these name exist by now, and stay for an hour.
            with folder.open_workspace(workspace, create=False) as opened:
                done = _copy_files(opened.blobs, FolderBlobs(WorkspaceFiles(to).blobs), to)
        made = BackupRecord(at=to_text(SystemClock().now()), workspace=record)
        text = json.dumps(made.to_json(), indent=1) + "\n"
        write_atomic(to / _FILE, text, mode=0o600)
        sync_folder(to)
    except OSError as error:
        raise StoreError(f"the backup {to} cannot be written: {error.strerror}") from error
    return done


def restore(source: Path, to: Path) -> Copied:
    """Make a workspace in a folder from a backup.

    The restored workspace takes the place of the one that was backed up: unfinished jobs continue
    there. If the original still exists, the restored one is a copy, which becomes a separate
    workspace with its first submit.

    Raises:
        NotFoundError: there is no backup.
        UsageError: the folder holds something.
        StoreError: something cannot be read or written.
    """
    known = _known(source)
    if known is None:
        raise NotFoundError(f"{source} is not a backup made by `rayjobs workspace backup`")
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} holds something; name a new folder")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = WorkspaceFiles(to)
        done = _copy_files(FolderBlobs(WorkspaceFiles(source).blobs), FolderBlobs(files.blobs), to)
        with replacing(files.store) as draft:
            care.backup(WorkspaceFiles(source).store, Path(draft))
        # Written last: a partly restored folder must not count as a workspace.
        folder.write_record(to, replace(known.workspace, store=None, blobs=None))
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error.strerror}") from error
    return done


def _copy_files(source: Any, target: FolderBlobs, to: Path) -> Copied:
    files = copied = size = 0
    scratch = to / ".file.part"
    for key in source.list():
        files += 1
        if target.exists(key):
            continue  # blobs never change
        try:
            source.get_to(key, scratch)
        except NotFoundError:
            files -= 1  # it was pruned meanwhile: no record names it
            continue
        size += scratch.stat().st_size
        target.put_file(scratch, key)
        copied += 1
        scratch.unlink()
    return Copied(to, files, copied, size)


def _known(to: Path) -> BackupRecord | None:
    try:
        found = BackupRecord.from_json(json.loads((to / _FILE).read_text(encoding="utf-8")))
        return found if found.workspace.id else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{to / _FILE} cannot be read: {error}") from error
