"""Create or join a workspace for several machines: its store in PostgreSQL, its files in S3.

Each machine has its own folder for such a workspace. The folder contains the two addresses and
nothing that another machine needs. The store and the bucket record which workspace they belong to,
so the same addresses always lead to the same workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import StoreError, UsageError
from rayjobs.core.ids import token
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.workspace import folder
from rayjobs.workspace.folder import FolderRecord, OpenWorkspace, WorkspaceFiles
from rayjobs.workspace.s3_address import S3Address

if TYPE_CHECKING:
    from rayjobs.store.sql import SqlStore
    from rayjobs.workspace.s3_blobs import S3Blobs

# Keys of values in the store (``meta``).
OWNER, NAME, BLOBS = "workspace", "workspace-name", "workspace-blobs"


@dataclass(frozen=True)
class Made:
    """The result of `create`.

    Attributes:
        joined: The workspace existed before; this machine now has a folder for it.
    """

    workspace: OpenWorkspace
    joined: bool


def create(
    path: str | Path, store: str, *, blobs: S3Address | None = None, make_bucket: bool = False
) -> Made:
    """Create a workspace whose records are in PostgreSQL, or join the one at these addresses.

    Args:
        path: The folder on this machine. Without `blobs`, it contains the workspace's files.
        store: See `rayjobs.store.postgres_address`. Without ``schema``, a new workspace gets its
            own schema; if `blobs` already belongs to a workspace, that one is joined.
        blobs: The location of the files; not needed to join a workspace.
        make_bucket: Create the bucket unless it exists.

    Raises:
        UsageError: an address is not valid, the folder already has a workspace, or the addresses
            belong to different workspaces.
        StoreError: a server cannot be reached, or refuses access.
    """
    from rayjobs.store.postgres_address import with_schema
    from rayjobs.store.sql import SqlStore

    root = _fresh(path)
    new_id, name = token(), folder.name_of(root)
    # Contact both servers before writing a record, so that a failure leaves nothing behind.
    files = None if blobs is None else _files(blobs, root)
    if files is not None and make_bucket:
        files.make_bucket()
    taken = None if files is None else files.owner()
    address = with_schema(store, str((taken or {}).get("schema") or f"workspace_{new_id}"))
    opened = SqlStore(address)
    try:
        owner = opened.owner(new_id)
        try:
            if owner == new_id:
                record = _founded(opened, files, new_id, name, address)
            else:
                record, files_address = _joined(opened, files, owner, address)
                _check_files(files_address, root, owner)
        except BaseException:
            if owner == new_id:  # so that the next try can take it
                with contextlib.suppress(StoreError):
                    opened.set_meta(OWNER, None)
            raise
    finally:
        opened.close()
    folder.write_record(root, record)
    workspace = folder.open_workspace(root, create=False)
    if blobs is not None:
        _ = workspace.catalogue  # creates the built-in datastores
    return Made(workspace, joined=owner != new_id)


def join(path: str | Path, store: str, *, profile: str = "") -> Made:
    """Make a folder this machine's folder of an existing workspace.

    Args:
        store: The store's address with its ``schema``.
        profile: The profile in this machine's AWS files, if it differs from the creator's.

    Raises:
        UsageError, StoreError: see `create`; also if there is no such workspace.
    """
    from rayjobs.store.postgres_address import has_schema
    from rayjobs.store.sql import SqlStore

    root = _fresh(path)
    if not has_schema(store):
        raise UsageError(
            f"the address {store!r} does not say which workspace in the database is meant: add "
            f"?schema=NAME, as printed by `rayjobs workspace show` on a machine that uses it"
        )
    with contextlib.closing(SqlStore(store, create=False)) as opened:
        owner = opened.meta(OWNER)
        if owner is None:
            raise UsageError(f"the store {store} belongs to no workspace")
        record, blobs = _joined(opened, None, owner, store)
        if profile:
            blobs = replace(blobs, profile=profile)
    _check_files(blobs, root, owner)
    folder.write_record(root, replace(record, blobs=blobs))
    return Made(folder.open_workspace(root, create=False), joined=True)


def _fresh(path: str | Path) -> Path:
    root = Path(os.path.realpath(Path(path).expanduser()))
    found = folder.record_of(root)
    if found is not None:
        where = found.store or WorkspaceFiles(root).store
        raise UsageError(f"there is already a workspace in {root}, with its store at {where}")
    return root


def _check_files(address: S3Address, root: Path, workspace: str) -> None:
    """Refuse files that cannot be reached from here or belong to another workspace."""
    found = (_files(address, root).owner() or {}).get("id")
    if found != workspace:
        whose = "no workspace" if found is None else f"the workspace with the id {found}"
        raise UsageError(
            f"the store names {address.where} for the files of the workspace {workspace}, but "
            f"that prefix belongs to {whose}; check the bucket"
        )


def create_in(path: str | Path, store: str) -> OpenWorkspace:
    """Create a workspace whose records are in PostgreSQL; its files stay in the folder `path`.

    Raises:
        UsageError, StoreError: see `create`.
    """
    return create(path, store).workspace


def _founded(
    store: SqlStore, files: S3Blobs | None, new_id: str, name: str, address: str
) -> FolderRecord:
    record = FolderRecord(id=new_id, name=name, store=address)
    if files is None:
        return record
    from rayjobs.store.postgres_address import parsed

    taken = files.take({"version": 1, "id": new_id, "name": name, "schema": parsed(address)[1]})
    if taken.get("id") != new_id:
        raise UsageError(
            f"{files.address.where} contains the files of the workspace {taken.get('name')} (id "
            f"{taken.get('id')}), whose store is not {address}. Name its store to join it, or "
            f"another prefix for a new workspace"
        )
    store.set_meta(NAME, name)
    store.set_meta(BLOBS, json.dumps(files.address.to_json()))
    return replace(record, blobs=files.address)


def _joined(
    store: SqlStore, files: S3Blobs | None, owner: str, address: str
) -> tuple[FolderRecord, S3Address]:
    noted = store.meta(BLOBS)
    if noted is None:
        raise UsageError(
            f"the store {address} belongs to another workspace (id {owner}), whose files are in a "
            f"folder: use that folder on its machine. For a new workspace, name another schema or "
            f"leave out ?schema="
        )
    known = S3Address.from_json(json.loads(noted))
    if files is not None and not files.address.is_same_location(known):
        raise UsageError(
            f"the workspace at {address} has its files in {known.where}, not in "
            f"{files.address.where}; leave out --blobs to join it"
        )
    # This machine may use another profile to reach it.
    blobs = known if files is None else files.address
    name = store.meta(NAME) or owner
    return FolderRecord(id=owner, name=name, store=address, blobs=blobs), blobs


def _files(address: S3Address, root: Path) -> S3Blobs:
    from rayjobs.workspace.blobs import TEMPORARY
    from rayjobs.workspace.s3_blobs import S3Blobs

    return S3Blobs(address, WorkspaceFiles(root).blobs / TEMPORARY)


def join_command(store: str) -> str:
    """Return the command with which another machine joins the workspace with this store."""
    return f"rayjobs workspace add FOLDER --store '{store}'"
