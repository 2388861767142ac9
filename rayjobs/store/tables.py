"""The store's tables in SQLAlchemy Core: the only place where the schema is written by hand.

`schema.sql`, which creates new stores, is generated from these tables: run this module after a
change. Migrations contain only the differences between versions. Only migrations, moves between
SQLite and PostgreSQL, and tests import this module: SQLAlchemy alone costs a command more start-up
time than the rest of the store (docs/decisions/0002-store-statements.md).
"""

from __future__ import annotations

import re

import sqlalchemy as sa

from rayjobs.store.schema import VERSION

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("experiment", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("display_name", sa.Text),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("parent", sa.Text),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("submitted_by", sa.Text, nullable=False),
    sa.Column("snapshot", sa.Text),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("submitted_at", sa.Text, nullable=False),
    sa.Column("changed_at", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text),
    sa.Column("ended_at", sa.Text),
    sa.Column("not_before", sa.Text),
    sa.Column("cancel_requested_at", sa.Text),
    sa.Column("failure", sa.Text),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("properties", sa.Text, nullable=False),
    # The random tail of the id, by which an index finds the job.
    sa.Column("tail", sa.Text, nullable=False, server_default=""),
    # The script or command, for durations learned from history.
    sa.Column("entry", sa.Text, nullable=False, server_default=""),
    sa.Column("array_index", sa.Integer),  # the member's number in its array
    sa.Column("placed_at", sa.Text),  # when it first got an allocation
    sa.Column("hold", sa.Text),  # why it is held; NULL if it is not
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("cancellation", sa.Text),  # by whom and why it was canceled, as JSON
    sa.UniqueConstraint("id", name="uq_jobs_id"),
    sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    sqlite_autoincrement=True,  # a serial is never reused, even after a prune
)
sa.Index("ix_jobs_target_state", jobs.c.target, jobs.c.state)
sa.Index("ix_jobs_parent_state", jobs.c.parent, jobs.c.state)
sa.Index("ix_jobs_experiment", jobs.c.experiment)
sa.Index("ix_jobs_name", jobs.c.name)
sa.Index("ix_jobs_tail", jobs.c.tail)
sa.Index("ix_jobs_display_name", jobs.c.display_name)
sa.Index("ix_jobs_history", jobs.c.experiment, jobs.c.entry, jobs.c.state, jobs.c.ended_at)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("allocation", sa.Text),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text),
    sa.Column("ended_at", sa.Text),
    sa.Column("hosts", sa.Text, nullable=False),
    sa.Column("exits", sa.Text, nullable=False),
    sa.Column("cold_reason", sa.Text),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("failure", sa.Text),
)

# The writer of each unfinished interactive run: an attempt of a job, or a process (JSON).
writers = sa.Table(
    "writers",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("job", sa.Text),
    sa.Column("attempt", sa.Integer),
    sa.Column("process", sa.Text),
)
sa.Index("ix_writers_job", writers.c.job, writers.c.attempt)

allocations = sa.Table(
    "allocations",
    metadata,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("shape", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("job", sa.Text),
    sa.Column("attempt", sa.Integer),
    sa.Column("nodes", sa.Text, nullable=False),
    sa.Column("gpus", sa.Text, nullable=False),
    sa.Column("changed_at", sa.Text, nullable=False),
    sa.UniqueConstraint("name", name="uq_allocations_name"),
    sqlite_autoincrement=True,
)
sa.Index("ix_allocations_target_state", allocations.c.target, allocations.c.state)

events = sa.Table(
    "events",
    metadata,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)
sa.Index("ix_events_job", events.c.job, events.c.serial)

# Most rows of a store are points. They name their job by its serial, and are stored in key order.
metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("job_serial", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("step", sa.Integer),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("late", sa.Integer, nullable=False),  # arrived when the job had a newer attempt
    sqlite_with_rowid=False,
)

# The newest point of each metric of a job, in the order in which lists read it. A list of ten
# thousand jobs shows and sorts by these without reading all points.
last_metrics = sa.Table(
    "last_metrics",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("job_serial", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("ix_last_metrics_job", last_metrics.c.job_serial)

files = sa.Table(
    "files",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("blob", sa.Text, nullable=False),
    sa.Column("stored_at", sa.Text, nullable=False),
)

targets = sa.Table(
    "targets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Text, nullable=False),
    sa.Column("claimed_at", sa.Text, nullable=False),
)

# A sweep is a row of `jobs` (kind "sweep") and a row here.
sweeps = sa.Table(
    "sweeps",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("driver", sa.Text, nullable=False),  # module:function, see store/sweeps.py
    sa.Column("spec", sa.Text, nullable=False),
)

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("sweep", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("reports", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("judged", sa.Integer, nullable=False),
    sa.Column("stop_requested", sa.Integer, nullable=False),
    sa.Column("metric_names", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text),
    sa.Column("ended_at", sa.Text),
    sa.Column("cause", sa.Text),  # what decided its end; NULL: nothing to explain
    # The reason without the trial's number.
    sa.Column("detail", sa.Text, nullable=False, server_default=""),
)

# A pipeline run is a row of `jobs` (kind "pipeline") and a row here; a step is a job with a row in
# `steps`.
pipelines = sa.Table(
    "pipelines",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("continues", sa.Integer, nullable=False),  # other steps continue when one fails
    sa.Column("published", sa.Text),  # id of the published pipeline; NULL: none
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("pipeline_name", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("after", sa.Text, nullable=False),
    sa.Column("reuse_key", sa.Text),  # NULL: never reused
    sa.Column("parts", sa.Text, nullable=False),  # the parts of the key
    sa.Column("original", sa.Text),  # the job whose results it reuses; NULL: none
    sa.Column("decision", sa.Text, nullable=False),
    sa.UniqueConstraint("job", name="uq_steps_job"),
)
sa.Index("ix_steps_reuse_key", steps.c.reuse_key)
sa.Index("ix_steps_name", steps.c.pipeline_name, steps.c.name)

# Pipelines that can be run by their id. Only `is_active` of a row ever changes.
published_pipelines = sa.Table(
    "published_pipelines",
    metadata,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.Text),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("is_active", sa.Integer, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.UniqueConstraint("id", name="uq_published_pipelines_id"),
    sqlite_autoincrement=True,
)

# An endpoint is a name for published pipelines, its versions "0", "1", …
pipeline_endpoints = sa.Table(
    "pipeline_endpoints",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("pipeline", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("is_default", sa.Integer, nullable=False),
    sa.Column("is_active", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
)

# Published pipelines that are run at set times, or when stored files change. `recurrence` or
# `watched` is set, never both.
pipeline_schedules = sa.Table(
    "pipeline_schedules",
    metadata,
    sa.Column("serial", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("pipeline", sa.Text),  # id of the published pipeline
    sa.Column("endpoint", sa.Text),  # or id of an endpoint, whose default version runs
    sa.Column("experiment", sa.Text, nullable=False),
    sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("continues", sa.Integer),  # NULL: the pipeline's own setting
    sa.Column("recurrence", sa.Text),
    sa.Column("watched", sa.Text),
    sa.Column("seen", sa.Text),  # the watched files at the last check
    sa.Column("is_active", sa.Integer, nullable=False),
    sa.Column("next_at", sa.Text),  # NULL: never
    sa.Column("last_run", sa.Text),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    # Why the due run could not be started; empty: it could.
    sa.Column("failed_start", sa.Text, nullable=False, server_default=""),
    sa.UniqueConstraint("id", name="uq_pipeline_schedules_id"),
    sqlite_autoincrement=True,
)

# Versions of models. Rows of deleted versions stay, so that their numbers are never used again.
models = sa.Table(
    "models",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),  # of the list of files
    sa.Column("files", sa.Text, nullable=False),
    sa.Column("lineage", sa.Text, nullable=False),
    sa.Column("framework", sa.Text, nullable=False),
    sa.Column("framework_version", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("properties", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("deleted_at", sa.Text),
)
sa.Index("ix_models_run", models.c.run)

model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

# Versions of environments that users registered, and names for versions.
environments = sa.Table(
    "environments",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),  # of the definition
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
)

environment_labels = sa.Table(
    "environment_labels",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

# The catalogue of data. Rows of removed versions stay, so that their numbers are never used again.
# Manifests are compressed, and kept by digest.
datastores = sa.Table(
    "datastores",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),  # no secret, only its variable or profile
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("removed_at", sa.Text),
    sa.UniqueConstraint("id", name="uq_datasets_id"),
)

manifests = sa.Table(
    "manifests",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

# The first and the last predicted start of each job, which `rayjobs report queue` compares with the
# actual one.
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("first_at", sa.Text, nullable=False),
    sa.Column("first_starts_at", sa.Text, nullable=False),
    sa.Column("first_basis", sa.Text, nullable=False),
    sa.Column("last_at", sa.Text, nullable=False),
    sa.Column("last_starts_at", sa.Text, nullable=False),
    sa.Column("last_basis", sa.Text, nullable=False),
)


def sqlite_schema() -> str:
    """Return the text of `schema.sql`: a new SQLite store, alembic's mark included."""
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.schema import CreateIndex, CreateTable

    dialect = sqlite.dialect()
    parts = []
    for table in metadata.sorted_tables:
        parts.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            parts.append(str(CreateIndex(index).compile(dialect=dialect)).strip())
    parts.append(
        "CREATE TABLE alembic_version (\n\tversion_num VARCHAR(32) NOT NULL, \n"
        "\tCONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n)"
    )
    mark = f"{VERSION:04d}"
    parts.append(f"INSERT INTO alembic_version (version_num) VALUES ('{mark}')")  # noqa: S608
    text = ";\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts)
    return f"-- Written by `python -m rayjobs.store.tables`; a test compares both.\n\n{text};\n"


# Functions of SQLite that the store's statements use; see `rayjobs.store.postgres`.
_FUNCTIONS = """
CREATE FUNCTION store_extract(data TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE AS
    $$ SELECT CAST(data AS JSON) #>> string_to_array(substr(path, 3), '.') $$;

CREATE FUNCTION store_each(data TEXT, OUT key TEXT, OUT value TEXT) RETURNS SETOF RECORD
    LANGUAGE SQL IMMUTABLE AS
    $$ SELECT CAST(number - 1 AS TEXT), one FROM json_array_elements_text(CAST(
           CASE WHEN left(ltrim(data), 1) = '[' THEN data ELSE '[]' END AS JSON))
           WITH ORDINALITY AS found (one, number)
       UNION ALL SELECT found.key, found.value FROM json_each_text(CAST(
           CASE WHEN left(ltrim(data), 1) = '{' THEN data ELSE '{}' END AS JSON)) AS found $$
"""


def postgres_schema() -> str:
    """Return the text of `schema_postgres.sql`: a new store in PostgreSQL.

    Texts are compared byte by byte, as in SQLite; whole numbers have 64 bits.
    """
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex, CreateTable

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    parts = []
    for table in metadata.sorted_tables:
        made = str(CreateTable(table).compile(dialect=dialect)).strip()
        made = re.sub(r"\bSERIAL\b", "BIGINT GENERATED BY DEFAULT AS IDENTITY", made)
        made = re.sub(r"\bINTEGER\b", "BIGINT", made)
        parts.append(re.sub(r"\bTEXT\b", 'TEXT COLLATE "C"', made))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            parts.append(str(CreateIndex(index).compile(dialect=dialect)).strip())
    parts += ["CREATE TABLE store_state (version BIGINT NOT NULL, changes BIGINT NOT NULL)"]
    parts += [_FUNCTIONS.strip(), f"INSERT INTO store_state VALUES ({VERSION:d}, 0)"]  # noqa: S608
    text = ";\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts)
    mark = "-- Written by `python -m rayjobs.store.tables postgres`; a test compares both."
    return f"{mark}\n\n{text};\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(postgres_schema() if sys.argv[1:] == ["postgres"] else sqlite_schema())
