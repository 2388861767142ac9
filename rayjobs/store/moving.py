"""Moves a store between a file and PostgreSQL: copies rows, compares them, and switches over.

No other process reads or writes either store meanwhile. If the move is killed at any moment, the
workspace has one store, or is refused with the command that finishes the move; a repeated move
starts with an empty copy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.durable import sync_folder
from rayjobs.core.errors import NotFoundError, StoreError, StoreVersionError, UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.store import care
from rayjobs.store.postgres import MOVED, Connection, PostgresDatabase
from rayjobs.store.schema import VERSION, bring_up_to_date, version_of
from rayjobs.store.witness import Witness, events_of

if TYPE_CHECKING:
    from sqlalchemy import Table

BUSY_TIMEOUT_S = 10.0
_BATCH = 500  # rows that are read or sent at a time
_OWNER = "workspace"  # keys of `meta` that only a store in PostgreSQL has
_UNFINISHED = "moving"
_OWN_KEYS = (_OWNER, _UNFINISHED)
Switch = Callable[[], None]
"""A function that durably makes the workspace use the new store."""


@dataclass(frozen=True)
class Moved:
    """The result of a move.

    Attributes:
        rows: How many rows were copied and compared.
        tables: The number of tables.
        old: Where the old store is kept: a file, or the address of a schema.
    """

    rows: int
    tables: int
    old: str


def to_postgres(path: Path, url: str, *, workspace: str, switch: Switch) -> Moved:
    """Move a store from its file to PostgreSQL; the file is kept under another name.

    Args:
        path: The file.
        url: See `rayjobs.store.postgres_address.parsed`.
        workspace: The workspace's id, which owns the new store.
        switch: Called once all rows are copied and equal.

    Raises:
        NotFoundError: there is no file.
        UsageError: the schema has other records, or belongs to another workspace.
        StoreVersionError: the file must be upgraded first.
        StoreBusyError: another process has the file open.
        StoreError: rows cannot be written, or differ. The workspace is unchanged.
    """
    witness = Witness(path)
    aside = care.unused(path, f"{path.stem}-moved")
    database = PostgresDatabase(url, busy_timeout_s=BUSY_TIMEOUT_S)
    try:
        with care.alone(path) as source:
            if source is None:
                raise NotFoundError(f"there is no store {path} to move")
            _check_file(source, path)
            with database.exclusive() as target:
                _make_empty(target, database.where, workspace)
                rows = _copy(_of_file(source), _into(target, _in_postgres))
                _set_identities(target, source)
                target.execute(
                    "INSERT INTO meta (key, value) VALUES (?, ?), (?, '1')",
                    (_OWNER, workspace, _UNFINISHED),
                )
            with database.exclusive() as target:
                _compare(_of_file(source), _of_postgres(target))
            # Processes that open the file from now on are refused: it has fewer events than its
            # note says.
            witness.note(events_of(source) + 1, synced=True)
            switch()
            path.rename(aside)
            sync_folder(path.parent)
            witness.close()
            witness.path.unlink(missing_ok=True)
        with database.exclusive() as target:
            target.execute("DELETE FROM meta WHERE key = ?", (_UNFINISHED,))
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be moved: {error}", path=str(path)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be moved: {error.strerror}", path=str(path)) from error
    finally:
        database.close()
    return Moved(rows, len(_tables()), str(aside))


def to_file(url: str, path: Path, *, switch: Switch) -> Moved:
    """Move a store from PostgreSQL into a file; its schema stays, but refuses its users.

    Args:
        url: See `rayjobs.store.postgres_address.parsed`.
        path: The file, which must not exist.
        switch: Called once all rows are copied and equal.

    Raises:
        UsageError: the file exists.
        StoreVersionError: the store has another version.
        StoreError: the server cannot be reached, the file cannot be written, or rows differ. The
            workspace is unchanged.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    database = PostgresDatabase(url, busy_timeout_s=BUSY_TIMEOUT_S)
    try:
        with database.exclusive() as source:
            is_begun = _check_postgres(source, database) == MOVED
            if path.exists() and not is_begun:
                raise UsageError(f"{path} exists; move it away, then repeat the command")
            # From the commit on, every user is refused, even on an open connection.
            source.execute("UPDATE store_state SET version = ?", (MOVED,))
        is_linked = is_done = False
        try:
            with database.exclusive() as source:
                rows = _write_file(source, draft)
            if is_begun:  # left by a killed move, which started without such a file
                path.unlink(missing_ok=True)
            witness = Witness(path)
            witness.path.unlink(missing_ok=True)  # the note of an earlier store at this path
            os.link(draft, path)  # unlike a rename, this never replaces a file
            is_linked = True
            sync_folder(path.parent)
            switch()
            is_done = True
        finally:
            if not is_done:
                if is_linked:
                    path.unlink(missing_ok=True)
                with contextlib.suppress(StoreError), database.exclusive() as source:
                    source.execute("UPDATE store_state SET version = ?", (VERSION,))
    except FileExistsError as error:
        raise UsageError(f"{path} exists; move it away, then repeat the command") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be written: {error}", path=str(path)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", path=str(path)) from error
    finally:
        draft.unlink(missing_ok=True)
        database.close()
    return Moved(rows, len(_tables()), database.where)


def copy_to_file(url: str, path: Path) -> int:
    """Copy all rows of a store in PostgreSQL to a new file while writers wait; return their number.

    Raises:
        StoreVersionError: the store has another version.
        StoreError: the server cannot be reached, the file cannot be written, or rows differ.
    """
    database = PostgresDatabase(url, busy_timeout_s=BUSY_TIMEOUT_S)
    try:
        with database.exclusive() as source:
            if _check_postgres(source, database) == MOVED:
                raise StoreError(f"the records of {database.where} were moved into a file")
            return _write_file(source, path)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be written: {error}", path=str(path)) from error
    finally:
        database.close()


# --- the two stores ------------------------------------------------------------------------------


def _check_file(source: sqlite3.Connection, path: Path) -> None:
    found = version_of(source)
    if found != VERSION:
        raise StoreVersionError(
            f"the store {path} has schema version {found}, but this rayjobs has {VERSION}: run "
            f"`rayjobs db upgrade` first",
            found=found,
            known=VERSION,
        )
    if source.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise StoreError(f"{path} is damaged; see `rayjobs db check`", path=str(path))


def _check_postgres(source: Connection, database: PostgresDatabase) -> int:
    (found,) = source.execute("SELECT version FROM store_state").fetchone() or (0,)
    if found not in (VERSION, MOVED):  # MOVED: the caller finishes a move that was killed
        raise StoreVersionError(
            f"the store {database.where} has schema version {found}, but this rayjobs has "
            f"{VERSION}: use the rayjobs that wrote it",
            found=found,
            known=VERSION,
        )
    return int(found)


def _make_empty(target: Connection, where: str, workspace: str) -> None:
    """Remove leftovers of an earlier move of this workspace; refuse all other rows."""
    own: dict[str, str] = dict(
        target.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", _OWN_KEYS).fetchall()
    )
    owner = own.get(_OWNER, workspace)
    (version,) = target.execute("SELECT version FROM store_state").fetchone() or (0,)
    is_left = _UNFINISHED in own or version == MOVED
    has_rows = any(
        target.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()  # noqa: S608
        for table in _tables()
        if table.name != "meta"
    )
    if owner != workspace or (has_rows and not is_left):
        whose = f"belongs to another workspace (id {owner})" if owner != workspace else "is in use"
        raise UsageError(f"the store {where} {whose}; name another schema: ?schema=NAME")
    for table in reversed(_tables()):
        target.execute(f"DELETE FROM {table.name}")  # noqa: S608
    target.execute("UPDATE store_state SET version = ?", (VERSION,))


def _write_file(source: Connection, draft: Path) -> int:
    """Write all rows into a new file, and compare them; return how many."""
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with care.opened(draft) as target:
        bring_up_to_date(target, draft)
        target.execute("BEGIN IMMEDIATE")
        rows = _copy(_of_postgres(source), _into(target, _in_file))
        for table, newest in _given(source).items():
            target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            target.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, newest))
        target.execute("COMMIT")
        _compare(_of_postgres(source), _of_file(target))
        target.execute("PRAGMA journal_mode = DELETE")
    care.sync(draft)
    return rows


# --- rows ----------------------------------------------------------------------------------------

Rows = Callable[["Table"], Iterable[Sequence[Any]]]
Insert = Callable[["Table", list[tuple[Any, ...]]], None]


def _copy(read: Rows, insert: Insert) -> int:
    total = 0
    for table in _tables():
        rows = iter(read(table))
        while batch := [tuple(row) for row in itertools.islice(rows, _BATCH)]:
            insert(table, batch)
            total += len(batch)
    return total


def _compare(old: Rows, new: Rows) -> None:
    """Compare all rows of two stores, in the order of their keys.

    Raises:
        StoreError: two differ.
    """
    for table in _tables():
        keys = [column.name for column in table.primary_key]
        for one, other in itertools.zip_longest(old(table), new(table)):
            if one is None or other is None or tuple(one) != tuple(other):
                columns = [column.name for column in table.columns]
                row = dict(zip(columns, one or other or (), strict=True))
                named = ", ".join(f"{key} {row[key]!r}" for key in keys)
                raise StoreError(
                    f"the copy differs from the store in table {table.name}, row {named}; nothing "
                    f"was moved. Repeat the command; `rayjobs db check` checks a store in a file"
                )


def _of_file(connection: sqlite3.Connection) -> Rows:
    return lambda table: connection.execute(_select(table))


def _of_postgres(connection: Connection) -> Rows:
    def read(table: Table) -> Iterator[Sequence[Any]]:
        # A server-side cursor: a client-side one would load all rows at once.
        with connection.plain.cursor(name=f"move_{table.name}") as cursor:
            cursor.itersize = _BATCH
            cursor.execute(_select(table).encode())
            yield from cursor

    return read


def _into(target: Any, sentence: Callable[[str], str]) -> Insert:
    def insert(table: Table, batch: list[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" for _ in table.columns)
        try:
            target.executemany(f"INSERT INTO {table.name} VALUES ({marks})", batch)  # noqa: S608
        except (sqlite3.DatabaseError, StoreError) as error:
            raise StoreError(f"{sentence(table.name)}: {error}") from error

    return insert


def _in_postgres(table: str) -> str:
    return f"rows of the table {table} cannot be written into PostgreSQL"


def _in_file(table: str) -> str:
    return f"rows of the table {table} cannot be written into the file"


def _select(table: Table) -> str:
    columns = ", ".join(column.name for column in table.columns)
    keys = ", ".join(column.name for column in table.primary_key)
    own = f" WHERE key NOT IN ('{_OWNER}', '{_UNFINISHED}')" if table.name == "meta" else ""
    return f"SELECT {columns} FROM {table.name}{own} ORDER BY {keys}"  # noqa: S608


def _tables() -> list[Table]:
    from rayjobs.store.tables import metadata  # SQLAlchemy is too slow for everyday commands

    return list(metadata.sorted_tables)


# --- serials: never reused -----------------------------------------------------------------------


def _set_identities(target: Connection, source: sqlite3.Connection) -> None:
    """Make PostgreSQL continue after the last serial that the file assigned."""
    given = dict(source.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    for table in _numbered():
        newest = int(given.get(table, 0))  # SQLite also counts serials that were set explicitly
        sequence = f"pg_get_serial_sequence('{table}', 'serial')"
        target.execute(f"SELECT setval({sequence}, ?, ?)", (max(1, newest), newest > 0))


def _given(source: Connection) -> dict[str, int]:
    """Return the last serial that each table in PostgreSQL has assigned; 0: none."""
    found = {}
    for table in _numbered():
        (name,) = source.execute(
            f"SELECT pg_get_serial_sequence('{table}', 'serial')"
        ).fetchone() or ("",)
        last, is_called = source.execute(
            f"SELECT last_value, is_called FROM {name}"  # noqa: S608
        ).fetchone() or (0, False)
        found[table] = int(last) if is_called else 0
    return found


def _numbered() -> list[str]:
    """Return the tables that number their rows; each of them assigns a serial only once."""
    return [table.name for table in _tables() if "serial" in table.columns]
