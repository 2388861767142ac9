"""Registered environments: versions of definitions, and the labels that point to them."""

from __future__ import annotations

import hashlib
import sqlite3

from rayjobs.core.errors import NotFoundError
from rayjobs.jobs.records import EnvironmentVersion
from rayjobs.store.part import Part
from rayjobs.store.rows import time_of

SAME = """
SELECT * FROM environments WHERE name = :name AND digest = :digest ORDER BY version DESC LIMIT 1
"""

INSERT = """
INSERT INTO environments (name, version, definition, digest, created_by, created_at)
SELECT :name, COALESCE(MAX(version), 0) + 1, :definition, :digest, :user, :now
FROM environments WHERE name = :name
RETURNING *
"""

ONE = "SELECT * FROM environments WHERE name = :name AND version = :version"
NEWEST = "SELECT * FROM environments WHERE name = :name ORDER BY version DESC LIMIT 1"
ALL_OF_ONE = "SELECT * FROM environments WHERE name = :name ORDER BY version DESC"
NEWEST_OF_ALL = """
SELECT * FROM environments AS one
WHERE version = (SELECT MAX(version) FROM environments WHERE name = one.name) ORDER BY name
"""

SET_LABEL = """
INSERT INTO environment_labels (name, label, version) VALUES (:name, :label, :version)
ON CONFLICT (name, label) DO UPDATE SET version = excluded.version
"""


class EnvironmentsPart(Part):
    """Rows of environments and labels."""

    def put_environment(self, name: str, definition: str, *, user: str) -> EnvironmentVersion:
        """See `Store.put_environment`."""
        values = {
            "name": name,
            "definition": definition,
            "digest": hashlib.sha256(definition.encode()).hexdigest(),
            "user": user,
            "now": self._now(),
        }
        with self._database.write(durable=True) as connection:
            row = connection.execute(SAME, values).fetchone()
            if row is None:
                row = connection.execute(INSERT, values).fetchone()
            return _version_of(connection, row)

    def environment(
        self, name: str, *, version: int | None = None, label: str | None = None
    ) -> EnvironmentVersion:
        """See `Store.environment`."""
        with self._database.read() as connection:
            if label is not None:
                found = connection.execute(
                    "SELECT version FROM environment_labels WHERE name = :name AND label = :label",
                    {"name": name, "label": label},
                ).fetchone()
                if found is None:
                    raise NotFoundError(f"the environment {name!r} has no label {label!r}")
                version = int(found["version"])
            return _version_of(connection, _row_of(connection, name, version))

    def environments(self, *, name: str | None = None) -> list[EnvironmentVersion]:
        """See `Store.environments`."""
        with self._database.read() as connection:
            query = NEWEST_OF_ALL if name is None else ALL_OF_ONE
            values = {} if name is None else {"name": name}
            rows = connection.execute(query, values).fetchall()
            return [_version_of(connection, row) for row in rows]

    def set_environment_label(self, name: str, label: str, version: int) -> None:
        """See `Store.set_environment_label`."""
        with self._database.write(durable=True) as connection:
            _row_of(connection, name, version)
            connection.execute(SET_LABEL, {"name": name, "label": label, "version": version})


def _row_of(connection: sqlite3.Connection, name: str, version: int | None) -> sqlite3.Row:
    values = {"name": name, "version": version}
    row: sqlite3.Row | None = connection.execute(
        NEWEST if version is None else ONE, values
    ).fetchone()
    if row is not None:
        return row
    newest = connection.execute(NEWEST, values).fetchone()
    if newest is None:
        raise NotFoundError(f"there is no environment {name!r}; `rayjobs env ls` lists them")
    raise NotFoundError(
        f"the environment {name!r} has no version {version}; the newest is {newest['version']}"
    )


def _version_of(connection: sqlite3.Connection, row: sqlite3.Row) -> EnvironmentVersion:
    labels = connection.execute(
        "SELECT label FROM environment_labels WHERE name = :name AND version = :version "
        "ORDER BY label",
        {"name": row["name"], "version": row["version"]},
    ).fetchall()
    return EnvironmentVersion(
        name=row["name"],
        version=int(row["version"]),
        definition=row["definition"],
        created_by=row["created_by"],
        created_at=time_of(row["created_at"]),
        labels=tuple(one["label"] for one in labels),
    )
