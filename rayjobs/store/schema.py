"""The version of the store's schema: checks it, creates it, and upgrades an older store to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rayjobs.core.errors import StoreError, StoreVersionError

VERSION = 15  # the number of the newest file in migrations/versions
OLDEST = 7  # earlier versions were never released; no migration leads from them
UNRELEASED = (
    "a development version of rayjobs wrote it, and this version cannot read it; make a new "
    "workspace"
)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema's version; 0 for a new file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_version(connection: sqlite3.Connection, where: str) -> None:
    """Refuse a store whose version differs from this code's.

    Raises:
        StoreVersionError: it is newer (it was upgraded) or older.
    """
    found = version_of(connection)
    if found > VERSION:
        raise StoreVersionError(
            f"the store {where} has schema version {found}, but this rayjobs knows versions up to "
            f"{VERSION}: upgrade rayjobs here (pip install --upgrade rayjobs)",
            found=found,
            known=VERSION,
        )
    if found < VERSION:
        raise StoreVersionError(
            f"the store {where} has schema version {found} instead of {VERSION}: open it again",
            found=found,
            known=VERSION,
        )


def bring_up_to_date(connection: sqlite3.Connection, path: Path | None) -> None:
    """Create the schema in a new store, or migrate an older one, each in one transaction.

    `connection` must be in autocommit mode. Many processes may call it at once, even after one was
    killed in the middle: its uncommitted changes are gone.

    Raises:
        StoreVersionError: the store is newer than this code, or older than the first release.
        StoreError: the file is another program's database.
    """
    found = version_of(connection)
    if found == VERSION:
        return
    where = str(path or ":memory:")
    if found > VERSION:
        check_version(connection, where)
    if 0 < found < OLDEST:
        raise StoreVersionError(
            f"the store {where} has schema version {found}: {UNRELEASED}",
            found=found,
            known=VERSION,
        )
    if found == 0:
        _create(connection, where)
    elif path is None:
        raise StoreError("a store in memory is always created new")
    else:
        _migrate(path)


def _create(connection: sqlite3.Connection, where: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have created it while we waited for the lock.
        if version_of(connection) == 0:
            names = connection.execute("SELECT name FROM sqlite_master LIMIT 3").fetchall()
            if names:
                raise StoreError(
                    f"{where} is a database, but not a store of rayjobs (it has "
                    f"{', '.join(name for (name,) in names)}); name another path"
                )
            for statement in schema_statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION:d}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def schema_statements() -> list[str]:
    """Return the statements that create a new store."""
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [part.strip() for part in bare.split(";\n") if part.strip()]


def _migrate(path: Path) -> None:
    from rayjobs.store.migrations.upgrade import upgrade  # imports alembic: only when needed

    upgrade(path, to=VERSION)
