"""Create a workspace that several machines use, and join one: its store in PostgreSQL, files in S3.

A machine knows such a workspace by a folder of its own, which holds the two addresses and nothing
that another machine needs. The store and the bucket name the workspace that they belong to, so the
same addresses always lead to the same workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import StoreError, UsageError
from rayjobs.core.ids import token
from rayjobs.workspace import folder
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles
from rayjobs.workspace.s3_address import S3Address

if TYPE_CHECKING:
    from rayjobs.store.sql import SqlStore
    from rayjobs.workspace.s3_blobs import S3Blobs

# Keys of the store's own values.
OWNER, NAME, BLOBS = "workspace", "workspace-name", "workspace-blobs"


@dataclass(frozen=True)
class Made:
    """What `create` did.

    Attributes:
        joined: It existed before; this machine has got a folder for it.
    """

    workspace: OpenWorkspace
    joined: bool


def create(
    path: str | Path, store: str, *, blobs: S3Address | None = None, make_bucket: bool = False
) -> Made:
    """Create a workspace whose records are in PostgreSQL, or join the one at these addresses.

    Args:
        path: The folder of this machine. Without `blobs` it holds the workspace's files.
        store: See `rayjobs.store.postgres_address`; without ``schema`` a new workspace gets one of
            its own, and the one whose files `blobs` holds is joined.
        blobs: Where files are; a workspace that is joined knows it.
        make_bucket: Make its bucket unless it is there.

    Raises:
        UsageError: an address is not valid, there is a workspace in the folder already, or the
            addresses belong to different workspaces.
        StoreError: a server cannot be reached, or refuses.
    """
    from rayjobs.store.postgres_address import with_schema
    from rayjobs.store.sql import SqlStore

    root = _fresh(path)
    new_id, name = token(), folder.name_of(root)
    # Both servers are asked before there is a record: what cannot be reached leaves nothing.
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
                values = _founded(opened, files, new_id, name, address)
            else:
                values = _joined(opened, files, owner, address)
                _check_files(S3Address.from_json(values["blobs"]), root, owner)
        except BaseException:
            if owner == new_id:  # the next try may take it
                with contextlib.suppress(StoreError):
                    opened.set_meta(OWNER, None)
            raise
    finally:
        opened.close()
    folder.write_record(root, values)
    workspace = folder.open_workspace(root, create=False)
    if blobs is not None:
        _ = workspace.catalogue  # makes the datastores of every workspace
    return Made(workspace, joined=owner != new_id)


def join(path: str | Path, store: str, *, profile: str = "") -> Made:
    """Make a folder this machine's folder of a workspace that exists.

    Args:
        store: With its ``schema``.
        profile: Of this machine's AWS files, where it is not the creator's.

    Raises:
        UsageError, StoreError: see `create`; there is no such workspace.
    """
    from rayjobs.store.postgres_address import has_schema
    from rayjobs.store.sql import SqlStore

    root = _fresh(path)
    if not has_schema(store):
        raise UsageError(
            f"the address {store!r} does not say which workspace of the database it is: add "
            f"?schema=NAME, as `rayjobs workspace show` prints it where the workspace is known"
        )
    with contextlib.closing(SqlStore(store, create=False)) as opened:
        owner = opened.meta(OWNER)
        if owner is None:
            raise UsageError(f"the store {store} belongs to no workspace")
        values = _joined(opened, None, owner, store)
        blobs = S3Address.from_json(values["blobs"])
        if profile:
            blobs = replace(blobs, profile=profile)
    _check_files(blobs, root, owner)
    folder.write_record(root, {**values, "blobs": blobs.to_json()})
    return Made(folder.open_workspace(root, create=False), joined=True)


def _fresh(path: str | Path) -> Path:
    root = Path(os.path.realpath(Path(path).expanduser()))
    found = folder.record_of(root)
    if found is not None:
        where = found.get("store") or WorkspaceFiles(root).store
        raise UsageError(f"there is a workspace in {root} already, with its store at {where}")
    return root


def _check_files(address: S3Address, root: Path, workspace: str) -> None:
    """Refuse files that cannot be reached from here, or are another workspace's."""
    found = (_files(address, root).owner() or {}).get("id")
    if found != workspace:
        whose = "no workspace's" if found is None else f"those of the workspace with the id {found}"
        raise UsageError(
            f"the store names {address.where} for the files of the workspace {workspace}, and "
            f"what is there is {whose}; check the bucket"
        )


def create_in(path: str | Path, store: str) -> OpenWorkspace:
    """Create a workspace whose records are in PostgreSQL; its files stay in the folder `path`.

    Raises:
        UsageError, StoreError: see `create`.
    """
    return create(path, store).workspace


def _founded(
    store: SqlStore, files: S3Blobs | None, new_id: str, name: str, address: str
) -> dict[str, Any]:
    values: dict[str, Any] = {"id": new_id, "name": name, "store": address}
    if files is None:
        return values
    from rayjobs.store.postgres_address import parsed

    taken = files.take({"version": 1, "id": new_id, "name": name, "schema": parsed(address)[1]})
    if taken.get("id") != new_id:
        raise UsageError(
            f"{files.address.where} holds the files of the workspace {taken.get('name')} (id "
            f"{taken.get('id')}), whose store is not {address}. Name its store to join it, or "
            f"another prefix for a new workspace"
        )
    store.set_meta(NAME, name)
    store.set_meta(BLOBS, json.dumps(files.address.to_json()))
    return values | {"blobs": files.address.to_json()}


def _joined(store: SqlStore, files: S3Blobs | None, owner: str, address: str) -> dict[str, Any]:
    noted = store.meta(BLOBS)
    if noted is None:
        raise UsageError(
            f"the store {address} belongs to another workspace (id {owner}), whose files are in a "
            f"folder: use that folder where it is. Or name another schema, or leave ?schema= out, "
            f"for a new workspace"
        )
    known = S3Address.from_json(json.loads(noted))
    if files is not None and not files.address.is_same_place(known):
        raise UsageError(
            f"the workspace at {address} has its files in {known.where}, not in "
            f"{files.address.where}; leave --blobs out to join it"
        )
    return {
        "id": owner,
        "name": store.meta(NAME) or owner,
        "store": address,
        # How it is reached from here may differ: another profile.
        "blobs": (known if files is None else files.address).to_json(),
    }


def _files(address: S3Address, root: Path) -> S3Blobs:
    from rayjobs.workspace.blobs import TEMPORARY
    from rayjobs.workspace.s3_blobs import S3Blobs

    return S3Blobs(address, WorkspaceFiles(root).blobs / TEMPORARY)


def join_command(record: Mapping[str, Any]) -> str:
    """Return the command by which another machine joins the workspace."""
    return f"rayjobs workspace add FOLDER --store '{record['store']}'"
