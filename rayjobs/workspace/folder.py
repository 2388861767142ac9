"""The folder of a workspace: finds, creates and opens it, and follows a move."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core import paths
from rayjobs.core.durable import make_folders
from rayjobs.core.errors import NotFoundError, StoreError, StoreVersionError, UsageError
from rayjobs.core.files import locked, read_json, write_atomic
from rayjobs.core.ids import token
from rayjobs.injob import url_map
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.workspace import registrations, server_choice
from rayjobs.workspace.azure import AzureSettings
from rayjobs.workspace.s3_address import DATASTORES, S3Address

if TYPE_CHECKING:
    from rayjobs.core.clock import Clock
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.store.base import Store
    from rayjobs.store.sql import SqlStore
    from rayjobs.workspace.blobs import BlobStore
    from rayjobs.workspace.connection import Connection

log = logging.getLogger(__name__)

VERSION = 1
ENVIRONMENT = "RAYJOBS_WORKSPACE"
MOST_EARLIER = 5
# The files of a workspace in its folder, as lines of a .gitignore there.
RECORDS = (
    "workspace.json",
    "store.db*",
    "store-*.db*",
    "blobs/",
    "cache/",
    "datastores/",
    "prune.lock",
    ".workspace-*",
    ".gitignore",
)


@dataclass(frozen=True, kw_only=True)
class FolderRecord(Message):
    """``workspace.json``, which makes a folder a workspace.

    Attributes:
        path: The folder in which it was last opened, by which a copy is recognized; None: an early
            rayjobs wrote the record.
        earlier: The previous folders of a moved workspace, newest first.
        formerly: All folders that the workspace's records may name.
        store: The address of its records if they are in PostgreSQL; None: they are in its folder.
        blobs: The address of its files if they are in S3; None: they are in its folder.
        created_s: When it was created, in seconds since 1970; None: the file's modification time
            counts.
    """

    version: int = VERSION
    id: str
    name: str
    path: str | None = None
    earlier: tuple[str, ...] = ()
    formerly: tuple[str, ...] = ()
    store: str | None = None
    blobs: S3Address | None = None
    created_s: float | None = None


@dataclass(frozen=True)
class WorkspaceFiles:
    """Paths of the files in a workspace's folder."""

    root: Path

    @property
    def record(self) -> Path:
        """The workspace's record, a `FolderRecord`."""
        return self.root / "workspace.json"

    @property
    def store(self) -> Path:
        """The records (SQLite, with a -wal and a -shm file next to it while it is open)."""
        return self.root / "store.db"

    @property
    def blobs(self) -> Path:
        """Snapshots and stored files."""
        return self.root / "blobs"

    @property
    def datastores(self) -> Path:
        """The folders of the built-in datastores, by name."""
        return self.root / "datastores"


@dataclass(frozen=True)
class OpenWorkspace:
    """An open workspace; as a context manager it closes its store.

    Attributes:
        path: Its resolved folder, which also identifies it to targets of this machine.
        id: A random id that never changes.
        name: Display name; the project folder's name.
        original: The original with the same id if this is a copy; else None.
        client_folder: Where a client of a server keeps its own files; None means `path`.
        server: The server that all access goes through; then `path` is on its machine.
        store_address: The address of its records in PostgreSQL; None if they are in its folder, or
            behind a server.
    """

    path: Path
    id: str
    name: str
    store: Store
    blobs: BlobStore
    original: Path | None = None
    client_folder: Path | None = None
    server: Connection | None = None
    store_address: str | None = None

    @property
    def own_files(self) -> Path:
        """The folder for this client's own files, such as caches of packed sources."""
        return self.path if self.client_folder is None else self.client_folder

    @property
    def catalogue(self) -> Catalogue:
        """Its datastores and datasets; creates missing built-in datastores."""
        from rayjobs.datastore.catalogue import BUILT_IN_DATASTORES, DatastoreRecord

        catalogue = self.store.catalogue
        if self.server is not None:
            return catalogue  # the server creates them
        known = {record.name for record in catalogue.datastores()}
        address = self.blobs_address
        for name in BUILT_IN_DATASTORES:
            if name in known:
                continue
            if address is not None:
                record = address.record(name, f"{DATASTORES}/{name}")
            else:
                folder = WorkspaceFiles(self.path).datastores / name
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                record = DatastoreRecord(name, "local", {"root": str(folder)})
            # Several processes may do so at once: storing the same record twice changes nothing.
            catalogue.add_datastore(record)
        return catalogue

    @property
    def blobs_address(self) -> S3Address | None:
        """The address of its files in S3; None if they are in its folder."""
        return getattr(self.blobs, "address", None)

    def urls(self) -> dict[str, str]:
        """Return the local path that replaces each web address, by address."""
        return {} if self.server is not None else AzureSettings(self.store).urls()

    def map_addresses(self) -> None:
        """Apply its address map to this whole program until the workspace is closed.

        For programs of one user; a server with many workspaces uses the `urls` of each one.
        """
        url_map.add_source(self._urls_now)

    def _urls_now(self) -> dict[str, str]:
        # A moved or removed workspace must not block the others.
        try:
            return self.urls()
        except StoreError as error:
            log.warning("the address map of %s cannot be read: %s", self.path, error)
            return {}

    def close(self) -> None:
        """Close the store."""
        url_map.remove_source(self._urls_now)
        self.store.close()

    def __enter__(self) -> OpenWorkspace:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def locate(explicit: str | None = None) -> Path:
    """Return the folder of the workspace to use, whether or not it exists.

    In this order: `explicit` (a workspace's folder, or a project that contains one),
    ``RAYJOBS_WORKSPACE``, this user's nearest ``.rayjobs/`` in the working directory or its
    parents, the default workspace in the user's data folder.

    Raises:
        UsageError: the name is empty or a URL, or without `explicit`, this process uses a server.
    """
    if explicit is not None:
        return _named(explicit, "--workspace")
    server_choice.refuse("this command")
    named = os.environ.get(ENVIRONMENT)
    if named:
        return _named(named, ENVIRONMENT)
    here = Path.cwd()
    for folder in (here, *here.parents):
        found = folder / paths.WORKSPACE_DIR
        # Another user's folder in a parent (such as /tmp) does not count.
        if found.is_dir() and found.stat().st_uid == os.getuid():
            return found
    return paths.home() / "workspace"


def id_of(path: str | Path) -> str | None:
    """Return the id of the workspace in a folder; None if it cannot be read now.

    A folder that was removed and recreated is another workspace with the same path.
    """
    try:
        record = _read(WorkspaceFiles(Path(path)))
    except StoreError:
        return None
    return None if record is None else record.id


def earlier_paths(path: str | Path) -> tuple[str, ...]:
    """Return the earlier folders of a moved workspace, newest first."""
    try:
        record = _read(WorkspaceFiles(Path(path)))
    except StoreError:
        return ()
    return () if record is None else record.earlier


def created_s(path: str | Path) -> float:
    """Return when a workspace was created, in seconds since 1970; -inf if it cannot be read."""
    files = WorkspaceFiles(Path(path))
    try:
        record = _read(files)
        if record is not None and record.created_s is not None:
            return record.created_s
        return files.record.stat().st_mtime
    except (OSError, StoreError):
        return -math.inf


def original_of(path: str | Path) -> Path | None:
    """Return the original of the workspace in a folder; None if it is not a copy.

    A copy has the id of an original that still exists. If no other folder has that id, the folder
    was moved.
    """
    files = WorkspaceFiles(Path(os.path.realpath(path)))
    try:
        record = _read(files)
    except StoreError:
        return None
    return None if record is None else _original(files, record)


def become_own(workspace: OpenWorkspace) -> None:
    """Give a copied workspace its own id. The caller must first end its unfinished jobs.

    Raises:
        StoreError: its record cannot be written.
    """
    files = WorkspaceFiles(workspace.path)
    with _record_lock(files):
        record = _read(files)
        if record is None or _original(files, record) is None:
            return  # another process was faster
        _keep_datastores(workspace.store)
        formerly = _formerly(record, files.root)
        own = replace(record, id=token(), path=str(files.root), earlier=(), formerly=formerly)
        _write(files, own)


def _original(files: WorkspaceFiles, record: FolderRecord) -> Path | None:
    """Return another folder that has this record's id, if the record was written elsewhere."""
    known = record.path
    if known is None or known == str(files.root):
        return None
    for path in dict.fromkeys([known, *registrations.everywhere(paths.home())]):
        if path != str(files.root) and id_of(path) == record.id and not _is_same(files, path):
            return Path(path)
    return None


def _is_same(files: WorkspaceFiles, path: str) -> bool:
    """Whether a folder is this one under another path: a bind mount, or a link."""
    try:
        return files.record.samefile(WorkspaceFiles(Path(path)).record)
    except OSError:
        return False


def _note_path(files: WorkspaceFiles, store: Store) -> None:
    """Update records that name the workspace's folder, then record its current path."""
    with _record_lock(files):
        record = _read(files)
        if record is None or record.path == str(files.root):
            return
        if _original(files, record) is not None:
            return
        earlier = (*(() if record.path is None else (record.path,)), *record.earlier)
        _keep_datastores(store)
        formerly = _formerly(record, files.root)
        now = replace(
            record, path=str(files.root), earlier=earlier[:MOST_EARLIER], formerly=formerly
        )
        _write(files, now)


def _formerly(record: FolderRecord, root: Path) -> tuple[str, ...]:
    """Return the earlier folders of the workspace or of its original, newest first.

    All of them stay, because dataset versions keep naming old folders.
    """
    known = [record.path, *record.formerly, *record.earlier]
    return tuple(one for one in dict.fromkeys(known) if one is not None and one != str(root))


def _keep_datastores(store: Store) -> None:
    """Update the paths of datastores inside the workspace's folder."""
    for record in store.catalogue.datastores():
        if record.kind == "local":  # an unchanged record is not written
            store.catalogue.add_datastore(record, overwrite=True)


@contextlib.contextmanager
def _record_lock(files: WorkspaceFiles) -> Iterator[None]:
    try:
        with locked(files.root / ".workspace-lock"):
            yield
    except OSError as error:
        raise StoreError(f"{files.record} cannot be written: {error.strerror}") from error


def _write(files: WorkspaceFiles, record: FolderRecord) -> None:
    if record.created_s is None:
        record = replace(record, created_s=files.record.stat().st_mtime)
    # The entries of a later rayjobs, which may use the same folder, stay.
    values = {**(read_json(files.record) or {}), **record.to_json()}
    write_atomic(files.record, json.dumps(values) + "\n", durable=True, mode=0o600)


def _named(text: str, source: str) -> Path:
    if not text.strip():
        raise UsageError(f"{source} is empty; give the path of a workspace's folder")
    if "://" in text:
        raise UsageError(
            f"{source} is an address; give the path of a workspace's folder. To keep its store in "
            f"PostgreSQL, use: rayjobs workspace create FOLDER --store postgresql://…"
        )
    folder = Path(text).expanduser().absolute()
    inner = folder / paths.WORKSPACE_DIR
    if not WorkspaceFiles(folder).record.exists() and inner.is_dir():
        return inner
    return folder


def open_workspace(
    path: str | Path,
    *,
    create: bool = True,
    clock: Clock | None = None,
    busy_timeout_s: float | None = None,
) -> OpenWorkspace:
    """Open the workspace in the folder `path`; with `create`, create it if it is missing.

    If several processes create it at once, all get the same one. The folder's mode is 0700. This
    upgrades an older store and ends interactive runs whose process is gone.

    Raises:
        NotFoundError: there is no workspace, and `create` is False.
        StoreVersionError: a newer rayjobs wrote the folder or its store.
        StoreError: the folder cannot be used.
    """
    from rayjobs.store.sql import BUSY_TIMEOUT_S, SqlStore
    from rayjobs.workspace.orphans import end_orphans

    # The resolved path identifies the workspace to targets: a target that served a workspace under
    # two names would run its jobs twice.
    files = WorkspaceFiles(Path(os.path.realpath(Path(path).expanduser())))
    record = _read(files)
    if record is None:
        if not create:
            raise NotFoundError(
                f"there is no workspace in {files.root}; submit a job there first, name "
                f"another one with --workspace or {ENVIRONMENT}, or use a server's with "
                "`rayjobs login`"
            )
        record = _create(files)
    address = _address(files, record)
    store = SqlStore(
        address or files.store,
        clock=clock,
        busy_timeout_s=BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s,
    )
    try:
        if address is not None:
            _claim(files, record, store)
        end_orphans(store)
        store.catalogue.follow(files.root, map(Path, _formerly(record, files.root)))
        original = None
        if record.path != str(files.root) and (original := _original(files, record)) is None:
            # A read-only or busy workspace opens anyway; the next call retries.
            with contextlib.suppress(StoreError):
                _note_path(files, store)
        return OpenWorkspace(
            path=files.root,
            id=record.id,
            name=record.name,
            store=store,
            blobs=_blobs(files, record),
            original=original,
            store_address=address,
        )
    except BaseException:
        store.close()
        raise


def store_address(path: str | Path) -> str | None:
    """Return the address of a workspace's records; None if they are in its folder.

    Raises:
        StoreError: the workspace's record cannot be read.
    """
    record = _read(WorkspaceFiles(Path(path)))
    return None if record is None else record.store


def keep_records_in(path: str | Path, address: str | None) -> None:
    """Durably record the new address of a workspace's records.

    Args:
        address: The address in PostgreSQL; None means the folder.

    Raises:
        StoreError: its record cannot be written.
    """
    files = WorkspaceFiles(Path(path))
    with _record_lock(files):
        record = _read(files)
        if record is None:
            raise StoreError(f"{files.record} no longer exists")
        _write(files, replace(record, store=address))


def blobs_address(path: str | Path) -> S3Address | None:
    """Return the S3 address of a workspace's files; None if they are in its folder.

    Raises:
        StoreError: the workspace's record cannot be read.
    """
    record = _read(WorkspaceFiles(Path(path)))
    return None if record is None else record.blobs


def open_blobs(path: str | Path) -> BlobStore | None:
    """Return a workspace's files without opening its store; None if there is no workspace.

    Raises:
        StoreError: the workspace's record cannot be read.
    """
    files = WorkspaceFiles(Path(path))
    record = _read(files)
    if record is None and not files.root.is_dir():
        return None  # must not recreate the folder of a removed workspace
    return _blobs(files, record)


def needs_secrets(path: str | Path) -> bool:
    """Whether a workspace needs credentials because its store or files are not in its folder."""
    try:
        record = _read(WorkspaceFiles(Path(path)))
    except StoreError:
        return False
    return record is not None and bool(record.store or record.blobs)


def _blobs(files: WorkspaceFiles, record: FolderRecord | None) -> BlobStore:
    from rayjobs.workspace import blobs

    if record is not None and record.blobs is not None:
        from rayjobs.workspace.s3_blobs import S3Blobs

        return S3Blobs(record.blobs, files.blobs / blobs.TEMPORARY)
    return blobs.FolderBlobs(files.blobs)


def _address(files: WorkspaceFiles, record: FolderRecord) -> str | None:
    """Return the records' PostgreSQL address, if any; refuse a copied folder.

    A copied SQLite store has its own rows; a copy of such a folder would share the original's.
    """
    address = record.store
    if address is not None and (original := _original(files, record)) is not None:
        raise StoreError(
            f"{files.root} is a copy of the workspace {original}, whose store is in PostgreSQL: "
            f"both would have the same jobs. Use {original}, or create a new workspace with "
            f"`rayjobs workspace create`"
        )
    return address


def _claim(files: WorkspaceFiles, record: FolderRecord, store: SqlStore) -> None:
    owner = store.owner(record.id)
    if owner != record.id:
        raise StoreError(
            f"the store of the workspace {files.root} belongs to another workspace (id {owner}). "
            f"Correct the address in {files.record}"
        )


def _read(files: WorkspaceFiles) -> FolderRecord | None:
    try:
        values = json.loads(files.record.read_text(encoding="utf-8"))
        version = values["version"]
        if isinstance(version, int) and version > VERSION:
            raise StoreVersionError(
                f"the workspace {files.root} has version {version}, and this rayjobs knows "
                f"versions up to {VERSION}: upgrade rayjobs here (pip install --upgrade rayjobs)",
                found=version,
                known=VERSION,
            )
        record = FolderRecord.from_json(values)
        if not (record.id and record.name):
            raise ValueError("its id or name is missing")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{files.record} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{files.record} is damaged ({error}); restore its backup, or remove it: then a "
            f"new one is created, and the jobs in {files.store.name} stay"
        ) from error
    return record


def _ignore_records(root: Path, *, shared: bool) -> None:
    """Keep a new workspace, and nothing else, out of its user's git repository.

    Args:
        root: The folder of the workspace.
        shared: The folder had other files before, such as a project's, which git must still see.
            An existing ignore file is left unchanged.
    """
    text = "".join(f"/{pattern}\n" for pattern in RECORDS) if shared else "*\n"
    with (
        contextlib.suppress(FileExistsError),
        open(root / ".gitignore", "x", encoding="utf-8") as out,
    ):
        out.write(text)


def _create(files: WorkspaceFiles, record: FolderRecord | None = None) -> FolderRecord:
    root = files.root
    made = FolderRecord(id=token(), name=name_of(root)) if record is None else record
    path = str(root) if made.path is None else made.path
    made = replace(made, path=path, created_s=time.time())
    text = json.dumps(made.to_json()) + "\n"
    temporary = root / f".workspace-{token(4)}"
    try:
        make_folders(root)
        shared = any(root.iterdir())
        try:
            with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            # Unlike a rename, a link lets the first of several processes win.
            os.link(temporary, files.record)
            # Records and stored files never belong in a repository.
            _ignore_records(root, shared=shared)
        except FileExistsError:
            pass  # another process was first; its record is read below
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"no workspace can be created in {root}: {error.strerror}; name another folder with "
            f"--workspace or {ENVIRONMENT}"
        ) from error
    found = _read(files)
    if found is None:
        raise StoreError(f"{files.record} disappeared while the workspace was created")
    return found


def name_of(root: Path) -> str:
    """Return the name of a new workspace: the name of the project's folder."""
    return (root.parent if root.name == paths.WORKSPACE_DIR else root).name or "workspace"


def record_of(path: str | Path) -> FolderRecord | None:
    """Return the record of the workspace in a folder; None if there is no workspace.

    Raises:
        StoreError: it cannot be read.
    """
    return _read(WorkspaceFiles(Path(path)))


def write_record(path: str | Path, record: FolderRecord) -> None:
    """Make a folder the workspace of a record, unless it already is one; creates it now.

    Raises:
        StoreError: it cannot be written.
    """
    _create(WorkspaceFiles(Path(path)), record)
