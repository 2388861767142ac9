"""Maintains a store's file: check, backup, restore, upgrade."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from rayjobs.core.durable import sync_folder
from rayjobs.core.errors import (
    NotFoundError,
    StoreBusyError,
    StoreError,
    StoreLostError,
    StoreVersionError,
    UsageError,
)
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.store import dropped
from rayjobs.store.dropped import Dropped
from rayjobs.store.filesystem import SHARED, file_system_of
from rayjobs.store.schema import OLDEST, UNRELEASED, VERSION, version_of
from rayjobs.store.witness import Witness, events_of

BUSY_TIMEOUT_S = 10.0
POLL_S = 0.1
_MOST_FAULTS = 10
_BESIDE = ("-wal", "-shm", "-journal")  # SQLite would replay their content


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a check.

    Attributes:
        version: The schema's version; 0 for a file that is not a store.
        file_system: The kind of file system, e.g. "ext4"; empty if unknown.
        problems: Why the store is unusable, with remedies.
        warnings: Risks that may become problems.
    """

    path: Path
    version: int
    bytes: int
    is_whole: bool
    file_system: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Upgrade:
    """The result of an upgrade; `copy` is the path of a copy made before it, if one was made."""

    old: int
    new: int
    copy: Path | None = None


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Attributes:
        old: Path of the replaced store; None if there was none, or the store was accepted.
        dropped: Records of the replaced store that the restored one lacks.
    """

    old: Path | None
    dropped: Dropped


def check(path: Path) -> Report:
    """Check a store's file of any version; changes nothing.

    Raises:
        StoreBusyError: another process keeps it locked.
    """
    problems, warnings = [], []
    note, lost = Witness(path).read(), ""
    version, faults = 0, ["it cannot be read"]
    try:
        with opened(path, read_only=True) as connection:
            version = version_of(connection)
            faults = [
                str(row[0])
                for row in connection.execute(f"PRAGMA integrity_check({_MOST_FAULTS})")
                if row[0] != "ok"
            ]
            Witness(path).check(connection, note)
    except StoreLostError as error:
        lost = str(error)
    except sqlite3.DatabaseError as error:
        _raise_if_busy(error, path)
        faults = [str(error)]
    if faults:
        problems.append(
            f"it is damaged ({'; '.join(faults[:3])}). Put a backup in its place with `rayjobs db "
            f"restore FILE`; `rayjobs db backup` makes one"
        )
    elif lost:
        problems.append(lost)
    elif version > VERSION:
        problems.append(
            f"its version is {version}, but this rayjobs knows versions up to {VERSION}. Upgrade "
            "rayjobs: pip install --upgrade rayjobs"
        )
    elif version == 0:
        problems.append("it has no records of rayjobs. Name another workspace")
    elif version < OLDEST:
        problems.append(f"its version is {version}: {UNRELEASED}")
    elif version < VERSION:
        warnings.append(
            f"its version is {version}, but this rayjobs writes {VERSION}: the next command "
            "upgrades it. `rayjobs db upgrade` does it now and keeps a copy"
        )
    kind = file_system_of(path.parent)
    if kind in SHARED:
        warnings.append(
            f"it is on a network file system ({kind}), where SQLite's locks do not hold "
            f"between machines: use it only from this machine, or move the workspace to a local "
            f"disk"
        )
    return Report(
        path=path,
        version=version,
        bytes=_size(path),
        is_whole=not faults,
        file_system=kind,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def backup(path: Path, to: Path) -> None:
    """Write a complete copy of a store of any version to `to` (0600), while others use it.

    The copy appears under its name once it is complete, checked and on the disk.

    Raises:
        UsageError: `to` exists, or its folder does not.
        StoreError: the store is damaged, or the copy cannot be written.
    """
    if to.exists() or to.is_symlink():
        raise UsageError(f"{to} exists; name a new file for the backup")
    if not to.parent.is_dir():
        raise UsageError(f"{to.parent} is not a folder; create it first")
    draft = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with opened(path, read_only=True) as source, opened(draft) as copy:
            source.backup(copy)
            # One portable file, without the -wal and -shm files of a store in use.
            copy.execute("PRAGMA journal_mode = DELETE")
            if copy.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise StoreError(f"{path} is damaged; see `rayjobs db check`", path=str(path))
        sync(draft)
        os.link(draft, to)  # unlike a rename, it does not replace a file that appeared meanwhile
        sync_folder(to.parent)
    except FileExistsError as error:
        raise UsageError(f"{to} exists; name a new file for the backup") from error
    except sqlite3.DatabaseError as error:
        _raise_if_busy(error, path)
        raise StoreError(f"{path} could not be copied to {to}: {error}", path=str(path)) from error
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error.strerror}", path=str(to)) from error
    finally:
        for left in (draft, *(draft.with_name(draft.name + end) for end in ("-wal", "-shm"))):
            left.unlink(missing_ok=True)


def would_drop(path: Path, source: Path) -> Dropped:
    """Return the records that restoring `source` over the store `path` would drop.

    Raises:
        NotFoundError: there is no such backup.
        UsageError: it is not a store.
    """
    _check_backup(source)
    with contextlib.ExitStack() as stack:
        backup = stack.enter_context(opened(source, read_only=True))
        old = stack.enter_context(opened(path, read_only=True)) if path.exists() else None
        return dropped.compare(old, backup)


def restore(path: Path, source: Path | None) -> Restored:
    """Replace a store with a backup, or accept the store as it is; return the dropped records.

    The replaced store is kept next to it under another name. Processes that open the store
    meanwhile are refused, even if this process is killed; repeating the restore completes it.

    Args:
        source: The backup; None: the store as it is, or an empty one if it was deleted.

    Raises:
        NotFoundError: there is no such backup.
        UsageError: it is not a store.
        StoreBusyError: another process has the store open.
        StoreError: it cannot be written.
    """
    witness = Witness(path)
    if source is None:
        witness.path.unlink(missing_ok=True)
        return Restored(None, dropped.UNKNOWN)
    _check_backup(source)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside, was_there = unused(path, f"{path.stem}-replaced"), path.exists()
    try:
        backup(source, draft)
        with alone(path) as old:
            with opened(draft) as connection:
                found = dropped.compare(old, connection)
                connection.execute("BEGIN")
                dropped.note(connection, found, source=source, kept_in=aside if was_there else None)
                connection.execute("COMMIT")
                events = events_of(connection)
            sync(draft)
            # A store with fewer events than its witness is refused to everyone, like an absent one,
            # so no process can open it before the last step.
            witness.note(events + 1, synced=True)
            witness.close()
            note = witness.read()
            if note is None or not note.expected:
                raise StoreError(f"{witness.path} cannot be written", path=str(path))
            if was_there:
                path.rename(aside)
            for end in _BESIDE:
                part = path.with_name(path.name + end)
                if part.exists():
                    part.replace(aside.with_name(aside.name + end))
            draft.replace(path)
            sync_folder(path.parent)
            witness.path.unlink(missing_ok=True)
            witness.note(events, synced=True)
            witness.close()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be replaced: {error}", path=str(path)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", path=str(path)) from error
    finally:
        draft.unlink(missing_ok=True)
    return Restored(aside if was_there else None, found)


def _check_backup(source: Path) -> None:
    if not source.is_file():
        kind = UsageError if source.exists() else NotFoundError
        raise kind(f"there is no file {source}; name a backup made by `rayjobs db backup`")
    report = check(source)
    if report.problems:
        raise UsageError(f"{source} cannot be restored: {report.problems[0]}")


def upgrade(path: Path, *, keep_copy: bool = True) -> Upgrade:
    """Bring a store to this code's version in one transaction.

    Args:
        keep_copy: Write ``store-version-N.db`` next to it first.

    Raises:
        StoreVersionError: it is newer.
        StoreError: it is damaged or not a store; nothing was changed.
    """
    report = check(path)
    if report.version > VERSION:
        raise StoreVersionError(
            f"the store {path} has version {report.version}, but this rayjobs knows versions up to "
            f"{VERSION}: upgrade rayjobs here (pip install --upgrade rayjobs)",
            found=report.version,
            known=VERSION,
        )
    if report.problems:
        raise StoreError(f"the store {path} cannot be upgraded: {report.problems[0]}")
    if report.version == VERSION:
        return Upgrade(VERSION, VERSION)
    copy = _free_name(path, report.version) if keep_copy else None
    if copy is not None:
        backup(path, copy)
    from rayjobs.store.sql import SqlStore

    SqlStore(path).close()  # opening it upgrades it
    return Upgrade(report.version, VERSION, copy)


def _free_name(path: Path, version: int) -> Path:
    return unused(path, f"{path.stem}-version-{version}")


def unused(path: Path, stem: str) -> Path:
    """Return an unused name for a store next to `path`: ``STEM.db`` or ``STEM-N.db``."""
    number = 1
    found = path.with_name(f"{stem}.db")
    while any(found.with_name(found.name + end).exists() for end in ("", *_BESIDE)):
        number += 1
        found = path.with_name(f"{stem}-{number}.db")
    return found


@contextlib.contextmanager
def alone(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Lock all other processes out of a store, and merge its WAL into the main file if possible.

    Yields the locking connection; None if there is no store.

    Raises:
        StoreBusyError: another process has it open.
    """
    if not path.exists():
        yield None
        return
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    with opened(path) as connection:
        while True:
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = DELETE")  # merges the -wal file
                connection.execute("PRAGMA journal_mode = MEMORY")
                connection.execute("BEGIN EXCLUSIVE")
                # The store is one complete file; leftovers of the lock are useless.
                for end in ("-journal", "-shm"):
                    path.with_name(path.name + end).unlink(missing_ok=True)
                break
            except sqlite3.DatabaseError as error:
                if not _is_busy(error):
                    break  # it is damaged: write nothing more to it
                if time.monotonic() > deadline:
                    raise StoreBusyError(
                        f"another process has the store {path} open; see which (`fuser -v "
                        f"{path}`), end it (a target: `rayjobs target stop`), then repeat",
                        path=str(path),
                    ) from error
                time.sleep(POLL_S)
        yield connection


@contextlib.contextmanager
def opened(path: Path, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a connection in autocommit mode, without checking the file's version or its note."""
    # A question mark or percent sign in a folder's name must not be parsed as part of the URI.
    uri = path.absolute().as_uri() + ("?mode=ro" if read_only else "")
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _raise_if_busy(error: sqlite3.DatabaseError, path: Path) -> None:
    if _is_busy(error):
        raise StoreBusyError(
            f"the store {path} has been locked by another process for longer than "
            f"{duration_text(BUSY_TIMEOUT_S)}; see who has it open (`fuser -v {path}`), "
            "then repeat",
            path=str(path),
        ) from error


def _size(path: Path) -> int:
    total = 0
    for one in (path, path.with_name(path.name + "-wal")):
        with contextlib.suppress(FileNotFoundError):
            total += one.stat().st_size
    return total


def sync(path: Path) -> None:
    """Write a file's bytes to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
