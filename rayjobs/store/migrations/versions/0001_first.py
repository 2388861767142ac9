"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables in an empty store."""
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )

    op.create_table(
        "jobs",
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
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_target_state", "jobs", ["target", "state"])
    op.create_index("ix_jobs_parent", "jobs", ["parent"])
    op.create_index("ix_jobs_experiment", "jobs", ["experiment"])
    op.create_index("ix_jobs_name", "jobs", ["name"])

    op.create_table(
        "attempts",
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

    op.create_table(
        "allocations",
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
    op.create_index("ix_allocations_target_state", "allocations", ["target", "state"])

    op.create_table(
        "events",
        sa.Column("serial", sa.Integer, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job", "events", ["job", "serial"])

    op.create_table(
        "metrics",
        sa.Column("job_serial", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("late", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )

    op.create_table(
        "files",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("blob", sa.Text, nullable=False),
        sa.Column("stored_at", sa.Text, nullable=False),
    )

    op.create_table(
        "targets",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("claimed_at", sa.Text, nullable=False),
    )
