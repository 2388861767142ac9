"""The workspace's catalogue of data in its store: datastores, datasets, and their manifests."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.clock import Clock, to_text
from rayjobs.datastore.catalogue import (
    DEFAULT_DATASTORE,
    DatasetRecord,
    DatastoreRecord,
    check_unused,
    dataset_exists,
    dataset_not_found,
    datastore_exists,
    datastore_not_found,
    relocated,
)
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import DatasetInUse, DatasetNotFound, DatastoreUsedByJobs
from rayjobs.store import references
from rayjobs.store.rows import time_of, to_json

if TYPE_CHECKING:
    from rayjobs.store.database import StoreDatabase

DEFAULT_KEY = "default_datastore"

PUT_DATASTORE = """
INSERT INTO datastores (name, kind, settings) VALUES (:name, :kind, :settings)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, settings = excluded.settings
"""

PUT_META = """
INSERT INTO meta (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

# Removed rows stay, so that MAX counts them: a version number is never reused.
INSERT_DATASET = """
INSERT INTO datasets (name, version, id, kind, definition, manifest, description, tags, created_at)
SELECT :name, COALESCE(MAX(version), 0) + 1, :id, :kind, :definition, :manifest, :description,
    :tags, :created_at
FROM datasets WHERE name = :name
RETURNING *
"""

NEWEST_DATASET = """
SELECT * FROM datasets WHERE name = :name AND removed_at IS NULL
    AND (:version IS NULL OR version = :version)
ORDER BY version DESC LIMIT 1
"""

ALL_DATASETS = "SELECT * FROM datasets WHERE removed_at IS NULL ORDER BY name, version"

LATEST_DATASETS = """
SELECT * FROM datasets AS one WHERE removed_at IS NULL AND version = (SELECT MAX(version)
    FROM datasets WHERE name = one.name AND removed_at IS NULL)
ORDER BY name
"""


class StoreCatalogue:
    """A `datastore.catalogue.Catalogue` with its records in rows; safe for threads and processes.

    It raises the errors of `datastore.errors`, and `StoreError` when the store itself cannot be
    read or written.
    """

    def __init__(self, database: StoreDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._root = Path()
        self._former: tuple[Path, ...] = ()

    def follow(self, root: Path, former: Iterable[Path]) -> None:
        """Map folders that were recorded inside one of `former` to the same places inside `root`.

        Args:
            root: The workspace's path.
            former: Its earlier paths, and those of the workspace of which it is a copy.
        """
        self._root, self._former = root, tuple(former)

    def located(self, record: DatastoreRecord) -> DatastoreRecord:
        """See `Catalogue`."""
        root = record.settings.get("root") if record.kind == "local" else None
        if root is None:
            return record
        # A former path may contain the current one or be inside it: the innermost match counts.
        for old in sorted({self._root, *self._former}, key=lambda one: -len(one.parts)):
            if not Path(root).is_relative_to(old):
                continue
            moved = self._root / Path(root).relative_to(old)
            if old == self._root or (
                old.is_relative_to(self._root) and Path(root).is_dir() and not moved.is_dir()
            ):
                return record  # it has not moved, or is an unrelated folder at a former path
            return replace(record, settings={**record.settings, "root": str(moved)})
        return record

    # -- datastores ----------------------------------------------------------------------------
    def add_datastore(self, record: DatastoreRecord, *, overwrite: bool = False) -> None:
        """See `Catalogue`."""
        with self._database.write(durable=True) as connection:
            before = _find_datastore(connection, record.name)
            if before == record:
                return
            if before is not None and not overwrite:
                raise datastore_exists(record.name)
            settings = to_json(dict(record.settings))
            connection.execute(
                PUT_DATASTORE, {"name": record.name, "kind": record.kind, "settings": settings}
            )

    def datastore(self, name: str) -> DatastoreRecord:
        """See `Catalogue`."""
        with self._database.read() as connection:
            return self.located(_datastore(connection, name))

    def datastores(self) -> list[DatastoreRecord]:
        """See `Catalogue`."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT * FROM datastores ORDER BY name").fetchall()
            return [self.located(_datastore_of(row)) for row in rows]

    def remove_datastore(self, name: str, *, force: bool = False) -> None:
        """See `Catalogue`."""
        with self._database.write(durable=True) as connection:
            _datastore(connection, name)
            check_unused(name, map(_dataset_of, connection.execute(ALL_DATASETS)), force=force)
            jobs = references.jobs_using(connection, name)
            if jobs:
                raise DatastoreUsedByJobs(
                    f"datastore {name!r} is used by unfinished jobs: {references.listed(jobs)}. "
                    f"Wait until they end, or cancel them; nothing was removed"
                )
            connection.execute("DELETE FROM datastores WHERE name = :name", {"name": name})
            connection.execute(
                "DELETE FROM meta WHERE key = :key AND value = :name",
                {"key": DEFAULT_KEY, "name": name},
            )

    def default_datastore(self) -> str:
        """See `Catalogue`."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT value FROM meta WHERE key = :key", {"key": DEFAULT_KEY}
            ).fetchone()
            return DEFAULT_DATASTORE if row is None else str(row["value"])

    def set_default_datastore(self, name: str) -> None:
        """See `Catalogue`."""
        with self._database.write(durable=True) as connection:
            _datastore(connection, name)
            connection.execute(PUT_META, {"key": DEFAULT_KEY, "value": name})

    # -- manifests -----------------------------------------------------------------------------
    def put_manifest(self, content: bytes) -> str:
        """See `Catalogue`."""
        digest = digest_of(content)
        with self._database.write(durable=True) as connection:
            connection.execute(
                "INSERT INTO manifests (digest, content) VALUES (:digest, :content) "
                "ON CONFLICT (digest) DO NOTHING",
                {"digest": digest, "content": zlib.compress(content)},
            )
        return digest

    def manifest(self, digest: str) -> bytes:
        """See `Catalogue`."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT content FROM manifests WHERE digest = :digest", {"digest": digest}
            ).fetchone()
        if row is None:
            raise DatasetNotFound(f"this workspace has no manifest {digest}.")
        return zlib.decompress(row["content"])

    # -- datasets ------------------------------------------------------------------------------
    def add_dataset(
        self, record: DatasetRecord, *, create_new_version: bool = False
    ) -> DatasetRecord:
        """See `Catalogue`."""
        values = {
            "name": record.name,
            "id": record.id,
            "kind": record.kind,
            "definition": record.definition,
            "manifest": record.manifest,
            "description": record.description,
            "tags": to_json(dict(record.tags)),
            "created_at": to_text(record.created_at),
        }
        with self._database.write(durable=True) as connection:
            before = _find_dataset(connection, record.name, None)
            if before is not None and not create_new_version:
                raise dataset_exists(record.name, before.version)
            row = connection.execute(INSERT_DATASET, values).fetchone()
            return replace(record, version=int(row["version"]))

    def dataset(self, name: str, version: int | None = None) -> DatasetRecord:
        """See `Catalogue`."""
        with self._database.read() as connection:
            found = _find_dataset(connection, name, version)
            if found is not None:
                return self._placed(found)
            versions = [one.version for one in _versions(connection, name)]
            rows = connection.execute(LATEST_DATASETS).fetchall()
        raise dataset_not_found(name, version, versions, [str(row["name"]) for row in rows])

    def dataset_by_id(self, id: str) -> DatasetRecord:
        """See `Catalogue`."""
        with self._database.read() as connection:
            return self._placed(_dataset_by_id(connection, id))

    def datasets(self) -> list[DatasetRecord]:
        """See `Catalogue`."""
        with self._database.read() as connection:
            rows = connection.execute(LATEST_DATASETS).fetchall()
            return [self._placed(_dataset_of(row)) for row in rows]

    def dataset_versions(self, name: str) -> list[DatasetRecord]:
        """See `Catalogue`."""
        with self._database.read() as connection:
            return [self._placed(one) for one in _versions(connection, name)]

    def set_dataset_tags(self, id: str, tags: Mapping[str, str]) -> DatasetRecord:
        """See `Catalogue`."""
        with self._database.write() as connection:
            kept = _dataset_by_id(connection, id)
            connection.execute(
                "UPDATE datasets SET tags = :tags WHERE id = :id",
                {"id": id, "tags": to_json(dict(tags))},
            )
        return self._placed(replace(kept, tags=dict(tags)))

    def _placed(self, record: DatasetRecord) -> DatasetRecord:
        if not self._former:
            return record
        return replace(record, definition=relocated(record.definition, self))

    def remove_dataset(
        self, name: str, version: int | None = None, *, force: bool = False
    ) -> tuple[str, ...]:
        """See `Catalogue`."""
        title = name if version is None else f"{name}:{version}"
        with self._database.write(durable=True) as connection:
            jobs = references.jobs_reading(connection, name, version)
            if jobs:
                raise DatasetInUse(
                    f"dataset {title} is an input of unfinished jobs: {references.listed(jobs)}. "
                    f"Wait until they end, or cancel them; nothing was deleted"
                )
            models = references.models_made_of(connection, name, version)
            if models and not force:
                raise DatasetInUse(
                    f"dataset {title} is in the lineage of models: {references.listed(models)}. "
                    f"Without it their training data can no longer be fetched by version. "
                    f"Nothing was deleted. To delete it anyway, give --force "
                    f"(in Python: force=True)."
                )
            connection.execute(
                "UPDATE datasets SET removed_at = :now WHERE name = :name AND removed_at IS NULL"
                " AND (:version IS NULL OR version = :version)",
                {"name": name, "version": version, "now": to_text(self._clock.now())},
            )
        return tuple(models)


def _find_datastore(connection: sqlite3.Connection, name: str) -> DatastoreRecord | None:
    row = connection.execute(
        "SELECT * FROM datastores WHERE name = :name", {"name": name}
    ).fetchone()
    return None if row is None else _datastore_of(row)


def _datastore(connection: sqlite3.Connection, name: str) -> DatastoreRecord:
    found = _find_datastore(connection, name)
    if found is not None:
        return found
    rows = connection.execute("SELECT name FROM datastores ORDER BY name").fetchall()
    raise datastore_not_found(name, [str(row["name"]) for row in rows])


def _datastore_of(row: sqlite3.Row) -> DatastoreRecord:
    return DatastoreRecord(row["name"], row["kind"], json.loads(row["settings"]))


def _find_dataset(
    connection: sqlite3.Connection, name: str, version: int | None
) -> DatasetRecord | None:
    row = connection.execute(NEWEST_DATASET, {"name": name, "version": version}).fetchone()
    return None if row is None else _dataset_of(row)


def _dataset_by_id(connection: sqlite3.Connection, id: str) -> DatasetRecord:
    row = connection.execute(
        "SELECT * FROM datasets WHERE id = :id AND removed_at IS NULL", {"id": id}
    ).fetchone()
    if row is None:
        raise DatasetNotFound(f"no dataset in this workspace has the id {id!r}.")
    return _dataset_of(row)


def _versions(connection: sqlite3.Connection, name: str) -> list[DatasetRecord]:
    rows = connection.execute(
        "SELECT * FROM datasets WHERE name = :name AND removed_at IS NULL ORDER BY version",
        {"name": name},
    ).fetchall()
    return [_dataset_of(row) for row in rows]


def _dataset_of(row: sqlite3.Row) -> DatasetRecord:
    return DatasetRecord(
        id=row["id"],
        name=row["name"],
        kind=row["kind"],
        definition=row["definition"],
        manifest=row["manifest"],
        description=row["description"],
        tags=json.loads(row["tags"]),
        version=int(row["version"]),
        created_at=time_of(row["created_at"]),
    )
