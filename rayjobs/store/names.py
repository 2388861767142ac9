"""Default names for jobs: ``train-1``, ``train-2``, each unique in a store."""

from __future__ import annotations

import sqlite3

# The last number given to a name, kept in `meta`. It only grows, so that no job gets the name of a
# pruned one.
COUNT = """
INSERT INTO meta (key, value) VALUES (:key, '1')
ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(meta.value AS INTEGER) + 1 AS TEXT)
RETURNING value
"""
TAKEN = (
    "SELECT 1 FROM jobs WHERE name = :name UNION ALL SELECT 1 FROM jobs WHERE display_name = :name"
)


def next_name(connection: sqlite3.Connection, name: str) -> str:
    """Return `name` with the next unused number, in the caller's transaction."""
    while True:
        [number] = connection.execute(COUNT, {"key": f"jobs named {name}"}).fetchone()
        numbered = f"{name}-{number}"
        if connection.execute(f"{TAKEN} LIMIT 1", {"name": numbered}).fetchone() is None:
            return numbered
