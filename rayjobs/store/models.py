"""Models: versions with their files and lineage, and the aliases that point to them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.events import ModelRefused
from rayjobs.jobs.records import (
    INTERACTIVE,
    ModelDraft,
    ModelFile,
    ModelRefusal,
    ModelVersion,
    StoredFile,
)
from rayjobs.jobs.states import JobState
from rayjobs.store import references
from rayjobs.store.part import Part
from rayjobs.store.rows import time_of, to_json

REGISTERED = "model"  # kind of the event of a run whose requested model was registered

# Placeholders for a job's id and attempt in a version without a run.
NO_RUN: Mapping[str, Any] = {"id": "", "attempt": 0}

# Deleted rows stay, so that MAX counts them: a number is never reused.
INSERT_MODEL = """
INSERT INTO models (name, version, run, attempt, path, digest, files, lineage, framework,
    framework_version, description, tags, properties, created_by, created_at)
SELECT :name, COALESCE(MAX(version), 0) + 1, :run, :attempt, :path, :digest, :files, :lineage,
    :framework, :framework_version, :description, :tags, :properties, :user, :now
FROM models WHERE name = :name
RETURNING *
"""

SAME_MODEL = """
SELECT * FROM models
WHERE name = :name AND run = :run AND path = :path AND digest = :digest AND deleted_at IS NULL
ORDER BY version DESC LIMIT 1
"""

ONE_MODEL = "SELECT * FROM models WHERE name = :name AND version = :version AND deleted_at IS NULL"

NEWEST_MODEL = """
SELECT * FROM models WHERE name = :name AND deleted_at IS NULL ORDER BY version DESC LIMIT 1
"""

MODELS = """
SELECT * FROM models AS one
WHERE deleted_at IS NULL AND (:name IS NULL OR name = :name) AND (:run IS NULL OR run = :run)
    AND (NOT :latest OR version = (SELECT MAX(version) FROM models
        WHERE name = one.name AND deleted_at IS NULL))
ORDER BY name, version DESC
"""

SET_ALIAS = """
INSERT INTO model_aliases (name, alias, version) VALUES (:name, :alias, :version)
ON CONFLICT (name, alias) DO UPDATE SET version = excluded.version
"""

UPDATE_MODEL = """
UPDATE models SET tags = :tags, properties = :properties, description = :description,
    lineage = :lineage
WHERE name = :name AND version = :version RETURNING *
"""


class ModelsPart(Part):
    """Rows of models and aliases."""

    def put_model(self, run: str | None, draft: ModelDraft) -> tuple[ModelVersion, bool]:
        """See `Store.put_model`."""
        with self._database.write(durable=True) as connection:
            if run is None:
                row, is_new = _register(connection, NO_RUN, draft, self._now())
                return _model_of(connection, row), is_new
            job = self._row(connection, run)
            # The writer of an interactive run decides when its files are complete.
            is_written = job["kind"] == INTERACTIVE and job["state"] == JobState.RUNNING
            if job["state"] != JobState.COMPLETED and not is_written:
                raise UsageError(
                    f"run {run} is {job['state']}: only a completed run can become a model",
                    run=run,
                )
            row, is_new = _register(connection, job, draft, self._now())
            return _model_of(connection, row), is_new

    def model(
        self, name: str, *, version: int | None = None, alias: str | None = None
    ) -> ModelVersion:
        """See `Store.model`."""
        with self._database.read() as connection:
            if alias is not None:
                found = connection.execute(
                    "SELECT version FROM model_aliases WHERE name = :name AND alias = :alias",
                    {"name": name, "alias": alias},
                ).fetchone()
                if found is None:
                    raise _no_alias(connection, name, alias)
                version = int(found["version"])
            return _model_of(connection, _row_of(connection, name, version))

    def models(
        self, *, name: str | None = None, run: str | None = None, latest: bool = False
    ) -> list[ModelVersion]:
        """See `Store.models`."""
        values = {"name": name, "run": run, "latest": latest}
        with self._database.read() as connection:
            rows = connection.execute(MODELS, values).fetchall()
            return [_model_of(connection, row) for row in rows]

    def update_model(
        self,
        name: str,
        version: int,
        *,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        data: Sequence[Mapping[str, Any]] = (),
    ) -> ModelVersion:
        """See `Store.update_model`."""
        with self._database.write() as connection:
            row = _row_of(connection, name, version)
            row = _update(connection, row, tags, properties, description, data)
            return _model_of(connection, row)

    def set_model_alias(self, name: str, alias: str, version: int | None) -> None:
        """See `Store.set_model_alias`."""
        values = {"name": name, "alias": alias, "version": version}
        with self._database.write(durable=True) as connection:
            if version is None:
                gone = connection.execute(
                    "DELETE FROM model_aliases WHERE name = :name AND alias = :alias", values
                )
                if gone.rowcount == 0:
                    raise _no_alias(connection, name, alias)
            else:
                _row_of(connection, name, version)
                connection.execute(SET_ALIAS, values)

    def delete_model(self, name: str, version: int, *, force: bool = False) -> tuple[str, ...]:
        """See `Store.delete_model`."""
        values = {"name": name, "version": version, "now": self._now()}
        with self._database.write(durable=True) as connection:
            aliases = _model_of(connection, _row_of(connection, name, version)).aliases
            if aliases and not force:
                names = references.listed([f"{name}@{alias}" for alias in aliases])
                raise UsageError(
                    f"model {name}:{version} is the target of {names}. Point the alias at another "
                    f"version (`rayjobs model alias {name}:VERSION {aliases[0]}`), or delete both "
                    f"with --force; nothing was deleted"
                )
            connection.execute(
                "UPDATE models SET deleted_at = :now WHERE name = :name AND version = :version",
                values,
            )
            connection.execute(
                "DELETE FROM model_aliases WHERE name = :name AND version = :version", values
            )
        return tuple(aliases)


def register_all(
    connection: sqlite3.Connection,
    job: sqlite3.Row,
    models: Sequence[ModelDraft | ModelRefusal],
    now: str,
) -> list[tuple[str, str, dict[str, Any]]]:
    """Register the models that a completing run requested; return events: kind, message, data."""
    registrations: list[tuple[str, str, dict[str, Any]]] = []
    for one in models:
        if isinstance(one, ModelRefusal):
            why = one.why
        else:
            try:
                # The end is known only now: the run ends in this transaction.
                draft = replace(one, lineage={**one.lineage, "ended_at": now})
                row, _ = _register(connection, job, draft, now)
            except UsageError as error:  # raised before anything is written
                why = str(error)
            else:
                version = row["version"]
                data = {"name": one.name, "path": one.path, "version": version}
                registrations.append((REGISTERED, f"{one.name}:{version} is {one.path}", data))
                continue
        message = f"the model {one.name!r} of {one.path!r} was not registered: {why}"
        refused = ModelRefused(one.name, one.path, why)
        registrations.append((ModelRefused.KIND, message, refused.to_json()))
    return registrations


def refusals(registrations: Sequence[tuple[str, str, Mapping[str, Any]]]) -> str:
    """Return the reason of a run that completed without all its models, else an empty string."""
    found = [message for kind, message, _ in registrations if kind == ModelRefused.KIND]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""


def _register(
    connection: sqlite3.Connection,
    job: sqlite3.Row | Mapping[str, Any],
    draft: ModelDraft,
    now: str,
) -> tuple[sqlite3.Row, bool]:
    """Write a version, or find the identical one; raise UsageError before writing."""
    run = job["id"]
    values = {
        "name": draft.name,
        "run": run,
        "attempt": job["attempt"],
        "path": draft.path,
        "digest": draft.digest,
        "files": to_json([asdict(one) for one in draft.files]),
        "lineage": to_json(dict(draft.lineage)),
        "framework": draft.framework,
        "framework_version": draft.framework_version,
        "description": draft.description or "",
        "tags": to_json(dict(draft.tags)),
        "properties": to_json(dict(draft.properties)),
        "user": draft.user,
        "now": now,
    }
    _check_sources(connection, run, draft.sources)
    row = connection.execute(SAME_MODEL, values).fetchone()
    is_new = row is None
    if row is None:
        row = connection.execute(INSERT_MODEL, values).fetchone()
    else:
        row = _update(connection, row, draft.tags, draft.properties, draft.description)
    for alias in draft.aliases:
        connection.execute(
            SET_ALIAS, {"name": draft.name, "alias": alias, "version": row["version"]}
        )
    return row, is_new


def _check_sources(connection: sqlite3.Connection, run: str, sources: Sequence[StoredFile]) -> None:
    """Refuse files that the run does not have, or whose bytes have changed."""
    rows = connection.execute("SELECT name, digest FROM files WHERE job = :run", {"run": run})
    known = {row["name"]: row["digest"] for row in rows}
    for one in sources:
        if known.get(one.name) != one.digest:
            what = "has changed" if one.name in known else "is not there"
            raise UsageError(
                f"the file {one.name!r} of run {run} {what}; nothing was registered. Repeat the "
                f"call",
                run=run,
            )


def _row_of(connection: sqlite3.Connection, name: str, version: int | None) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        NEWEST_MODEL if version is None else ONE_MODEL, {"name": name, "version": version}
    ).fetchone()
    if row is not None:
        return row
    rows = connection.execute(MODELS, {"name": name, "run": None, "latest": False}).fetchall()
    if rows:
        known = ", ".join(str(one["version"]) for one in rows[:10])
        raise NotFoundError(f"model {name!r} has no version {version}; it has: {known}", name=name)
    rows = connection.execute(MODELS, {"name": None, "run": None, "latest": True}).fetchall()
    names = ", ".join(one["name"] for one in rows[:10])
    raise NotFoundError(
        f"there is no model {name!r}; "
        + (f"the workspace has: {names}" if names else "the workspace has none"),
        name=name,
    )


def _no_alias(connection: sqlite3.Connection, name: str, alias: str) -> NotFoundError:
    rows = connection.execute(
        "SELECT alias FROM model_aliases WHERE name = :name ORDER BY alias", {"name": name}
    ).fetchall()
    known = ", ".join(row["alias"] for row in rows)
    return NotFoundError(
        f"model {name!r} has no alias {alias!r}; "
        + (f"it has: {known}" if known else "it has none"),
        name=name,
    )


def _update(
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    tags: Mapping[str, str | None] | None,
    properties: Mapping[str, str] | None,
    description: str | None,
    data: Sequence[Mapping[str, Any]] = (),
) -> sqlite3.Row:
    lineage = json.loads(row["lineage"])
    for one in data:
        if dict(one) not in lineage.setdefault("data", []):
            lineage["data"].append(dict(one))
    merged: dict[str, str | None] = {**json.loads(row["tags"]), **(tags or {})}
    kept = json.loads(row["properties"])
    for key, value in (properties or {}).items():
        if kept.setdefault(key, value) != value:
            raise UsageError(
                f"the property {key!r} of model {row['name']}:{row['version']} is {kept[key]!r} "
                f"and cannot become {value!r}: properties are written once. Use a tag"
            )
    updated: sqlite3.Row = connection.execute(
        UPDATE_MODEL,
        {
            "name": row["name"],
            "version": row["version"],
            "tags": to_json({key: value for key, value in merged.items() if value is not None}),
            "properties": to_json(kept),
            "description": row["description"] if description is None else description,
            "lineage": to_json(lineage),
        },
    ).fetchone()
    return updated


def _model_of(connection: sqlite3.Connection, row: sqlite3.Row) -> ModelVersion:
    aliases = connection.execute(
        "SELECT alias FROM model_aliases WHERE name = :name AND version = :version ORDER BY alias",
        {"name": row["name"], "version": row["version"]},
    ).fetchall()
    return ModelVersion(
        name=row["name"],
        version=row["version"],
        run=row["run"],
        attempt=row["attempt"],
        path=row["path"],
        digest=row["digest"],
        files=tuple(ModelFile(**one) for one in json.loads(row["files"])),
        lineage=json.loads(row["lineage"]),
        framework=row["framework"],
        framework_version=row["framework_version"],
        description=row["description"],
        tags=json.loads(row["tags"]),
        properties=json.loads(row["properties"]),
        created_by=row["created_by"],
        created_at=time_of(row["created_at"]),
        aliases=tuple(one["alias"] for one in aliases),
    )
