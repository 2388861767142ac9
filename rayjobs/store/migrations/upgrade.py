"""Run the migrations of one SQLite store in one transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

LOCK_TIMEOUT_S = 60.0
VERSIONS = Path(__file__).parent / "versions"


def upgrade(path: Path, *, to: int, versions: Path | None = None) -> None:
    """Bring the store at `path` to schema version `to`, unless it has that version already.

    All steps, alembic's own mark and SQLite's `user_version` are one transaction: a kill in the
    middle leaves the store as it was, and the next call starts again. Waits for other writers.

    Args:
        path: The store's file.
        to: The version to reach.
        versions: The folder of the steps; None takes those of the package.
    """

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.NullPool)

    # The driver would begin late, or not at all before DDL. Source: SQLAlchemy's documentation
    # of the pysqlite dialect, "Serializable isolation / Savepoints / Transactional DDL".
    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    @sa.event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        # Rebuilding a table must not cascade; the commit is worth an fsync.
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA synchronous = FULL")

    config = Config()
    config.set_main_option("script_location", _escaped(Path(__file__).parent))
    config.set_main_option("version_locations", _escaped(versions or VERSIONS))
    config.set_main_option("path_separator", "newline")
    try:
        with engine.begin() as connection:
            found = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
            if found >= to:
                return  # another process did it while we waited for the lock
            config.attributes["connection"] = connection
            command.upgrade(config, f"{to:04d}")
            connection.exec_driver_sql(f"PRAGMA user_version = {to:d}")
    finally:
        engine.dispose()


def _escaped(path: Path) -> str:
    """Return a path as a value of alembic's configuration, where ``%`` begins a reference."""
    return str(path).replace("%", "%%")
