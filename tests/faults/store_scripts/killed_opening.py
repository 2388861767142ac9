"""Kill the opening of a store before each writing statement: FOLDER; prints how many.

With FOLDER OLD_STORE VERSION STEPS, kill the upgrade of OLD_STORE to VERSION by the migrations
in the folder STEPS instead.

Leaves FOLDER/<k>.db, killed before statement k + 1; the last one was not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from rayjobs.store.migrations.upgrade import upgrade
from rayjobs.store.sql import SqlStore

real_connect = sqlite3.connect


def open_until(path: Path, last: int) -> None:
    """Open the store in this process, and die before the writing statement number `last`."""
    seen = 0

    def watch(statement: str) -> None:
        nonlocal seen
        if statement.startswith("SELECT") or (
            statement.startswith("PRAGMA") and "=" not in statement
        ):
            return  # a kill before a read leaves what a kill before the next write leaves
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*arguments, **options)
        connection.set_trace_callback(watch)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    open_store(path)


def open_store(path: Path) -> None:
    """Open a store, or upgrade one."""
    if len(sys.argv) > 2:
        upgrade(path, to=int(sys.argv[3]), versions=Path(sys.argv[4]))
    else:
        SqlStore(path).close()


folder = Path(sys.argv[1])
# Open it once in this process, so that all children find every module imported.
if len(sys.argv) > 2:
    shutil.copy(sys.argv[2], folder / "first.db")
open_store(folder / "first.db")
kills = 0
while True:
    path = folder / f"{kills}.db"
    if len(sys.argv) > 2:
        shutil.copy(sys.argv[2], path)
    child = os.fork()
    if child == 0:
        try:
            open_until(path, kills + 1)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        break  # it had fewer statements: this one was not killed
    assert code == -signal.SIGKILL, code
    kills += 1
print(kills)
