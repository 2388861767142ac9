"""Published pipelines, which can be run by id, and endpoints, which name them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import EndpointVersion, PublishedRecord, ScheduleRecord
from rayjobs.store.part import Part
from rayjobs.store.rows import time_of, time_text, to_json

INSERT = """
INSERT INTO published_pipelines (id, name, version, description, spec, is_active, created_by,
    created_at)
VALUES (:id, :name, :version, :description, :spec, 1, :user, :now)
RETURNING *
"""
ADD_VERSION = """
INSERT INTO pipeline_endpoints (name, version, id, pipeline, description, is_default, is_active,
    created_at)
VALUES (:name, (SELECT COALESCE(MAX(version) + 1, 0) FROM pipeline_endpoints WHERE name = :name),
    COALESCE((SELECT id FROM pipeline_endpoints WHERE name = :name LIMIT 1), :id), :pipeline,
    :description, 0, 1, :now)
RETURNING *
"""
SET_DEFAULT = """
UPDATE pipeline_endpoints SET is_default = CASE WHEN version = :version THEN 1 ELSE 0 END
WHERE name = :name
"""


# The files seen in the same place are the timekeeper's: a change of other fields must not restore
# an earlier record of them, or their runs would start again.
PUT_SCHEDULE = """
INSERT INTO pipeline_schedules (id, name, description, pipeline, endpoint, experiment, parameters,
    continues, recurrence, watched, seen, is_active, next_at, last_run, note,
    failed_start, created_by, created_at)
VALUES (:id, :name, :description, :pipeline, :endpoint, :experiment, :parameters, :continues,
    :recurrence, :watched, :seen, :is_active, :next_at, :last_run, :note, :failed_start,
    :created_by, :created_at)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, description = excluded.description,
    parameters = excluded.parameters, continues = excluded.continues,
    recurrence = excluded.recurrence, watched = excluded.watched,
    seen = CASE WHEN pipeline_schedules.watched = excluded.watched
        THEN COALESCE(pipeline_schedules.seen, excluded.seen) ELSE excluded.seen END,
    is_active = excluded.is_active, next_at = excluded.next_at, note = excluded.note,
    failed_start = excluded.failed_start
"""
# A schedule that was changed or disabled meanwhile is no longer due at that time.
SETTLE_SCHEDULE = """
UPDATE pipeline_schedules SET next_at = :next_at, note = :note, failed_start = :failed_start,
    seen = COALESCE(:seen, seen), last_run = COALESCE(:run, last_run)
WHERE id = :id AND next_at = :due AND is_active = 1
"""


class PublishedPart(Part):
    """Rows of published pipelines and endpoints."""

    def publish_pipeline(
        self,
        spec: Mapping[str, Any],
        *,
        name: str,
        version: str | None = None,
        description: str = "",
        user: str = "",
    ) -> PublishedRecord:
        """See `Store.publish_pipeline`."""
        values = {
            "id": ids.token(),
            "name": name,
            "version": version,
            "description": description,
            "spec": to_json(dict(spec)),
            "user": user,
            "now": self._now(),
        }
        with self._database.write(durable=True) as connection:
            return _published(connection.execute(INSERT, values).fetchone())

    def published_pipelines(self, *, active: bool = True) -> list[PublishedRecord]:
        """See `Store.published_pipelines`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM published_pipelines WHERE is_active = 1 OR NOT :active"
                " ORDER BY serial DESC",
                {"active": active},
            ).fetchall()
        return [_published(row) for row in rows]

    def published_pipeline(self, text: str) -> PublishedRecord:
        """See `Store.published_pipeline`."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT * FROM published_pipelines WHERE id = :text OR name = :text"
                " OR (LENGTH(:text) >= 8 AND SUBSTR(id, 1, LENGTH(:text)) = :text)"
                " ORDER BY id = :text DESC, is_active DESC, serial DESC LIMIT 1",
                {"text": text},
            ).fetchone()
        if row is None:
            raise NotFoundError(
                f"there is no published pipeline {text!r}; `rayjobs pipeline ls --published` "
                f"lists them",
                pipeline=text,
            )
        return _published(row)

    def set_published_active(self, pipeline_id: str, *, active: bool) -> None:
        """See `Store.set_published_active`."""
        values = {"id": self.published_pipeline(pipeline_id).id, "active": int(active)}
        with self._database.write(durable=True) as connection:
            connection.execute(
                "UPDATE published_pipelines SET is_active = :active WHERE id = :id", values
            )

    def put_schedule(self, record: ScheduleRecord) -> None:
        """See `Store.put_schedule`."""
        values = {
            **vars(record),
            "continues": None if record.continues is None else int(record.continues),
            "is_active": int(record.is_active),
            "next_at": time_text(record.next_at),
            "created_at": time_text(record.created_at),
        }
        for name in ("parameters", "recurrence", "watched", "seen"):
            values[name] = None if values[name] is None else to_json(dict(values[name]))
        with self._database.write(durable=True) as connection:
            connection.execute(PUT_SCHEDULE, values)

    def settle_schedule(
        self,
        schedule: str,
        *,
        due: datetime,
        next_at: datetime | None,
        note: str,
        failed_start: str = "",
        seen: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> bool:
        """See `Store.settle_schedule`."""
        values = {
            "id": schedule,
            "due": time_text(due),
            "next_at": time_text(next_at),
            "note": note,
            "failed_start": failed_start,
            "seen": None if seen is None else to_json(dict(seen)),
            "run": run,
        }
        with self._database.write(durable=True) as connection:
            return connection.execute(SETTLE_SCHEDULE, values).rowcount == 1

    def schedules(self, *, active: bool = True) -> list[ScheduleRecord]:
        """See `Store.schedules`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM pipeline_schedules WHERE is_active = 1 OR NOT :active"
                " ORDER BY serial DESC",
                {"active": active},
            ).fetchall()
        return [_schedule(row) for row in rows]

    def schedule(self, text: str) -> ScheduleRecord:
        """See `Store.schedule`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM pipeline_schedules WHERE id = :text OR name = :text"
                " OR (LENGTH(:text) >= 4 AND SUBSTR(id, 1, LENGTH(:text)) = :text)"
                " ORDER BY id = :text DESC, serial DESC",
                {"text": text},
            ).fetchall()
        if not rows:
            raise NotFoundError(
                f"there is no schedule {text!r}; `rayjobs pipeline schedule ls` lists them",
                schedule=text,
            )
        if len(rows) > 1 and rows[0]["id"] != text:
            shown = "\n".join(
                f"  {row['id'][:12]}  {row['name']}{'' if row['is_active'] else '  disabled'}"
                for row in rows
            )
            raise UsageError(
                f"{text!r} names {len(rows)} schedules; give the id of one:\n{shown}",
                matches=tuple(row["id"] for row in rows),
            )
        return _schedule(rows[0])

    def drop_schedule(self, schedule: str) -> None:
        """See `Store.drop_schedule`."""
        known = self.schedule(schedule)
        with self._database.write(durable=True) as connection:
            connection.execute("DELETE FROM pipeline_schedules WHERE id = ?", (known.id,))

    def add_endpoint_version(
        self, name: str, pipeline_id: str, *, description: str = "", is_default: bool = False
    ) -> EndpointVersion:
        """See `Store.add_endpoint_version`."""
        values = {
            "name": name,
            "id": ids.token(),
            "pipeline": self.published_pipeline(pipeline_id).id,
            "description": description,
            "now": self._now(),
        }
        with self._database.write(durable=True) as connection:
            row = connection.execute(ADD_VERSION, values).fetchone()
            if is_default or row["version"] == 0:
                connection.execute(SET_DEFAULT, {"name": name, "version": row["version"]})
            return _endpoint(
                connection.execute(
                    "SELECT * FROM pipeline_endpoints WHERE name = :name AND version = :version",
                    {"name": name, "version": row["version"]},
                ).fetchone()
            )

    def endpoint_versions(self, text: str | None = None) -> list[EndpointVersion]:
        """See `Store.endpoint_versions`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM pipeline_endpoints WHERE :text IS NULL OR name = :text OR id = :text"
                " ORDER BY name, version",
                {"text": text},
            ).fetchall()
        if text is not None and not rows:
            raise NotFoundError(f"there is no pipeline endpoint {text!r}", endpoint=text)
        return [_endpoint(row) for row in rows]

    def set_endpoint_default(self, name: str, version: int) -> None:
        """See `Store.set_endpoint_default`."""
        versions = self.endpoint_versions(name)
        known = [one.version for one in versions]
        if version not in known:
            raise UsageError(
                f"the endpoint {name!r} has no version {version}; it has: "
                f"{', '.join(map(str, known))}"
            )
        with self._database.write(durable=True) as connection:
            connection.execute(SET_DEFAULT, {"name": versions[0].name, "version": version})

    def rename_endpoint(self, name: str, new: str) -> None:
        """See `Store.rename_endpoint`."""
        (own, *_) = self.endpoint_versions(name)
        with self._database.write(durable=True) as connection:
            taken = connection.execute(
                "SELECT 1 FROM pipeline_endpoints WHERE name = :new AND id <> :id LIMIT 1",
                {"new": new, "id": own.id},
            ).fetchone()
            if taken is not None:
                raise UsageError(f"a pipeline endpoint {new!r} already exists; choose another name")
            connection.execute(
                "UPDATE pipeline_endpoints SET name = :new WHERE id = :id",
                {"new": new, "id": own.id},
            )

    def set_endpoint_active(self, name: str, *, active: bool) -> None:
        """See `Store.set_endpoint_active`."""
        (own, *_) = self.endpoint_versions(name)
        with self._database.write(durable=True) as connection:
            connection.execute(
                "UPDATE pipeline_endpoints SET is_active = :active WHERE name = :name",
                {"name": own.name, "active": int(active)},
            )


def _published(row: sqlite3.Row) -> PublishedRecord:
    return PublishedRecord(
        id=row["id"],
        name=row["name"],
        version=row["version"],
        description=row["description"],
        spec=json.loads(row["spec"]),
        is_active=bool(row["is_active"]),
        created_by=row["created_by"],
        created_at=time_of(row["created_at"]),
    )


def _endpoint(row: sqlite3.Row) -> EndpointVersion:
    return EndpointVersion(
        id=row["id"],
        name=row["name"],
        version=row["version"],
        pipeline=row["pipeline"],
        description=row["description"],
        is_default=bool(row["is_default"]),
        is_active=bool(row["is_active"]),
    )


def _schedule(row: sqlite3.Row) -> ScheduleRecord:
    values = {name: row[name] for name in row.keys() if name != "serial"}  # noqa: SIM118
    for name in ("parameters", "recurrence", "watched", "seen"):
        values[name] = None if values[name] is None else json.loads(values[name])
    values["continues"] = None if row["continues"] is None else bool(row["continues"])
    values["is_active"] = bool(row["is_active"])
    values["next_at"] = None if row["next_at"] is None else time_of(row["next_at"])
    values["created_at"] = time_of(row["created_at"])
    return ScheduleRecord(**values)
